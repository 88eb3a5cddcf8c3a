"""Progress of commands that count: the first line at once, plain lines without a terminal, no control characters."""

from __future__ import annotations

import io
import time

import pytest

from openrlhf_ada.reporting import counting
from openrlhf_ada.reporting.counting import Counting


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_lines_without_a_terminal() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Counting(stream, clock)
    progress.phase("loading")
    assert stream.getvalue() == "loading\n", "at once, not when something is done"
    clock.now = 12.0
    progress.tick()
    progress.count("m", "answers", 2000)
    for step in range(1, 31):
        clock.now += 1.0
        progress.advance(step % 2 == 0)
        progress.tick()
    progress.note("an engine has died")
    assert stream.getvalue().splitlines()[1:] == [
        "loading (12 s)",
        "m: 0/2,000 answers",
        "m: 10/2,000 answers, 50% right so far, about 33 min left",
        "m: 20/2,000 answers, 50% right so far, about 33 min left",
        "m: 30/2,000 answers, 50% right so far, about 33 min left",
        "an engine has died",
    ]


def test_the_end_is_told_once() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Counting(stream, clock)
    progress.count("checking labels", "labels", 2)
    clock.now = 3.0
    progress.advance()
    progress.advance()
    clock.now = 60.0
    progress.tick()
    assert stream.getvalue().splitlines() == ["checking labels: 0/2 labels", "checking labels: 2/2 labels, 3 s"]


def test_it_ticks_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "TICK_S", 0.01)
    monkeypatch.setattr(counting, "LINES_EVERY_S", 0.0)
    stream = io.StringIO()
    with Counting(stream) as progress:
        progress.phase("starting engines")
        deadline = time.monotonic() + 30
        while stream.getvalue().count("\n") < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    lines = stream.getvalue().splitlines()
    assert len(lines) >= 3 and {line.partition(" (")[0] for line in lines} == {"starting engines"}
    assert "\r" not in stream.getvalue() and "\x1b" not in stream.getvalue()
