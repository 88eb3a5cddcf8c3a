"""Labels that their own grader cannot read: every answer to such a prompt would stay without a score.

They are looked for before a run starts, and reported with their rows; `prepare-data` leaves such rows out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from openrlhf_ada.data.checks import JSON_EXTENSIONS, read_rows
from openrlhf_ada.data.prepared import DRAWS
from openrlhf_ada.reward.pool import GraderPool, GradingLimits
from openrlhf_ada.reward.reward_function import GRADERS

MOST_SHOWN = 10
"""Rows of one data set that are reported one by one."""


@dataclass(frozen=True, slots=True)
class UnreadableLabel:
    """`place`: file and row, as an editor counts lines. `cause`: in the words of the grader."""

    place: str
    cause: str


def report_of(
    spec: str, *, label_key: str, reward: str, limits: GradingLimits, flag: str, limit: int | None = None
) -> list[str]:
    """Lines about the unreadable labels in the first `limit` rows of each data set of `spec`; see
    `unreadable_labels`."""
    lines: list[str] = []
    for path in (part.split("@")[0].strip() for part in spec.split(",")):
        found = unreadable_labels(path, label_key=label_key, reward=reward, limits=limits, flag=flag, limit=limit)
        lines += [f"{flag}: {one.place}: {one.cause}" for one in found[:MOST_SHOWN]]
        if found:
            lines.append(
                f"{flag}: {path} has {len(found)} labels that --reward.remote_url {reward} cannot read"
                f"{', of which the first are shown' if len(found) > MOST_SHOWN else ''}. Answers to these prompts get "
                f"no score and are replaced: correct the rows, or let `openrlhf-ada prepare-data` leave them out"
            )
    return lines


def unreadable_labels(
    path: str, *, label_key: str, reward: str, limits: GradingLimits, flag: str, limit: int | None = None
) -> list[UnreadableLabel]:
    """Each different label is read once by the grader `reward`, one of GRADERS, in processes of its own.

    Read are `.jsonl`, `.json` and `.parquet` files; other data sets, and what `prepare-data` has written after the
    same check, give an empty list. Raises DataError for a file that cannot be read.
    """
    places: dict[str, list[str]] = {}
    for place, label in islice(_labels(path, label_key, flag), limit):
        places.setdefault(json.dumps(label, default=str), []).append(place)
    if not places:
        return []
    with GraderPool(GRADERS[reward], limits) as pool, ThreadPoolExecutor(2 * pool.num_workers) as threads:
        # An empty response is a wrong answer to every label that can be read.
        grades = list(threads.map(lambda label: pool.grade("", json.loads(label)), places))
    return [
        UnreadableLabel(f"{path} {place}", grade.cause)
        for grade, found in zip(grades, places.values(), strict=True)
        if grade.score is None
        for place in found
    ]


def _labels(path: str, label_key: str, flag: str) -> Iterator[tuple[str, Any]]:
    """(place in the file, label)."""
    if not Path(path).is_file():
        return
    if path.endswith(JSON_EXTENSIONS):
        yield from ((place, row[label_key]) for place, row in read_rows(path, flag))
    elif path.endswith(".parquet"):
        yield from _labels_of_parquet(path, label_key)


def _labels_of_parquet(path: str, label_key: str) -> Iterator[tuple[str, Any]]:
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path)
    names = file.schema_arrow.names
    if DRAWS in names or label_key not in names:
        return
    number = 0
    for batch in file.iter_batches(columns=[label_key]):
        for label in batch.column(0).to_pylist():
            number += 1
            yield f"row {number}", label
