"""The rows of a list of data sets as a run uses them, each with its place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from openrlhf_ada.data.files import DataError
from openrlhf_ada.data.hub import library_rows
from openrlhf_ada.data.prepared import DRAWS, POSITIVES
from openrlhf_ada.data.questions import Columns, UnfitError, question_and_label
from openrlhf_ada.data.row_rewards import RowRewards
from openrlhf_ada.data.rows import text_rows
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
    rows = text_rows(path, sets.flag)
    if rows is None:
        key = [sets.rewards.key] if sets.rewards and sets.rewards.key else []
        wanted = [*sets.columns.keys, *sets.others, *key]
        table = library_rows(lambda: load_part(sets, entry), path, f"{sets.flag}: {path}", "Check the name", wanted)
        return ((path, place, row) for place, row in table)
    if sets.split != "train":
        flag = "--eval.split" if sets.flag.startswith("--eval") else "--data.prompt_split"
        raise DataError(
            f"{sets.flag}: {path} is a file, which has the split 'train' only: leave out {flag} {sets.split}"
        )
    return rows


def load_part(sets: DataSets, spec: str) -> Any:
    """What OpenRLHF loads for data sets of the list."""
    return load_blended(spec, max_count=sets.most_rows, split=sets.split, use_ms=sets.use_ms)


def _example(part: int, source: str, place: str, row: Any, entry: str, sets: DataSets) -> Example:
    try:
        question, label = question_and_label(row, sets.columns)
        if sets.rewards is not None:
            label = label_of(*sets.rewards.split(row, label, entry.split("@")[0].strip()))
    except UnfitError as error:
        raise DataError(error.at(f"{sets.flag}: {source} {place}")) from error
    others = {key: row[key] for key in sets.others if row.get(key) is not None}
    return Example(part, source, place, question, label, others)
