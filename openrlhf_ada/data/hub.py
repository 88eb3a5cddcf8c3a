"""Data sets that only the library `datasets` loads: of a hub, and folders. Its errors in our words."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from openrlhf_ada.data.files import DataError
from openrlhf_ada.host.rows import cause_of

HUB_S = 5.0
"""Seconds in which a reachable hub answers."""


def hub_table(path: str, config: str | None, split: str, *, where: str, remedy: str) -> Any:
    """One split of a data set as a `datasets.Dataset`.

    Args:
        path: a hub id or a folder (saved by `datasets`, or of data files). `config`: of a hub id.
        where, remedy: of the message of an error.

    Raises:
        DataError: it cannot be reached or loaded, or has no such split.
    """
    if not os.path.isdir(path):
        go_offline_without_hub()
    with library_errors(where, remedy):
        import datasets

        loaded: Any
        if os.path.isdir(path) and _is_saved(path):
            loaded = datasets.load_from_disk(path)
        else:
            loaded = datasets.load_dataset(path, config or None)
    return one_split(loaded, split, where)


def one_split(loaded: Any, split: str, where: str) -> Any:
    """The split of what `datasets` has loaded; raises DataError."""
    import datasets

    if isinstance(loaded, datasets.Dataset):
        return loaded
    if split not in loaded:
        raise DataError(f"{where} has no split {split!r}, it has {', '.join(loaded)}: name one of these")
    return loaded[split]


def go_offline_without_hub() -> bool:
    """Without a hub, cached data then load at once, and all else fails at once. Returns whether it is so."""
    unreachable = os.environ.get("HF_HUB_OFFLINE") == "1" or _hub_is_unreachable()
    if unreachable:
        # Read when the libraries are imported.
        os.environ["HF_HUB_OFFLINE"] = "1"
    return unreachable


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
        cause = cause_of(error)
        reason = (str(cause).strip().splitlines() or ["no message"])[0][:200]
        raise DataError(f"{where} cannot be loaded ({type(cause).__name__}: {reason}). {remedy}") from error
    finally:
        datasets.logging.set_verbosity(before)


def _is_saved(path: str) -> bool:
    return any(os.path.exists(os.path.join(path, name)) for name in ("state.json", "dataset_dict.json"))


def hub_address() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co")


def _hub_is_unreachable() -> bool:
    """Is there no connection within HUB_S? The libraries would retry for half a minute, with a message each time."""
    if getproxies():
        # Whether a proxy reaches the hub is not known without a request.
        return False
    hub = urlsplit(hub_address())
    try:
        socket.create_connection((hub.hostname, hub.port or 443), timeout=HUB_S).close()
    except OSError:
        return True
    return False
