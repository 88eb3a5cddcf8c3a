"""How far long work is, on stderr: one line of a terminal, or a line a minute of a file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY_S = 60.0
"""Between two lines in a file."""


@contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """Gives a function that shows a text in the place of the one before.

    In a file a text is a line of its own: the first, the last, and of those between them that differ from the line
    before at most one in EVERY_S.
    """
    shown, text, shown_at = "", "", 0.0
    is_terminal = sys.stderr.isatty()

    def show(new: str) -> None:
        nonlocal shown, text, shown_at
        text = new
        if is_terminal:
            print(f"\r{text:<{len(shown)}}", end="", file=sys.stderr, flush=True)
        elif text == shown or (shown and time.monotonic() - shown_at < EVERY_S):
            return
        else:
            print(text, file=sys.stderr, flush=True)
        shown, shown_at = text, time.monotonic()

    try:
        yield show
    finally:
        if is_terminal:
            print(file=sys.stderr)
        elif text != shown:
            print(text, file=sys.stderr, flush=True)
