"""What OpenRLHF is handed of a data set: the data set itself, or a file without the rows that are left out.

OpenRLHF loads data when its engines run. Here the same loading happens before, and every row that comes out is
compared with the row of the file: the loader turns 10^30 into 1e30, "007" into 7 and dates into objects, and cannot
read columns whose values have several types.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openrlhf_ada.data.examples import DataSets, Example, load_part
from openrlhf_ada.data.files import DataError
from openrlhf_ada.data.hub import library_errors
from openrlhf_ada.data.left_out import LeftOut, why_few, write_left_out
from openrlhf_ada.data.prepared import write_parquet

Reader = Callable[[Sequence[Example]], dict[int, str]]
"""From examples to what is wrong with their labels, by position."""


@dataclass(frozen=True, slots=True)
class PromptRoom:
    """`tokens`: from examples and their flag to the numbers of tokens of their prompts; a prompt fits with at most
    `room`. `rule`: where that number is from."""

    tokens: Callable[[Sequence[Example], str], list[int]]
    room: int
    rule: str


@dataclass(frozen=True, slots=True)
class HandedOver:
    """`spec`: for OpenRLHF, in place of the given one if it is rewritten; `rows`: how many there are."""

    spec: str
    rows: int
    left_out: list[LeftOut] = field(default_factory=list)


def hand_over(
    sets: DataSets,
    examples: Sequence[Example],
    folder: Path,
    *,
    read: Reader | None = None,
    prompts: PromptRoom | None = None,
    listed: Path | None = None,
) -> HandedOver:
    """The same data sets for OpenRLHF, without the rows that are left out.

    Args:
        examples: of `read_examples(sets)`.
        folder: for the files that are written, where OpenRLHF cannot be handed the data sets themselves.
        read: reads labels; rows whose label cannot be read are left out, and so are those that `prompts` has no room
            for.
        listed: the file that gets the rows that are left out, also where none is left.

    Raises DataError: nothing is left of a data set, or it cannot be written.
    """
    left_out = _left_out(examples, sets.flag, {} if read is None else read(examples), prompts)
    if left_out and listed is not None:
        write_left_out(left_out.values(), listed)
    kept = [example for position, example in enumerate(examples) if position not in left_out]
    parts = sets.spec.split(",")
    needed = {example.part for example in examples}
    empty = next((parts[part].strip() for part in needed if all(e.part != part for e in kept)), None)
    if empty is not None:
        raise DataError(
            f"{sets.flag}: no row of {empty} can be used: {why_few(list(left_out.values()), len(examples), listed)}: "
            f"correct the data, or change the flags that this names"
        )
    plain = [[example.question for example in kept], [example.label for example in kept]]
    if not left_out and sets.rewards is None and _is_read_alike(sets, plain):
        return HandedOver(sets.spec, len(kept))
    spec = _write(sets, kept, _columns(sets, kept), folder)
    return HandedOver(spec, len(kept), list(left_out.values()))


def _left_out(
    examples: Sequence[Example], flag: str, unreadable: dict[int, str], prompts: PromptRoom | None
) -> dict[int, LeftOut]:
    """By position, with the cause."""
    found = {
        position: _leave_out(examples[position], cause, "with a label that cannot be read")
        for position, cause in unreadable.items()
    }
    if prompts is not None:
        asked = [position for position in range(len(examples)) if position not in found]
        for position, count in zip(asked, prompts.tokens([examples[p] for p in asked], flag), strict=True):
            if count > prompts.room:
                cause = f"the prompt has {count:,} tokens, and {prompts.rule} leaves {prompts.room:,}"
                found[position] = _leave_out(examples[position], cause, f"longer than {prompts.room:,} tokens")
    return dict(sorted(found.items()))


def _leave_out(example: Example, cause: str, kind: str) -> LeftOut:
    return LeftOut(example.source, example.place, cause, {"question": example.question, "label": example.label}, kind)


# -- is it the same for OpenRLHF? ---------------------------------------------------------------------------------


def _is_read_alike(sets: DataSets, expected: Sequence[Sequence[Any]]) -> bool:
    """Does OpenRLHF load exactly these questions and labels, in this order?"""
    count = len(expected[0])
    try:
        with library_errors(sets.flag, ""):
            table = load_part(sets, sets.spec)
            if any(key not in table.column_names for key in sets.columns.keys) or len(table) < count:
                return False
            values = [table[key][:count] for key in sets.columns.keys]
    except DataError:
        return False
    return all(
        _as_json(one) == _as_json(other)
        for column, wanted in zip(values, expected, strict=False)
        for one, other in zip(column, wanted, strict=True)
    )


def _as_json(value: Any) -> str:
    """Equal for equal values of equal types: 1 is neither 1.0 nor True. No reward expects a date or a decimal."""
    return json.dumps(_without_nulls(value), sort_keys=True, default=repr)


def _without_nulls(value: Any) -> Any:
    """Tables give all messages all keys, with null where a message has none."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


# -- files for OpenRLHF -------------------------------------------------------------------------------------------


def _write(sets: DataSets, examples: Sequence[Example], columns: dict[str, list[Any]], folder: Path) -> str:
    """One Parquet file per data set; returns the list for OpenRLHF."""
    if any(mark in str(folder.absolute()) for mark in ",@"):
        raise DataError(
            f"{sets.flag}: rows are left out, and OpenRLHF takes , and @ in {folder} for separators: name another "
            f"--ada_run_dir"
        )
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[str] = []
    name = "evaluation" if sets.flag.startswith("--eval") else "prompts"
    with library_errors(f"{sets.flag}: {sets.spec}", "Give all rows the same form."):
        for part in sorted({example.part for example in examples}):
            positions = [position for position, example in enumerate(examples) if example.part == part]
            rows = [{key: values[position] for key, values in columns.items()} for position in positions]
            paths.append(str(write_parquet(rows, folder.absolute() / f"{name}-{part}.parquet")))
    return ",".join(paths)


def _columns(sets: DataSets, examples: Sequence[Example]) -> dict[str, list[Any]]:
    """Questions, labels and the other columns, each of one type in all data sets."""
    columns: dict[str, list[Any]] = {sets.columns.input_key: _questions(examples)}
    if sets.columns.label_key is not None:
        columns[sets.columns.label_key] = _labels(examples)
    for key in sets.others:
        if any(key in example.others for example in examples) and key not in columns:
            columns[key] = [example.others.get(key) for example in examples]
    return columns


def _questions(examples: Sequence[Example]) -> list[Any]:
    """All text, or all chat messages: a chat template makes a message of text in any case."""
    questions = [example.question for example in examples]
    if all(isinstance(question, str) for question in questions):
        return questions
    return [[{"role": "user", "content": q}] if isinstance(q, str) else q for q in questions]


def _labels(examples: Sequence[Example]) -> list[Any]:
    """As they are if all have one simple type; else as text, and lists and objects as JSON."""
    labels = [example.label for example in examples]
    types = {type(label) for label in labels if label is not None}
    if len(types) <= 1 and types <= {str, int, float, bool}:
        return labels
    if types == {list} and all(isinstance(one, str) for label in labels for one in label or ()):
        return labels
    return [label if isinstance(label, str | None) else json.dumps(label, ensure_ascii=False) for label in labels]
