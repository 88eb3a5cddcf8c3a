"""Where progress is shown: a line that changes in place on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from openrlhf_ada.reporting.output import Output

if TYPE_CHECKING:
    from rich.live import Live

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
REFRESH_PER_S = 4


class Display:
    """Lines, and on a terminal (`is_live`) one more at the bottom, which disappears at the end. What others print
    meanwhile goes above it: through `Output` where the stream is one, else by rich's own means. `status`: the live
    line, which is asked again and again, so that seconds go on counting."""

    def __init__(self, stream: TextIO, status: Callable[[], str]) -> None:
        self._stream = stream
        # Not rich's own test: it honours FORCE_COLOR, and would write control characters into a log file.
        self.is_live = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._live = _live(stream, status) if self.is_live else None
        if self._live and isinstance(stream, Output):
            stream.show_lines_with(self._show)

    def line(self, text: str) -> None:
        if self._live and not isinstance(self._stream, Output):
            self._show(text)
        else:
            self._stream.write(text + "\n")
            self._stream.flush()

    def _show(self, text: str) -> None:
        assert self._live is not None
        self._live.console.print(text, markup=False)

    def close(self) -> None:
        if self._live:
            if isinstance(self._stream, Output):
                self._stream.show_lines_with(None)
            self._live.stop()


def _live(stream: TextIO, status: Callable[[], str]) -> Live:
    from itertools import cycle

    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    frames, is_output = cycle(SPINNER), isinstance(stream, Output)
    terminal = stream.original if isinstance(stream, Output) else stream
    live = Live(
        get_renderable=lambda: Text(f"{next(frames)} {status()}", no_wrap=True, overflow="ellipsis"),
        # Highlighting would colour every number of a step's line.
        console=Console(file=terminal, force_terminal=True, highlight=False, soft_wrap=True),
        transient=True,
        refresh_per_second=REFRESH_PER_S,
        redirect_stdout=not is_output,
        redirect_stderr=not is_output,
    )
    live.start()
    return live
