"""vLLM loads this (entry point `vllm.general_plugins`) in each of its processes: their start can be followed, on a CPU
they may use AMX, and they must not outlive their parent.

An engine core whose Ray actor is killed is re-parented and goes on, holding a core and gigabytes. Only engines of our
own runs ask Linux to end them with their parent: it looks at the thread that started them, and other programs start
theirs from threads that end.

vLLM answers no call before it is up. Downloading and compiling a large model takes many minutes, in a process of its
own, and its log is quiet by default. So the last line that any of its processes has logged is in a file that others
read.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from openrlhf_ada.platforms.signals import end_with_parent

RUN_VARIABLE = "OPENRLHF_ADA_RUN"
"""Set in every Ray worker of our runs, and inherited by the engines that they start."""

FILE_VARIABLE = "OPENRLHF_ADA_START_LOG"
"""File of the last line, in the environment of an engine's processes while it starts."""

LONGEST = 200
"""Characters that are kept of a line."""


def register() -> None:
    """Let a start be followed, and a CPU be used; end this process with its parent, if it is one of vLLM's
    sub-processes in a run of ours."""
    from vllm.platforms import current_platform

    keep_last_line()
    if current_platform.is_cpu():
        from openrlhf_ada.platforms.without_gpu import ask_for_amx

        ask_for_amx()
    parent = multiprocessing.parent_process()
    if parent is None or RUN_VARIABLE not in os.environ:
        return
    from tqdm import tqdm

    # Its own is between processes, and stays in shared memory when this one is killed.
    tqdm.set_lock(threading.RLock())
    end_with_parent(signal.SIGKILL)
    if not parent.is_alive():
        # It ended before the request was in place.
        os.kill(os.getpid(), signal.SIGKILL)


class LastLine(logging.Handler):
    """Writes each line of vLLM's log over the one before, until the file is taken away."""

    def __init__(self, path: Path, level: int) -> None:
        super().__init__(logging.INFO)
        self._path = path
        self._usual_level = level

    def emit(self, record: logging.LogRecord) -> None:
        """Several processes may write: each line replaces the file, so that a reader never sees half of one."""
        line = record.getMessage().strip().partition("\n")[0][:LONGEST]
        new = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            new.write_text(line, encoding="utf-8")
            if self._path.exists():
                new.replace(self._path)
            else:
                new.unlink()
                self._stop()
        except OSError:
            # The folder is gone, or the disk is full: following a start must not end it.
            self._stop()

    def _stop(self) -> None:
        """The engine is up: vLLM logs as it did before."""
        vllm = logging.getLogger("vllm")
        vllm.removeHandler(self)
        vllm.setLevel(self._usual_level)


def keep_last_line() -> None:
    """Called in each of vLLM's processes; without effect outside of a start that somebody follows.

    vLLM's own handler keeps its level, so what it prints stays the same.
    Contract: test_vllm_engine.test_vllms_loggers_can_be_followed_without_printing_more
    """
    path, vllm = os.environ.get(FILE_VARIABLE), logging.getLogger("vllm")
    if not path or any(isinstance(handler, LastLine) for handler in vllm.handlers):
        return
    vllm.addHandler(LastLine(Path(path), vllm.level))
    vllm.setLevel(min(vllm.level, logging.INFO))


@contextmanager
def followed_start() -> Iterator[Path]:
    """The file of the last line, empty at first, for the processes that are started within the block."""
    with tempfile.TemporaryDirectory(prefix="ada-start-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "last_line"
        path.touch()
        os.environ[FILE_VARIABLE] = str(path)
        try:
            yield path
        finally:
            del os.environ[FILE_VARIABLE]
