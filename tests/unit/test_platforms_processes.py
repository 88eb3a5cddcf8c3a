"""Processes are found, seen at work, with the methods in their titles; how one ended. Any may have just ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
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
    how_it_ended,
    kernel_kills,
    kill_rest,
    look,
)


@contextmanager
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@contextmanager
def titled(title: str) -> Iterator[int]:
    with subprocess.Popen(["bash", "-c", 'exec -a "$0" sleep 600', title]) as process:
        while psutil.Process(process.pid).name() != "sleep":
            pass
        yield process.pid
        process.kill()


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


def test_a_process_is_seen_with_all_below_it() -> None:
    with titled("ray::PolicyModelActor.fit") as pid:
        seen = look([os.getpid(), pid, gone_pid()])
        assert seen.keys() == {os.getpid(), pid}
        assert (seen[pid].runs, set(seen[pid].done), seen[pid].is_stopped) == ("fit", {pid}, False)
        assert seen[os.getpid()].runs == "" and pid in seen[os.getpid()].done
    with sleeping() as child:
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        assert look([os.getpid()])[os.getpid()].is_stopped


def test_a_helper_that_is_stopped_holds_nobody_up() -> None:
    """Python's resource tracker, of an engine and others."""
    waits = "import multiprocessing.resource_tracker, sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", waits], stdin=subprocess.PIPE) as helper:
        helper.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, helper.pid, os.WSTOPPED)
        assert not look([os.getpid()])[os.getpid()].is_stopped
        helper.kill()


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
    before = Seen({1: (10.0, 0), 2: (0.0, 0)}, "fit")
    assert has_worked(before, replace(before, done=done), seconds=10.0) is expected
    assert has_worked(None, before, seconds=10.0)


def test_figures_are_those_of_this_process() -> None:
    me = psutil.Process()
    cpu, moved = look([me.pid])[me.pid].done[me.pid]
    after, io = me.cpu_times(), me.io_counters()
    assert 0 < cpu <= after.user + after.system + 1e-6 and 0 < moved <= io.read_chars + io.write_chars


# -- how one ended ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "lines", "expected"),
    [
        (-9, [], "ended by SIGKILL"),
        (1, ["*** SIGSEGV received at time=1 ***"], "ended with exit status 1"),
        (None, ["*** SIGSEGV received at time=1764041 on cpu 1 ***", "PC: @ 0x7f"], "ended by SIGSEGV"),
        (None, ["Fatal Python error: Segmentation fault", ""], "ended by Segmentation fault"),
        (None, ["step 3"], "ended; its signal is not known. After SIGKILL a log ends without an error"),
    ],
)
def test_an_end_is_told_by_its_status_or_by_what_the_log_says(
    status: int | None, lines: list[str], expected: str
) -> None:
    assert how_it_ended(status, lines) == expected


@pytest.mark.parametrize("file", ["job/run/memory.events", "memory.events"], ids=["machine", "container"])
def test_kills_are_counted_in_the_group_and_on_the_machine(tmp_path: Path, file: str) -> None:
    groups, proc = tmp_path / "cgroup", tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("1:cpu:/job\n0::/job/run\n")
    (proc / "vmstat").write_text("pgfault 12\noom_kill 5\n")
    assert kernel_kills(groups, proc) == {"this machine": 5}
    (groups / file).parent.mkdir(parents=True, exist_ok=True)
    (groups / file).write_text("low 0\nunder_oom 0\noom_kill 2\n")
    assert kernel_kills(groups, proc) == {"this memory group": 2, "this machine": 5}


def test_this_machine_has_counts() -> None:
    assert all(count >= 0 for count in kernel_kills().values())
