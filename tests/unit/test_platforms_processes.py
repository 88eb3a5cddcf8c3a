"""Processes are found, seen at work or stopped, with the methods in their titles. Any may have just ended."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from openrlhf_ada.platforms import processes
from openrlhf_ada.platforms.processes import (
    WORKS_BYTES,
    Seen,
    children_named,
    has_worked,
    kill_rest,
    look,
    stopped_workers,
)


@contextmanager
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@contextmanager
def titled(title: str, output: Path, is_stopped: bool) -> Iterator[int]:
    command = ["bash", "-c", 'exec -a "$0" sleep 600', title]
    with output.open("wb") as stream, subprocess.Popen(command, stdout=stream) as process:
        while psutil.Process(process.pid).name() != "sleep":
            pass
        if is_stopped:
            stop(process)
        yield process.pid
        process.kill()


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


@pytest.fixture
def gone() -> psutil.Process:
    """One that has ended and was waited for, but whose object has not seen it."""
    with sleeping() as process:
        return psutil.Process(process.pid)


def test_children_are_found_by_name(gone: psutil.Process, monkeypatch: pytest.MonkeyPatch) -> None:
    with sleeping() as sleeper:
        assert (sleeper.pid, "sleep") in [(child.pid, name) for child, name in children_named({"sleep"})]
        assert not list(children_named({"no such program"}))
    monkeypatch.setattr(psutil.Process, "children", lambda self: [gone])
    assert not list(children_named({"sleep"}))


def test_what_is_left_is_killed(gone: psutil.Process, monkeypatch: pytest.MonkeyPatch) -> None:
    with sleeping() as sleeper:
        child = psutil.Process(sleeper.pid)
        assert kill_rest([child, gone], 0.0) == [child]
        assert psutil.wait_procs([child], timeout=30)[1] == []
    # It ends just before it is killed.
    monkeypatch.setattr(psutil, "wait_procs", lambda processes, timeout: ([], processes))
    assert kill_rest([gone], 0.0) == [gone]


def test_nothing_is_imported_before_it_is_needed() -> None:
    """A bare installation has no psutil."""
    assert "psutil" not in vars(processes)


def test_a_process_is_seen_with_all_below_it(tmp_path: Path) -> None:
    with titled("ray::PolicyModelActor.fit", tmp_path / "log", is_stopped=False) as pid:
        seen = look([os.getpid(), pid, gone_pid()])
        assert seen.keys() == {os.getpid(), pid}
        assert (seen[pid].runs, seen[pid].stopped, set(seen[pid].done)) == ("fit", 0, {pid})
        assert seen[os.getpid()].runs == "" and pid in seen[os.getpid()].done
    with sleeping() as child:
        stop(child)
        assert look([os.getpid()])[os.getpid()].stopped == child.pid


def gone_pid() -> int:
    with sleeping() as process:
        process.kill()
        process.wait()
        return process.pid


def test_a_zombie_is_not_there() -> None:
    with sleeping() as process:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert look([process.pid]) == {}


def test_stopped_workers_of_this_session_are_found(tmp_path: Path) -> None:
    logs = tmp_path / "session"
    logs.mkdir()
    with (
        titled("ray::AdaPPOTrainer.__init__", logs / "a", True) as trainer,
        titled("ray::_QueueActor", logs / "b", True) as queue,
        titled("ray::PolicyModelActor.__init__", logs / "c", False),
        titled("ray::PolicyModelActor.fit", tmp_path / "other", True),
        titled("python", logs / "d", True),
    ):
        assert stopped_workers(logs) == {trainer: "AdaPPOTrainer", queue: "_QueueActor"}


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        ({1: (10.2, 0), 2: (0.0, 0)}, False),
        ({1: (10.5, 0), 2: (0.0, 0)}, True),
        ({1: (10.0, 0), 2: (0.5, 0)}, True),
        ({1: (10.0, 10 * WORKS_BYTES), 2: (0.0, 0)}, True),
        ({1: (10.0, 9 * WORKS_BYTES), 2: (0.0, 0)}, False),
        ({1: (10.0, 0), 2: (0.0, 0), 3: (0.0, 0)}, True),
        ({1: (10.0, 0)}, False),
    ],
    ids=["idle", "at work", "a child at work", "files", "few bytes", "new child", "a child has ended"],
)
def test_work_is_a_twentieth_of_a_core_or_bytes_of_one_process(
    done: dict[int, tuple[float, int]], expected: bool
) -> None:
    before = Seen(0, {1: (10.0, 0), 2: (0.0, 0)}, "fit")
    assert has_worked(before, replace(before, done=done), seconds=10.0) is expected
    assert has_worked(None, before, seconds=10.0)


def test_figures_are_those_of_this_process() -> None:
    me = psutil.Process()
    cpu, moved = look([me.pid])[me.pid].done[me.pid]
    after, io = me.cpu_times(), me.io_counters()
    assert 0 < cpu <= after.user + after.system + 1e-6 and 0 < moved <= io.read_chars + io.write_chars
