"""Where progress is shown: a line that changes in place on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Protocol, TextIO, TypeVar

from openrlhf_ada.reporting.output import Output

T = TypeVar("T")
Item = TypeVar("Item")

Status = Callable[[], str]
"""The live line. It is asked again and again, so that seconds go on counting."""

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
REFRESH_PER_S = 4


class Display(Protocol):
    """Where progress is shown. `is_live`: it has a line that changes in place."""

    is_live: bool

    def line(self, text: str) -> None: ...
    def status(self, status: Status) -> None: ...
    def close(self) -> None: ...


class _PlainDisplay:
    """Lines only; the live line is not shown."""

    is_live = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def line(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()

    def status(self, status: Status) -> None:
        pass

    def close(self) -> None:
        pass


class _LiveDisplay:
    """One line at the bottom, which disappears at the end. What others print meanwhile goes above it: through `Output`
    where the stream is one, else by rich's own means."""

    is_live = True

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        output = stream if isinstance(stream, Output) else None
        terminal = output.original if output else stream
        # Highlighting would colour every number of a step's line.
        self._console = Console(file=terminal, force_terminal=True, highlight=False, soft_wrap=True)
        self._status: Status = lambda: ""
        self._frames = 0
        self._output = output
        self._live = Live(
            get_renderable=lambda: Text(self._rendered(), no_wrap=True, overflow="ellipsis"),
            console=self._console,
            transient=True,
            refresh_per_second=REFRESH_PER_S,
            redirect_stdout=output is None,
            redirect_stderr=output is None,
        )
        self._live.start()
        if output:
            output.show_lines_with(self._show)

    def line(self, text: str) -> None:
        if self._output:
            self._output.write(text + "\n")
        else:
            self._show(text)

    def _show(self, text: str) -> None:
        self._console.print(text, markup=False)

    def status(self, status: Status) -> None:
        self._status = status

    def _rendered(self) -> str:
        self._frames += 1
        return f"{SPINNER[self._frames % len(SPINNER)]} {self._status()}"

    def close(self) -> None:
        if self._output:
            self._output.show_lines_with(None)
        self._live.stop()


def open_display(stream: TextIO) -> Display:
    """Live on a terminal, plain lines elsewhere."""
    # Not rich's own test: it honours FORCE_COLOR, and would write control characters into a log file.
    live = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return _LiveDisplay(stream) if live else _PlainDisplay(stream)


def on_each(items: Sequence[Item], doing: str, function: Callable[[Item], T]) -> list[T]:
    """What the function returns for each. A terminal shows which one is at work; elsewhere a line says what comes."""
    from rich.console import Console

    results: list[T] = []
    # Not rich's own test, as in `open_display`.
    console = Console(stderr=True, force_terminal=sys.stderr.isatty())
    if not console.is_terminal:
        console.print(f"{doing} {', '.join(dict.fromkeys(map(str, items)))}, some seconds each", soft_wrap=True)
    with console.status("") as status:
        for number, item in enumerate(items, start=1):
            status.update(f"{doing} {item} ({number} of {len(items)})")
            results.append(function(item))
    return results
