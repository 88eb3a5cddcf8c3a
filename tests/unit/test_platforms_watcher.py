"""What is left of a driver that was killed, with real processes and real shared memory."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from openrlhf_ada.platforms import watcher

DRIVER = """
import os, subprocess, sys, time
from openrlhf_ada.platforms.watcher import watched_session

HOLDS = '''
import time
from multiprocessing import resource_tracker, shared_memory
block = shared_memory.SharedMemory(create=True, size=100)
resource_tracker.unregister(block._name, "shared_memory")
print(block.name, flush=True)
time.sleep(600)
'''

with watched_session():
    holder = subprocess.Popen([sys.executable, "-c", HOLDS], stdout=subprocess.PIPE, text=True, start_new_session=True)
    child = subprocess.Popen(["sh", "-c", "sleep 600 & wait"], start_new_session=True)
    bare = subprocess.Popen(["sh", "-c", "env -i sleep 600 & wait"], start_new_session=True)
    name = holder.stdout.readline().strip()
    time.sleep(0.5)
    print(name, flush=True)
    if sys.argv[1] == "ends":
        holder.kill(), child.kill(), bare.kill()
        holder.wait(), child.wait(), bare.wait()
    else:
        time.sleep(600)
"""


@pytest.fixture
def start() -> Iterator[Callable[[str], tuple[subprocess.Popen[str], Path]]]:
    """Starts a driver that `ends` or `stays`; (it, the block of shared memory that its child holds)."""
    started: list[psutil.Process] = []
    blocks: list[Path] = []

    def call(how: str) -> tuple[subprocess.Popen[str], Path]:
        driver = subprocess.Popen([sys.executable, "-c", DRIVER, how], stdout=subprocess.PIPE, text=True)
        assert driver.stdout is not None
        block = watcher.SHARED_MEMORY / driver.stdout.readline().strip()
        blocks.append(block)
        with suppress(psutil.NoSuchProcess):
            started.extend(psutil.Process(driver.pid).children(recursive=True))
        return driver, block

    yield call
    for process in started:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    for block in blocks:
        block.unlink(missing_ok=True)


@pytest.mark.slow
def test_killed_driver_leaves_nothing(start: Callable[[str], tuple[subprocess.Popen[str], Path]]) -> None:
    """Neither a child of a child, nor one with another environment, nor shared memory."""
    driver, block = start("stays")
    below = psutil.Process(driver.pid).children(recursive=True)
    assert len(below) >= 6 and block.exists()
    driver.send_signal(signal.SIGKILL)
    assert driver.wait() == -signal.SIGKILL
    assert psutil.wait_procs(below, timeout=30)[1] == []
    assert not block.exists()


@pytest.mark.slow
def test_driver_that_ends_is_followed_by_its_watcher(
    start: Callable[[str], tuple[subprocess.Popen[str], Path]],
) -> None:
    driver, _ = start("ends")
    assert driver.wait(timeout=60) == 0


def test_blocks_that_somebody_holds_stay() -> None:
    """A block as Python makes it; its own would start a process that stays."""
    path = watcher.SHARED_MEMORY / f"{watcher.BLOCK}{os.getpid()}"
    path.write_bytes(b"0" * 100)
    try:
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 100):
            assert path in watcher.blocks_of([os.getpid()])
            watcher.remove_unused({path})
            assert path.exists()
        watcher.remove_unused({path})
        assert not path.exists()
    finally:
        path.unlink(missing_ok=True)


def test_only_processes_of_the_session_are_its_members() -> None:
    marked = subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"], watcher.SESSION_VARIABLE: "mine"})
    other = subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"], watcher.SESSION_VARIABLE: "mine-too"})
    try:
        deadline = time.monotonic() + 10
        while (found := watcher.members_of("mine")) != {psutil.Process(marked.pid)} and time.monotonic() < deadline:
            time.sleep(0.1)
        assert found == {psutil.Process(marked.pid)}
    finally:
        for process in (marked, other):
            process.kill()
            process.wait()


def test_a_process_without_the_mark_stays_a_member_when_its_parent_ends() -> None:
    """So are Ray's agents: their title lies over their environment, and Ray's daemon ends with the driver."""
    environment = {"PATH": os.environ["PATH"], watcher.SESSION_VARIABLE: "lost"}
    command = "env -i sleep 60 & echo $!; wait"
    parent = subprocess.Popen(["sh", "-c", command], env=environment, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    try:
        while child.name() != "sleep" or watcher.SESSION_VARIABLE in child.environ():
            time.sleep(0.05)
        members = watcher.members_of("lost")
        assert members == {psutil.Process(parent.pid), child}
        parent.kill()
        parent.wait()
        assert watcher.members_of("lost", members) == {child} and watcher.members_of("lost") == set()
    finally:
        child.kill()
