"""How many rows data sets have, where that can be told without loading them."""

from __future__ import annotations

from openrlhf_ada.data.checks import UNKNOWN, is_local, local_files
from openrlhf_ada.data.rows import read_rows


def count_rows(spec: str, split: str, flag: str) -> int:
    """Rows of the host's comma-separated list of `path[@data_dir]`; -1 where it cannot be told.

    Files are read; data sets of the hub say it in their card or in the cache. The hub is asked, which takes half a
    minute if it does not answer. Raises DataError for a file that is not what its ending says.
    """
    total = 0
    for part in spec.split(","):
        path, _, data_dir = part.strip().partition("@")
        rows = _count(path, data_dir or None, split, flag)
        if rows == UNKNOWN:
            return UNKNOWN
        total += rows
    return total


def _count(path: str, data_dir: str | None, split: str, flag: str) -> int:
    if is_local(path, flag):
        files = local_files(path, flag)
        return UNKNOWN if files is None else sum(1 for file in files for _ in read_rows(file, flag))
    return UNKNOWN if "://" in path else _count_on_hub(path, data_dir, split)


def _count_on_hub(name: str, data_dir: str | None, split: str) -> int:
    """-1 for a data set whose card does not say it, and where the hub does not answer: the host will say that."""
    from datasets import load_dataset_builder

    try:
        splits = load_dataset_builder(name, data_dir=data_dir).info.splits
    except (OSError, ValueError):
        return UNKNOWN
    return UNKNOWN if not splits or split not in splits else splits[split].num_examples
