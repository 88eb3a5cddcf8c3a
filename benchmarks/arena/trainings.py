"""Trainings of the real stack as processes: one after the other, in a folder that no other call works in."""

from __future__ import annotations

import fcntl
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import psutil

from benchmarks.arena.progress_line import progress_line
from openrlhf_ada.platforms.processes import kill_rest

LOG = "train.log"
POLL_S = 1.0

END_S = 120.0
"""Seconds in which a run that was told to end has ended its Ray."""


class UnfinishedTrainingError(RuntimeError):
    """A training ended with an error, or before its budget was spent."""


def deadline(minutes: float | None) -> float:
    """Of the monotonic clock. Raises ValueError."""
    if minutes is not None and not 0 < minutes < math.inf:
        raise ValueError(f"--minutes {minutes:g}: expected a number above 0. Leave it out for no limit")
    return math.inf if minutes is None else time.monotonic() + 60.0 * minutes


@contextmanager
def alone(folder: Path) -> Iterator[IO[bytes]]:
    """Raises ValueError while another call works in this folder, or a training that it has left behind."""
    with (folder / "lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder} is in use by another call. Wait for it, or take another --out") from None
        yield lock


def run_training(
    flags: Sequence[str],
    run_dir: Path,
    lock: IO[bytes],
    progress: Callable[[], str],
    is_over: Callable[[], bool] = lambda: False,
    env: Mapping[str, str] | None = None,
) -> int | None:
    """Exit status of `openrlhf-ada train`, or None if it was told to end because it `is_over`."""
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / LOG).open("ab") as log:
        # In a session of its own: Ctrl-C is for this process, which then ends the training.
        process = subprocess.Popen(
            [sys.executable, "-m", "openrlhf_ada.cli.main", "train", *flags],
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[lock.fileno()],
            env=os.environ | (env or {}),
        )
    try:
        with progress_line() as show:
            while not is_over():
                status = process.poll()
                show(progress())
                if status is not None:
                    return status
                time.sleep(POLL_S)
        return None
    finally:
        end_training(process)


def end_training(process: subprocess.Popen[bytes]) -> None:
    """Let a training end its Ray; kill what is left."""
    if process.poll() is not None:
        return
    started = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        kill_rest(started, 0.0)
