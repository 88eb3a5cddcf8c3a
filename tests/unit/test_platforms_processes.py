"""What is read of /proc: states, work, and the methods in titles."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from openrlhf_ada.platforms.processes import WORKS_BYTES, Seen, has_worked, look, stopped_workers


def write(
    proc: Path, pid: int, parent: int, state: str = "S", title: str = "", ticks: int = 0, moved: int = 0
) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} (a) name) {state} {parent} " + " ".join(["0"] * 9) + f" {ticks} 0 0 0 20")
    (folder / "cmdline").write_text(title + "\0")
    (folder / "io").write_text(f"rchar: {moved}\nwchar: 1\nsyscr: 77\n")


def test_a_process_is_seen_with_all_below_it(tmp_path: Path) -> None:
    write(tmp_path, 10, 1, title="ray::PolicyModelActor.fit", ticks=3 * os.sysconf("SC_CLK_TCK"), moved=41)
    write(tmp_path, 11, 10)
    write(tmp_path, 12, 11, state="T")
    write(tmp_path, 13, 1, title="ray::RolloutRayActor")
    write(tmp_path, 14, 13, state="Z")
    (tmp_path / "sys").mkdir()
    assert look([10, 13, 99], tmp_path) == {
        10: Seen(12, {10: (3.0, 42), 11: (0.0, 1), 12: (0.0, 1)}, "fit"),
        13: Seen(0, {13: (0.0, 1)}, ""),
    }


def test_stopped_workers_of_this_session_are_found(tmp_path: Path) -> None:
    logs, proc = tmp_path / "session" / "logs", tmp_path / "proc"
    processes = {
        10: ("T", "ray::AdaPPOTrainer.__init__", logs),
        11: ("t", "ray::_QueueActor", logs),
        12: ("S", "ray::PolicyModelActor.__init__", logs),
        13: ("T", "ray::PolicyModelActor.fit", tmp_path / "other" / "logs"),
        14: ("T", "python train.py", logs),
    }
    for pid, (state, title, writes_to) in processes.items():
        write(proc, pid, 1, state=state, title=title)
        (proc / str(pid) / "fd").mkdir()
        (proc / str(pid) / "fd" / "1").symlink_to(writes_to / "worker-1.out")
    write(proc, 15, 1, state="T", title="ray::PolicyModelActor")
    assert stopped_workers(logs, proc) == {10: "AdaPPOTrainer", 11: "_QueueActor"}


def test_a_zombie_is_not_there(tmp_path: Path) -> None:
    write(tmp_path, 10, 1, state="Z")
    assert look([10], tmp_path) == {}


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


def test_a_real_process_that_is_stopped_is_seen_as_stopped() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert not look([process.pid])[process.pid].stopped
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert look([process.pid])[process.pid].stopped == process.pid
        process.kill()


def test_figures_are_those_of_psutil() -> None:
    me = psutil.Process()
    cpu, moved = look([me.pid])[me.pid].done[me.pid]
    after, io = me.cpu_times(), me.io_counters()
    assert 0 < cpu <= after.user + after.system + 1e-6 and 0 < moved <= io.read_chars + io.write_chars
