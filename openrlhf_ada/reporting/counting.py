"""Progress of a command that counts: a live line on a terminal, plain lines elsewhere, the first one at once."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

from openrlhf_ada.config.visible import as_told
from openrlhf_ada.reporting.display import Display
from openrlhf_ada.reporting.progress import time_left

LINES_EVERY_S = 10.0
"""Seconds between plain lines."""


class Counting:
    """A context manager. `phase` and `count` begin something, `advance` counts; callable from any thread. `stream`:
    where to write, standard error if None; `clock`: monotonic seconds."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Reentrant: a signal handler may run in the thread that is just showing something.
        self._lock = threading.RLock()
        self._begin("", "", None)
        self._display = Display(sys.stderr if stream is None else stream, self.line)

    def __enter__(self) -> Counting:
        return self

    def __exit__(self, *exception: object) -> None:
        self._display.close()

    def note(self, text: str) -> None:
        """A line that stays."""
        with self._lock:
            self._display.line(as_told(text))

    def phase(self, text: str) -> None:
        """Something begins that cannot be counted."""
        self._begin(text, "", None)
        self.note(text)

    def count(self, text: str, unit: str, total: int) -> None:
        """Something of `total` parts begins."""
        self._begin(text, unit, total)
        self.note(self.line())

    def advance(self, right: bool | None = None) -> None:
        """One part is done. `right`: was it a right answer? None where nothing is right or wrong."""
        with self._lock:
            self._done += 1
            self._right += bool(right)
            self._shows_right |= right is not None
            is_due = not self._display.is_live and self._clock() - self._last_line_at >= LINES_EVERY_S
            if is_due or self._done == self._total:
                self._last_line_at = self._clock()
                self._display.line(self.line())

    def line(self) -> str:
        """What is going on, how far it is, and how long it will take."""
        elapsed = self._clock() - self._began
        if self._total is None:
            return f"{self._text} ({elapsed:.0f} s)" if elapsed >= 1 else self._text
        parts = [f"{self._text}: {self._done:,}/{self._total:,} {self._unit}"]
        if self._done and self._shows_right:
            parts.append(f"{self._right / self._done:.0%} right so far")
        if self._done == self._total:
            parts.append(f"{elapsed:.0f} s")
        elif self._done:
            parts.append(time_left(elapsed / self._done * (self._total - self._done)))
        return ", ".join(parts)

    def _begin(self, text: str, unit: str, total: int | None) -> None:
        with self._lock:
            self._text, self._unit, self._total = text, unit, total
            self._done = self._right = 0
            self._shows_right = False
            self._began = self._last_line_at = self._clock()
