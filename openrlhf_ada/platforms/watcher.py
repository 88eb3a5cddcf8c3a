"""Ends what a killed driver leaves behind: Ray's processes, engines, and their shared memory.

A driver that ends in an orderly way ends all of it itself (`platforms/session.py`). One that is killed cannot, and
some of Ray's processes notice it after a minute and a half only. So a process of its own reads from a pipe that the
driver writes to: when the driver is gone, whatever the reason, the pipe ends.

    python watcher.py SESSION     stdin: the pipe
"""

from __future__ import annotations

import itertools
import os
import select
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # A bare installation has none.
    import psutil

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
        [sys.executable, "-I", __file__, session], stdin=subprocess.PIPE, start_new_session=True
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
    members: set[psutil.Process] = set()
    blocks: set[Path] = set()
    for look in itertools.count():
        ready, _, _ = select.select([pipe], [], [], LOOK_S)
        members = members_of(session, members)
        if ready or look % LOOKS_PER_BLOCKS == 0:
            blocks |= blocks_of([process.pid for process in members])
        if ready:
            if not os.read(pipe, len(DONE)):
                end(session, members)
            remove_unused(blocks)
            return


def members_of(session: str, known: Collection[psutil.Process] = ()) -> set[psutil.Process]:
    """Processes that live: those with the session in their environment, those of `known`, and all below them."""
    import psutil

    alive = [p for p in psutil.process_iter(["ppid", "status", "environ"]) if p.info["status"] != psutil.STATUS_ZOMBIE]
    found = {p for p in alive if p in known or (p.info["environ"] or {}).get(SESSION_VARIABLE) == session}
    while more := {p for p in alive if p.info["ppid"] in {process.pid for process in found}} - found:
        found |= more
    return {process for process in found if process.pid != os.getpid()}


def end(session: str, members: set[psutil.Process]) -> None:
    """Kill them, and what they start meanwhile."""
    import psutil

    deadline = time.monotonic() + END_S
    while members and time.monotonic() < deadline:
        for process in members:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.1)
        members = members_of(session, members)


def blocks_of(pids: Collection[int]) -> set[Path]:
    """Of shared memory that these processes hold."""
    prefix, found = str(SHARED_MEMORY / BLOCK).encode(), set[Path]()
    for pid in pids:
        # One that has ended, or is somebody else's.
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            lines = Path(f"/proc/{pid}/maps").read_bytes().splitlines()
            found |= {Path(os.fsdecode(line[line.index(prefix) :])) for line in lines if prefix in line}
    return found


def remove_unused(blocks: set[Path]) -> None:
    """Those that no process holds any more."""
    import psutil

    for path in blocks - blocks_of(psutil.pids()):
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    watch(sys.argv[1], sys.stdin.fileno())
