"""How a process ended that is not a child of ours, and what Linux counts of kills for want of memory."""

from __future__ import annotations

import errno
import os
import platform
import signal
import subprocess
import threading
from pathlib import Path

import psutil
import pytest

from openrlhf_ada.platforms.exits import Exits, how_it_ended, kernel_kills

TELLS = tuple(int(part) for part in platform.release().split(".")[:2]) >= (6, 15)


@pytest.mark.parametrize(
    ("end", "expected"),
    [("kill -KILL $$", -signal.SIGKILL), ("kill -SEGV $$", -signal.SIGSEGV), ("exit 3", 3)],
)
def test_the_end_of_a_grandchild_is_known(tmp_path: Path, end: str, expected: int) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (tmp_path / "child").write_text(f"read line < {gate}\n{end}\n")
    script = f"sh {tmp_path / 'child'} & echo $!; wait; read line"
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None and parent.stdin is not None
        pid, exits = int(parent.stdout.readline()), Exits()
        exits.follow([pid, parent.pid])
        child = psutil.Process(pid)
        gate.write_text("go\n")
        # Its parent may fetch the status a moment later.
        child.wait(timeout=10)
        assert exits.status(parent.pid) is None
        assert exits.status(pid, 10.0) == (expected if TELLS else None)
        exits.close()
        parent.stdin.write("\n")


def test_a_status_is_known_from_when_the_parent_has_fetched_it() -> None:
    exits = Exits()
    with subprocess.Popen(["sleep", "60"]) as process:
        exits.follow([process.pid])
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert exits.status(process.pid) is None
        threading.Timer(0.2, process.wait).start()
        assert exits.status(process.pid, 10.0) == (-signal.SIGKILL if TELLS else None)
    exits.close()


def test_a_process_that_was_not_followed_has_no_status() -> None:
    assert Exits().status(os.getpid()) is None


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


@pytest.mark.parametrize("reason", [errno.ENOSYS, errno.EPERM])
def test_an_older_linux_tells_no_status(monkeypatch: pytest.MonkeyPatch, reason: int) -> None:
    def refuse(pid: int) -> int:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    exits = Exits()
    exits.follow([os.getpid()])
    assert exits.status(os.getpid()) is None
    exits.close()
