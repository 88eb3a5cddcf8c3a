"""Processes below this one. Each may end between two questions about it, which is no error here."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # A bare installation has none.
    import psutil


def children_named(names: Collection[str]) -> Iterator[tuple[psutil.Process, str]]:
    """(child, its name). One that has ended and was waited for has none."""
    import psutil

    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            name = child.name()
            if name in names:
                yield child, name


def kill_rest(processes: Collection[psutil.Process], after_s: float) -> list[psutil.Process]:
    """Kill those that are still there after so many seconds; returns them."""
    import psutil

    _, alive = psutil.wait_procs(list(processes), timeout=after_s)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    return alive
