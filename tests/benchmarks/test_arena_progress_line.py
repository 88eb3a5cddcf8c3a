"""Progress of long work on a terminal and in a file."""

from __future__ import annotations

import io
import sys

import pytest

from benchmarks.arena import progress_line as module
from benchmarks.arena.progress_line import progress_line


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Its last entry is now, in seconds."""
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[-1])
    return now


def test_file_gets_the_first_the_last_and_a_line_a_minute(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with progress_line() as show:
        for second in range(150):
            clock.append(1000.0 + second)
            show(f"{second // 50} of 3")
        clock.append(1155.0)
        show("3 of 3")
    assert capsys.readouterr().err.splitlines() == ["0 of 3", "1 of 3", "2 of 3", "3 of 3"]


def test_file_gets_no_line_twice(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with progress_line() as show:
        for minute in range(5):
            clock.append(1000.0 + 60 * minute)
            show("0 of 3")
    assert capsys.readouterr().err == "0 of 3\n"


def test_work_that_says_nothing_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_line():
        pass
    assert capsys.readouterr().err == ""


def test_last_line_is_written_when_work_fails(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), progress_line() as show:
        show("0 of 3")
        show("1 of 3")
        raise KeyboardInterrupt
    assert capsys.readouterr().err.splitlines() == ["0 of 3", "1 of 3"]


def test_terminal_line_is_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_line() as show:
        show("10 of 10 rollouts")
        show("done")
    assert terminal.getvalue() == "\r10 of 10 rollouts\rdone             \n"
