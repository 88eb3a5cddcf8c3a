"""How many rows data sets have, where that can be told without loading them."""

from __future__ import annotations

import glob
import os

from openrlhf_ada.data.checks import JSON_EXTENSIONS, UNKNOWN, DataError, read_rows


def count_rows(spec: str, split: str, flag: str) -> int:
    """Rows of the host's comma-separated list of `path[@data_dir]`; -1 where it cannot be told.

    JSON files are read, Parquet files say it at their end, and data sets of the hub in their card or in the cache. The
    hub is asked, which takes half a minute if it does not answer. Raises DataError for a file that is not what its
    ending says.
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
    files = sorted(glob.glob(path, recursive=True))
    if files and all(file.endswith(JSON_EXTENSIONS) for file in files):
        return sum(1 for file in files for _ in read_rows(file, flag))
    if files and all(file.endswith(".parquet") for file in files):
        return sum(_count_parquet(file, flag) for file in files)
    return UNKNOWN if os.path.exists(path) or "://" in path else _count_on_hub(path, data_dir, split)


def _count_parquet(file: str, flag: str) -> int:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_metadata(file).num_rows
    except pyarrow.ArrowInvalid as error:
        raise DataError(f"{flag}: {file} is no Parquet file ({error}): give another, or rename it") from error


def _count_on_hub(name: str, data_dir: str | None, split: str) -> int:
    """-1 for a data set whose card does not say it, and where the hub does not answer: the host will say that."""
    from datasets import load_dataset_builder

    try:
        splits = load_dataset_builder(name, data_dir=data_dir).info.splits
    except (OSError, ValueError):
        return UNKNOWN
    return UNKNOWN if not splits or split not in splits else splits[split].num_examples
