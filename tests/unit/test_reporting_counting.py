"""Progress of commands that count: the first line at once, plain lines without a terminal, no control characters."""

from __future__ import annotations

import io

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
    progress.count("m", "answers", 2000)
    for step in range(1, 31):
        clock.now += 1.0
        progress.advance(step % 2 == 0)
    progress.note("an engine has died")
    assert stream.getvalue().splitlines()[1:] == [
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
    assert stream.getvalue().splitlines() == ["checking labels: 0/2 labels", "checking labels: 2/2 labels, 3 s"]
