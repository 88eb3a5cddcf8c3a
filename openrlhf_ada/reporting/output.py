"""Keeps what the driver prints: the terminal shows it, and the run folder gets it as `log.txt`."""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from openrlhf_ada.config.visible import REMOVED, without_logins

LOG_FILE = "log.txt"

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, movements of the cursor
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles of windows, links
    r"|\x1b[@-Z\\-_]"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plain(line: str) -> str:
    """A line without what only a terminal understands. Of a line that was written over in place, its last text."""
    return _CONTROLS.sub("", _ESCAPES.sub("", line.rstrip("\r")).rpartition("\r")[2])


class LogText:
    """The text of a run's log: kept in memory until `write_to` names the file. Each line has its time in front.

    A file that takes no more text, as on a full disk, ends the log and nothing else. All of it may be called from any
    thread.
    """

    def __init__(self) -> None:
        self._secrets: list[str] = []
        self._lock = threading.RLock()
        self._early: list[str] | None = []
        self._file: TextIO | None = None
        self._loss = ""

    def write_to(self, path: Path, secrets: Sequence[str]) -> None:
        """From here on into this file, at its end, without the secrets. Its folder is created."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock:
            # The longest first: one may be a part of another.
            self._secrets = sorted(secrets, key=len, reverse=True)
            self._file = path.open("a", encoding="utf-8", errors="backslashreplace")
            early, self._early = self._early, None
            for line in early or ():
                self._put(line)

    def line(self, text: str) -> str:
        """Add one line. Returns why the file takes no more text, once; "" if it does."""
        stamped = f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {plain(text)}".rstrip()
        with self._lock:
            if self._early is None:
                self._put(stamped)
            else:
                self._early.append(stamped)
            loss, self._loss = self._loss, ""
            return loss

    def _put(self, line: str) -> None:
        if self._file is None:
            return
        for secret in self._secrets:
            line = line.replace(secret, REMOVED)
        try:
            self._file.write(without_logins(line) + "\n")
            self._file.flush()
        except OSError as error:
            self._loss = f"{self._file.name} takes no more text ({error.strerror}): what follows is shown here alone"
            # It would write what is left in its buffer.
            with suppress(OSError):
                self._file.close()
            self._file = None

    def close(self) -> None:
        """End the file; later lines are dropped with the object."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None


class Output:
    """In place of sys.stdout or sys.stderr: passes everything on to the stream, and whole lines to the log.

    While a live line is shown, whole lines are given to it instead of to the stream, so that they appear above it.
    """

    def __init__(self, original: TextIO, log: LogText) -> None:
        self.original = original
        self._log = log
        self._lock = threading.RLock()
        self._begun = ""
        self._show: Callable[[str], None] | None = None

    def show_lines_with(self, show: Callable[[str], None] | None) -> None:
        """Show whole lines with this function; None: write to the stream again, as it comes."""
        with self._lock:
            self._show = show

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._begun = (self._begun + text).split("\n")
            loss = "".join([self._log.line(line) for line in lines])
            if self._show:
                for line in (*lines, loss) if loss else lines:
                    self._show(without_logins(line))
            else:
                self.original.write(without_logins(text) + (f"{loss}\n" if loss else ""))
        return len(text)

    def end(self) -> None:
        """Log a last line that has no end."""
        if self._begun:
            self._log.line(self._begun)
            self._begun = ""

    def __getattr__(self, name: str) -> Any:
        """Whatever else a stream has: flush, isatty, fileno, encoding, ..."""
        return getattr(self.original, name)


@contextmanager
def kept_output() -> Iterator[LogText]:
    """Within the block, all that this process prints is also kept as a log, which the caller may give a file.

    An exception that leaves the block is logged with its traceback.
    """
    log = LogText()
    streams = {name: Output(getattr(sys, name), log) for name in ("stdout", "stderr")}
    handlers = [h for h in logging.getLogger().handlers if isinstance(h, logging.StreamHandler)]
    # A handler keeps the stream that it was made with.
    moved = [(h, h.stream, s) for h in handlers for s in streams.values() if h.stream is s.original]
    try:
        for name, output in streams.items():
            setattr(sys, name, output)
        for handler, _, output in moved:
            handler.setStream(output)
        yield log
    except BaseException as error:
        if not isinstance(error, SystemExit):
            for line in "".join(traceback.format_exception(error)).splitlines():
                log.line(line)
        raise
    finally:
        for handler, original, _ in moved:
            handler.setStream(original)
        for name, output in streams.items():
            output.end()
            setattr(sys, name, output.original)
        log.close()
