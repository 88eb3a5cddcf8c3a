"""Data sets that only the library `datasets` loads: of a hub, and folders. Its errors in our words."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from openrlhf_ada.data.files import DataError, Row, format_of

HUB_S = 5.0
"""Seconds in which a reachable hub answers."""


def library_rows(
    load: Callable[[], Any], path: str, where: str, remedy: str, columns: Sequence[str] = ()
) -> Iterator[Row]:
    """(place, row) of the table that `load` gives.

    Args:
        path: of the data set: a hub id, an address, a table or a folder.
        where, remedy: of the message of an error; the remedy where it is not here.
        columns: those that are wanted, dots for nested ones; none: all.

    Raises DataError: it cannot be reached or loaded.
    """
    if format_of(path) is None and not os.path.isdir(path) and "://" not in path and _hub_is_unreachable():
        # Cached data then load at once, and all else fails at once. Read when the libraries are imported.
        os.environ["HF_HUB_OFFLINE"] = "1"
    if os.path.lexists(path):
        remedy = "Copy the data again, or convert them to .jsonl"
    with library_errors(where, remedy):
        table = load()
        parts = {part.strip() for key in columns for part in (key, *key.split(","))}
        wanted = {name for part in parts for name in (part, part.partition(".")[0])}
        table = table.select_columns([name for name in table.column_names if name in wanted]) if wanted else table
    yield from ((f"row {number}", row) for number, row in enumerate(table, start=1))


@contextmanager
def library_errors(where: str, remedy: str) -> Iterator[None]:
    """Raises DataError for all that `datasets` raises on data that it cannot load; it prints nothing."""
    import datasets
    from datasets.exceptions import DatasetsError

    datasets.disable_progress_bars()
    before = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    # A StopIteration is what it makes of a file whose name looks like a pattern.
    known = (OSError, ValueError, RuntimeError, DatasetsError, KeyError, TypeError, StopIteration, AttributeError)
    try:
        yield
    except DataError:
        raise
    except known as error:
        # Of what a row did to `datasets`, it says nothing itself.
        cause = error.__cause__ or error
        reason = (str(cause).strip().splitlines() or ["no message"])[0][:200]
        raise DataError(f"{where} cannot be loaded ({type(cause).__name__}: {reason}). {remedy}") from error
    finally:
        datasets.logging.set_verbosity(before)


def _hub_is_unreachable() -> bool:
    """Is there no connection within HUB_S? The libraries would retry for half a minute, with a message each time."""
    if getproxies():
        # Whether a proxy reaches the hub is not known without a request.
        return False
    hub = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    try:
        socket.create_connection((hub.hostname, hub.port or 443), timeout=HUB_S).close()
    except OSError:
        return True
    return False
