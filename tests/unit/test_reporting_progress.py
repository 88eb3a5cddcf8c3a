"""The progress view: plain lines in a file, a live line on a terminal that is always restored."""

from __future__ import annotations

import io
import re
import threading
from typing import Any

import pytest

from openrlhf_ada.reporting.progress import ProgressView, evaluation_line, sampling_parts, short, step_line, time_left

METRICS = {
    "ada/first_wave_metric_mean": 0.42,
    "ada/signal_share": 0.875,
    "ada/signal_share_uniform": 0.5,
    "ada/rollouts_per_prompt": 7.25,
    "ada/step_s": 21.34,
}
SAMPLING = {
    "type": "sampling", "open": 12, "unresolved": 9, "done": 107, "rollouts": 1934, "tokens": 412_300, "right": 0.41,
    "signal": 0.78, "seconds": 22.5,
}  # fmt: skip
SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def step(number: int, of: int, **metrics: Any) -> dict[str, Any]:
    return {"type": "step", "step": number, "max_steps": of, "metrics": metrics}


def test_step_line_shows_measured_figures() -> None:
    expected = "step  3/40   right  42%   signal  88% (uniform  50%)     7.2 rollouts/prompt     21.3 s"
    assert step_line(3, 40, METRICS, seconds=21.34) == expected
    off = {"ada/first_wave_metric_mean": 0.25, "rollout/reward_mean": -0.5}
    assert step_line(3, 4, off, seconds=2.0) == "step 3/4   right  25%   reward -0.500      2.0 s"
    assert step_line(3, 4, {"policy_loss": 1.0}, seconds=2.0) == "step 3/4      2.0 s"


def test_evaluation_line_has_its_interval() -> None:
    assert evaluation_line(0, 0.281, 0.038) == "evaluation before training: 28.1 ± 3.8% right"
    assert evaluation_line(8, 0.5, None) == "evaluation after step 8: 50.0% right"


@pytest.mark.parametrize(
    ("told", "falls"),
    [([(0.54, 0.14), (0.0, 0.0)], True), ([(0.54, 0.14), (0.45, 0.14)], False), ([(0.5, 0.0)], False), ([], False)],
)
def test_the_end_says_that_a_model_became_worse(told: list[tuple[float, float]], falls: bool) -> None:
    stream = io.StringIO()
    with ProgressView(stream) as view:
        for at, (accuracy, ci95) in enumerate(told):
            view.handle({"type": "eval", "step": at, "accuracy": accuracy, "ci95": ci95})
        view.handle({"type": "done", "run_dir": "runs/x"})
    assert ("accuracy fell" in stream.getvalue() and "--actor.adam.lr" in stream.getvalue()) == falls


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5, "seconds"), (60, "a minute"), (600, "10 min"), (9000, "2.5 h")],
)
def test_time_left_is_as_precise_as_it_can_be(seconds: float, text: str) -> None:
    assert re.search(rf"\b{text}\b", time_left(seconds))


def test_file_gets_one_plain_line_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream = io.StringIO()
    with ProgressView(stream) as view:
        for text in ("starting engines", "starting engines", "loading"):
            view.handle({"type": "phase", "text": text})
        view.handle({"type": "eval", "step": 0, "accuracy": 0.25, "ci95": 0.04})
        for number in (1, 2):
            view.handle({"type": "phase", "text": f"step {number}: on its way"})
            for done in range(5):
                view.handle(SAMPLING | {"done": done})
            view.handle({"type": "doing", "text": "training the policy"})
            view.handle(step(number, 2, **METRICS))
        view.handle({"type": "phase", "text": "saving the model"})
        view.handle({"type": "done", "run_dir": "runs/x"})
    lines = stream.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "starting engines",
        "loading",
        "evaluation before training: 25.0 ± 4.0% right",
        "step 1: on its way",
        "step 1/2",
        "step 2/2",
        "saving the model",
        "report: runs/x/report.html (the record is beside it)",
    ]
    assert stream.getvalue().replace("\n", "").isprintable()


