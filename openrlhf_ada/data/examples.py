"""The rows of a list of data sets as a run uses them, each with its place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from openrlhf_ada.data.checks import Columns, is_local, local_files, question_and_label
from openrlhf_ada.data.files import DataError, kind_of
from openrlhf_ada.data.hub import go_offline_without_hub, library_errors
from openrlhf_ada.data.prepared import DRAWS, POSITIVES
from openrlhf_ada.data.row_rewards import RowRewards
from openrlhf_ada.data.rows import Row, read_rows
from openrlhf_ada.data.values import UnfitError
from openrlhf_ada.host.rows import load_blended
from openrlhf_ada.reward.mixed import label_of

DATASOURCE = "datasource"
"""The column by which OpenRLHF groups an evaluation."""


@dataclass(frozen=True, slots=True)
class DataSets:
    """What the flags say of a list of data sets. `spec`: as OpenRLHF takes it. `most_rows`: of all data sets, or of
    each if they are `blended` with probabilities. `rewards`: where each row names its grader."""

    flag: str
    spec: str
    columns: Columns
    split: str = "train"
    image_key: str = "images"
    most_rows: int = 100_000_000
    blended: bool = False
    use_ms: bool = False
    rewards: RowRewards | None = None

    @property
    def others(self) -> tuple[str, ...]:
        """Columns that a run reads where they are there."""
        return (DATASOURCE, self.image_key, DRAWS, POSITIVES)


@dataclass(frozen=True, slots=True)
class Example:
    """One row. `part`: number of its data set in the list; `others`: its columns of `DataSets.others`."""

    part: int
    source: str
    place: str
    question: Any
    label: Any
    others: dict[str, Any] = field(default_factory=dict)


def read_examples(sets: DataSets) -> list[Example]:
    """All rows, in the order of the list. Raises DataError for the first row that no run can use."""
    examples: list[Example] = []
    for part, entry in enumerate(sets.spec.split(",")):
        left = sets.most_rows if sets.blended else sets.most_rows - len(examples)
        before = len(examples)
        for source, place, row in islice(_rows(entry.strip(), sets), max(left, 0)):
            examples.append(_example(part, source, place, row, entry.strip(), sets))
        if left > 0 and len(examples) == before:
            raise DataError(f"{sets.flag}: {entry.strip()} holds no rows: give a data set with at least one prompt")
    return examples


def _rows(entry: str, sets: DataSets) -> Iterator[tuple[str, str, Any]]:
    """(file or data set, place, row)."""
    path = entry.split("@")[0].strip()
    files = local_files(path, sets.flag) if is_local(path, sets.flag) else None
    if files is None:
        yield from ((path, place, row) for place, row in _rows_of_library(entry, path, sets))
        return
    if sets.split != "train":
        flag = "--eval.split" if sets.flag.startswith("--eval") else "--data.prompt_split"
        raise DataError(
            f"{sets.flag}: {path} is a file, which is one split named 'train', and {flag} is {sets.split!r}: leave "
            f"{flag} out"
        )
    columns = [key for key in (sets.columns.input_key, sets.columns.label_key) if key]
    optional = [*sets.others, *([sets.rewards.key] if sets.rewards and sets.rewards.key else [])]
    for file in files:
        yield from ((file, place, row) for place, row in read_rows(file, sets.flag, columns, optional))


def _rows_of_library(entry: str, path: str, sets: DataSets) -> Iterator[Row]:
    where = f"{sets.flag}: {path}"
    if kind_of(path) is None and "://" not in path:
        go_offline_without_hub()
    with library_errors(where, "Check the name, or give a local file (.jsonl or .parquet)."):
        table = load_blended(entry, max_count=sets.most_rows, split=sets.split, use_ms=sets.use_ms)
    yield from ((f"row {number}", row) for number, row in enumerate(table, start=1))


def _example(part: int, source: str, place: str, row: Any, entry: str, sets: DataSets) -> Example:
    try:
        question, label = question_and_label(row, sets.columns)
        if sets.rewards is not None:
            label = label_of(*sets.rewards.split(row, label, entry.split("@")[0].strip()))
    except UnfitError as error:
        raise DataError(error.at(f"{sets.flag}: {source} {place}")) from error
    others = {key: row[key] for key in sets.others if row.get(key) is not None}
    return Example(part, source, place, question, label, others)
