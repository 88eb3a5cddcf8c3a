"""The demo's task: arithmetic of graded difficulty, as short few-shot completion prompts.

Prompt tokens dominate the cost of a step on a CPU, so a prompt is two solved sums and the question ("3+4="), at most
24 tokens of SmolLM2 (one per character), and an answer is at most 3 characters and a newline.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from openrlhf_ada.demo.artifacts import write_jsonl

SHOTS = "12+7=19\n25+31=56\n"
"""What every prompt begins with, in both files; these sums themselves are never asked."""

_HELDOUT_SHARE = 0.3
"""Share of each level's expressions that is set apart for evaluation, whatever number of rows is asked for."""


@dataclass(frozen=True, slots=True)
class Level:
    """One difficulty: expressions of so many `terms` whose largest operand lies in a range (inclusive).

    `weight` is the level's share of the rows, as far as its expressions suffice.
    """

    name: str
    weight: float
    operator: str
    terms: int
    largest: tuple[int, int]


LEVELS = (
    Level("mul-1digit", 0.15, "*", 2, (0, 10)),
    Level("add-1digit", 0.20, "+", 2, (0, 9)),
    Level("add-to-20", 0.20, "+", 2, (10, 20)),
    Level("sub-1digit", 0.15, "-", 2, (0, 9)),
    Level("sub-to-20", 0.20, "-", 2, (10, 20)),
    Level("add-3terms", 0.10, "+", 3, (0, 9)),
)
"""Pass rates of SmolLM2-135M-Instruct at temperature 1, by level: about .5, .4, .25, .25, .12 and .08."""


def write_demo_data(out_dir: Path, *, num_train: int, num_heldout: int, seed: int) -> dict[str, Any]:
    """Write `train.jsonl` and `heldout.jsonl` to `out_dir`; the same arguments give the same files.

    Rows are {"input": prompt, "label": the answer as text, "datasource": level name, "id": level and expression}. No
    held-out expression occurs in the training rows, not even with its operands in another order. Returns the two
    paths ("train", "heldout") and "levels": the number of rows of each level in each file. Raises ValueError when a
    number is below 1 or above the number of expressions (about 1300 and 500).
    """
    pools = {level.name: _split(expressions(level), seed) for level in LEVELS}
    rows: dict[str, list[dict[str, str]]] = {"train": [], "heldout": []}
    for name, rows_wanted in (("train", num_train), ("heldout", num_heldout)):
        if rows_wanted < 1:
            raise ValueError(f"num_{name} is {rows_wanted}, expected at least 1 row: ask for more")
        available = {level: split[name] for level, split in pools.items()}
        counts = _share_out(rows_wanted, {level: len(found) for level, found in available.items()}, name)
        for level, found in available.items():
            rows[name].extend(_row(level, *item) for item in found[: counts[level]])
        Random(f"{seed}/{name}/order").shuffle(rows[name])
    paths = {name: Path(out_dir) / f"{name}.jsonl" for name in rows}
    for name, path in paths.items():
        write_jsonl(path, rows[name])
    levels = {level: {name: sum(row["datasource"] == level for row in rows[name]) for name in rows} for level in pools}
    return {"train": str(paths["train"]), "heldout": str(paths["heldout"]), "levels": levels}


def expressions(level: Level) -> dict[str, str]:
    """All of a level's expressions with their answers, but for those that every prompt shows.

    Negative results are left out: this model never gets them right, so they would cost rollouts and teach nothing.
    """
    smallest, largest = level.largest
    shown = {line.split("=")[0] for line in SHOTS.splitlines()}
    found: dict[str, str] = {}
    for operands in product(range(largest + 1), repeat=level.terms):
        text = level.operator.join(map(str, operands))
        answer = {"+": sum(operands), "*": math.prod(operands), "-": 2 * operands[0] - sum(operands)}[level.operator]
        if max(operands) >= smallest and answer >= 0 and _key(text) not in map(_key, shown):
            found[text] = str(answer)
    return found


def _key(expression: str) -> str:
    """The same for expressions that are one question: 3+4 and 4+3."""
    for operator in "+*":
        if operator in expression:
            return operator.join(sorted(expression.split(operator)))
    return expression


def _split(found: Mapping[str, str], seed: int) -> dict[str, list[tuple[str, str]]]:
    """Divide (expression, answer) pairs, shuffled, into "train" and "heldout"; equal keys go to the same side."""
    keys = sorted({_key(expression) for expression in found})
    Random(f"{seed}/split").shuffle(keys)
    heldout = set(keys[: round(_HELDOUT_SHARE * len(keys))])
    pairs = sorted(found.items())
    Random(f"{seed}/pairs").shuffle(pairs)
    return {
        "train": [pair for pair in pairs if _key(pair[0]) not in heldout],
        "heldout": [pair for pair in pairs if _key(pair[0]) in heldout],
    }


def _share_out(wanted: int, available: Mapping[str, int], name: str) -> dict[str, int]:
    """Rows per level: by weight, and what a small level cannot give is taken from the others, by weight again."""
    if wanted > sum(available.values()):
        raise ValueError(
            f"num_{name} is {wanted}, and there are {sum(available.values())} expressions: ask for fewer rows"
        )
    weights = {level.name: level.weight for level in LEVELS}
    counts = dict.fromkeys(available, 0)
    for _ in range(wanted):
        open_levels = [level for level in counts if counts[level] < available[level]]
        neediest = min(open_levels, key=lambda level: (counts[level] + 1) / weights[level])
        counts[neediest] += 1
    return counts


def _row(level: str, expression: str, answer: str) -> dict[str, str]:
    return {
        "input": f"{SHOTS}{expression}=",
        "label": answer,
        "datasource": level,
        "id": f"{level}/{expression}",
    }