def test_terminal_shows_one_line_in_place_under_those_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    with ProgressView(stream) as view:
        view.handle(step(1, 31, **METRICS))
        view.handle(SAMPLING)
    text = stream.getvalue()
    assert text.count("step  1/31   right  42%") == 1
    assert "step 2/31: 12 open, 9 unresolved, 107 done  about 11 min left" in text, "30 steps of 21.34 s"
    assert text.count(HIDE_CURSOR) == text.count(SHOW_CURSOR) == 1
    assert text.count("\n") == 2, "of the finished step; and at the end, before the live line is taken away"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_live_line_has_first_things_first() -> None:
    clock = Clock()
    with ProgressView(io.StringIO(), clock) as view:
        view.handle({"type": "begin", "step": 0, "max_steps": 31})
        view.handle(step(1, 31, **METRICS))
        clock.now += 2
        view.handle(SAMPLING)
        assert view.status() == (
            "step 2/31: 12 open, 9 unresolved, 107 done  about 11 min left  right 41%  signal 78%  1,934 rollouts  "
            "412k tokens  18k tokens/s"
        )
        view.handle({"type": "doing", "text": "training the policy"})
        clock.now += 7
        assert view.status() == "step 2/31: training the policy (7 s)  about 11 min left"
        view.handle({"type": "phase", "text": "evaluating"})
        assert view.status() == "evaluating", "no part of a step"


def test_no_figure_is_shown_before_there_is_one() -> None:
    none = SAMPLING | {"right": None, "signal": None, "seconds": 0.0, "rollouts": 0, "tokens": 0}
    assert sampling_parts(none) == ["12 open, 9 unresolved, 107 done", "0 rollouts", "0 tokens"]


@pytest.mark.parametrize(
    ("number", "text"),
    [(950, "950"), (9500, "9,500"), (41_000, "41k"), (999_600, "1.0M"), (12_340_000, "12.3M")],
)
def test_large_counts_are_short(number: int, text: str) -> None:
    assert short(number) == text


def test_start_says_when_its_phases_begin() -> None:
    clock, stream = Clock(), io.StringIO()
    with ProgressView(stream, clock) as view:
        view.handle({"type": "phase", "text": "starting Ray"})
        clock.now += 9
        assert view.status() == "starting Ray (9 s)"
        view.handle({"type": "phase", "text": "loading"})
    first, second = stream.getvalue().splitlines()
    assert first == "starting Ray"
    assert second.startswith("loading") and re.search(r"\b9 s\b", second)


def test_long_sampling_is_told_every_minute_without_a_terminal() -> None:
    clock, stream = Clock(), io.StringIO()
    with ProgressView(stream, clock) as view:
        view.handle({"type": "begin", "step": 0, "max_steps": 2})
        for _ in range(25):
            view.handle(SAMPLING)
            clock.now += 5
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2, "after 60 s and after 120 s"
    assert lines[0].startswith("step 1/2: 12 open, 9 unresolved, 107 done  right 41%")


def test_a_note_cannot_move_the_cursor() -> None:
    """A reward's error may quote an answer."""
    stream = io.StringIO()
    with ProgressView(stream) as view:
        view.handle({"type": "note", "text": "no score: \x1b[2J\x9b1A\rright 100%\u202e"})
    assert stream.getvalue() == "no score: ␛[2J\ufffd1A␍right 100%\ufffd\n"


def test_terminal_is_restored_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with pytest.raises(KeyboardInterrupt), ProgressView(stream) as view:
        view.handle({"type": "phase", "text": "loading"})
        raise KeyboardInterrupt
    assert stream.getvalue().count(SHOW_CURSOR) == 1
    assert "loading" in stream.getvalue()


def test_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with ProgressView(stream) as view:
        view.handle({"type": "phase", "text": "loading"})
    assert stream.getvalue() == "loading\n"


def test_steps_without_a_duration_are_timed_by_the_clock() -> None:
    clock, stream = Clock(), io.StringIO()
    with ProgressView(stream, clock) as view:
        clock.now += 7.5
        view.handle(step(1, 2))
    assert stream.getvalue() == "step 1/2      7.5 s\n"


def test_events_from_other_thread_late_ones_dropped() -> None:
    stream = io.StringIO()
    with ProgressView(stream) as view:
        feeder = threading.Thread(target=lambda: [view.handle(step(k, 50, **METRICS)) for k in range(1, 51)])
        feeder.start()
        feeder.join()
    view.handle(step(51, 51, **METRICS))
    assert len(stream.getvalue().splitlines()) == 50
