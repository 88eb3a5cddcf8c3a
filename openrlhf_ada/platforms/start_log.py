"""What vLLM is doing while it starts: the last line that any of its processes has logged, in a file that others read.

vLLM answers no call before it is up. Downloading and compiling a large model takes many minutes, in a process of its
own, and its log is quiet by default.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FILE_VARIABLE = "OPENRLHF_ADA_START_LOG"
"""File of the last line, in the environment of an engine's processes while it starts."""

LONGEST = 200
"""Characters that are kept of a line."""


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
