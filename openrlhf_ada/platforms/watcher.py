"""Ends what a killed driver leaves behind: Ray's processes, engines, and their shared memory.

A driver that ends in an orderly way ends all of it itself (`platforms/session.py`). One that is killed cannot, and
some of Ray's processes notice it after a minute and a half only. So a process of its own reads from a pipe that the
driver writes to: when the driver is gone, whatever the reason, the pipe ends.

    python watcher.py SESSION     stdin: the pipe. It imports nothing but the standard library.
"""

from __future__ import annotations

import itertools
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SESSION_VARIABLE = "OPENRLHF_ADA_SESSION"
"""In the environment of all processes that the driver starts."""

SHARED_MEMORY = Path("/dev/shm")
BLOCK = "psm_"
"""How Python names blocks of shared memory. vLLM's tensor-parallel workers have hundreds of MiB in them."""

LOOK_S = 2.0
"""Processes of the session are noted so often: one whose parent has ended, and that wrote its title over its
environment as Ray's agents do, cannot be told any more."""

LOOKS_PER_BLOCKS = 5
"""Looks between two that note the blocks that engines hold, since a killed engine cannot be asked any more."""

END_S = 10.0

DONE = b"done"


@contextmanager
def watched_session() -> Iterator[int]:
    """While a Ray of this run's own is started, used and ended. Yields the watcher's pid."""
    session = f"{os.getpid()}-{time.time_ns()}"
    watcher = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, session], stdin=subprocess.PIPE, start_new_session=True
    )
    assert watcher.stdin is not None
    os.environ[SESSION_VARIABLE] = session
    try:
        yield watcher.pid
    finally:
        del os.environ[SESSION_VARIABLE]
        # Also where it was killed: then there is nothing to tell it.
        with watcher.stdin as pipe:
            if watcher.poll() is None:
                pipe.write(DONE)
        watcher.wait()


def watch(session: str, pipe: int) -> None:
    """Return when the driver says that it is done, or is gone and everything of its session with it."""
    members, blocks = Members(session), set[Path]()
    for look in itertools.count():
        ready, _, _ = select.select([pipe], [], [], LOOK_S)
        pids = members.look()
        if ready or look % LOOKS_PER_BLOCKS == 0:
            blocks |= blocks_of(pids)
        if ready:
            if not os.read(pipe, len(DONE)):
                end(members)
            remove_unused(blocks)
            return


class Members:
    """Processes of this user with the session in their environment, and all that were ever seen below them."""

    def __init__(self, session: str) -> None:
        self._mark = f"{SESSION_VARIABLE}={session}".encode()
        # Each with the time of its start, since a pid may be given again.
        self._seen: set[tuple[int, bytes]] = set()

    def look(self) -> list[int]:
        """Pids of those that live."""
        alive = {pid: facts for pid in _pids() if (facts := _parent_and_start(pid)) is not None}
        found = {pid for pid, (_, start) in alive.items() if (pid, start) in self._seen or self._is_marked(pid)}
        while more := {pid for pid, (parent, _) in alive.items() if parent in found and pid not in found}:
            found |= more
        found.discard(os.getpid())
        self._seen = {(pid, alive[pid][1]) for pid in found}
        return sorted(found)

    def _is_marked(self, pid: int) -> bool:
        return self._mark in _read(pid, "environ").split(b"\0")


def end(members: Members) -> None:
    """Kill them, and what they start meanwhile."""
    deadline = time.monotonic() + END_S
    while (pids := members.look()) and time.monotonic() < deadline:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.1)


def blocks_of(pids: list[int]) -> set[Path]:
    """Of shared memory that these processes hold."""
    prefix = str(SHARED_MEMORY / BLOCK).encode()
    lines = (line for pid in pids for line in _read(pid, "maps").splitlines())
    return {Path(os.fsdecode(line[line.index(prefix) :])) for line in lines if prefix in line}


def remove_unused(blocks: set[Path]) -> None:
    """Those that no process holds any more."""
    for path in blocks - blocks_of(_pids()):
        path.unlink(missing_ok=True)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _parent_and_start(pid: int) -> tuple[int, bytes] | None:
    """None of a process that has ended, or only waits to be asked for its status."""
    # The name in brackets may hold anything.
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return (int(fields[1]), fields[19]) if fields and fields[0] != b"Z" else None


def _read(pid: int, name: str) -> bytes:
    """Empty of a process that has ended or is somebody else's."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


if __name__ == "__main__":
    watch(sys.argv[1], sys.stdin.fileno())
