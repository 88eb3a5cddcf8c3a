"""The demo's task: arithmetic of graded difficulty from reasoning-gym, as short few-shot completion prompts.

Prompt tokens dominate the cost of a step on a CPU, so a prompt is two solved sums and the question ("3+4="), at most
24 tokens of SmolLM2 (one per character), and an answer is at most 3 characters and a newline.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from openrlhf_ada.demo.artifacts import write_jsonl
from openrlhf_ada.reward.reasoning_answers import import_reasoning_gym

logger = logging.getLogger(__name__)

SHOTS = "12+7=19\n25+31=56\n"
"""What every prompt begins with, in both files; these sums themselves are never asked."""

_SHOT_EXPRESSIONS = tuple(line.split("=")[0] for line in SHOTS.splitlines())
_HELDOUT_SHARE = 0.3
"""Share of each level's expressions that is set apart for evaluation, whatever number of rows is asked for."""


@dataclass(frozen=True, slots=True)
class Level:
    """One difficulty: which task of reasoning-gym, with which settings, and which of its expressions are taken.

    `weight` is the level's share of the rows, as far as its expressions suffice. `draws` is how many tasks are drawn
    to find most of the distinct expressions of the level.
    """

    name: str
    weight: float
    dataset: str
    settings: Mapping[str, Any]
    operator: str
    largest: tuple[int, int]
    """The largest operand lies in this range (inclusive)."""
    draws: int


_PLAIN = {"allow_parentheses": False, "allow_negation": False}


def _digits(count: int, *, terms: int) -> dict[str, int]:
    return {"min_terms": terms, "max_terms": terms, "min_digits": count, "max_digits": count}


LEVELS = (
    Level("mul-1digit", 0.15, "basic_arithmetic", {**_digits(1, terms=2), **_PLAIN}, "*", (0, 10), 2_000),
    Level("add-1digit", 0.20, "chain_sum", _digits(1, terms=2), "+", (0, 9), 2_000),
    Level("add-to-20", 0.20, "basic_arithmetic", {**_digits(2, terms=2), **_PLAIN}, "+", (10, 20), 20_000),
    Level("sub-1digit", 0.15, "chain_sum", _digits(1, terms=2), "-", (0, 9), 2_000),
    Level("sub-to-20", 0.20, "basic_arithmetic", {**_digits(2, terms=2), **_PLAIN}, "-", (10, 20), 20_000),
    Level("add-3terms", 0.10, "chain_sum", _digits(1, terms=3), "+", (0, 9), 10_000),
)
"""Pass rates of SmolLM2-135M-Instruct at temperature 1, by level: about .5, .4, .25, .25, .12 and .08."""


def write_demo_data(out_dir: Path, *, num_train: int, num_heldout: int, seed: int) -> dict[str, Any]:
    """Write `train.jsonl` and `heldout.jsonl` to `out_dir`; the same arguments give the same files.

    Rows are {"input": prompt, "label": the answer as text, "datasource": level name, "id": level and expression}. No
    held-out expression occurs in the training rows, not even with its operands in another order. Returns the two
    paths ("train", "heldout") and "levels": the number of rows of each level in each file. Raises ValueError when a
    number is below 1 or above the number of distinct expressions (about 1200 and 500).
    """
    rows: dict[str, list[dict[str, str]]] = {"train": [], "heldout": []}
    for name, rows_wanted in (("train", num_train), ("heldout", num_heldout)):
        if rows_wanted < 1:
            raise ValueError(f"num_{name} is {rows_wanted}, expected at least 1 row: ask for more")
    pools = {level.name: _split(_draw_level(level, seed), seed) for level in LEVELS}
    for name, rows_wanted in (("train", num_train), ("heldout", num_heldout)):
        available = {level: split[name] for level, split in pools.items()}
        counts = _share_out(rows_wanted, {level: len(found) for level, found in available.items()}, name)
        for level, found in available.items():
            rows[name].extend(_row(level, *item) for item in found[: counts[level]])
        Random(f"{seed}/{name}/order").shuffle(rows[name])
    paths = {name: Path(out_dir) / f"{name}.jsonl" for name in rows}
    for name, path in paths.items():
        write_jsonl(path, rows[name])
        logger.info("wrote %d rows to %s", len(rows[name]), path)
    levels = {level: {name: sum(row["datasource"] == level for row in rows[name]) for name in rows} for level in pools}
    return {"train": str(paths["train"]), "heldout": str(paths["heldout"]), "levels": levels}


def _draw_level(level: Level, seed: int) -> dict[str, str]:
    """The level's distinct expressions and their answers, as reasoning-gym generates them, in order of appearance."""
    tasks = import_reasoning_gym().create_dataset(
        level.dataset,
        seed=seed,
        size=level.draws,
        **level.settings,
        **({"operators": (level.operator,)} if level.dataset == "basic_arithmetic" else {}),
    )
    asked = {_key(expression) for expression in _SHOT_EXPRESSIONS}
    found: dict[str, str] = {}
    for expression, answer in _expressions(tasks):
        operands = [int(operand) for operand in expression.split(level.operator) if operand.isdecimal()]
        fits = len(operands) == level.settings["min_terms"] and level.largest[0] <= max(operands) <= level.largest[1]
        # Negative results are out of reach of this model (pass rate 0): they would cost rollouts and teach nothing.
        if fits and int(answer) >= 0 and _key(expression) not in asked:
            found[expression] = answer
    return found


def _expressions(tasks: Any) -> Iterator[tuple[str, str]]:
    for index in range(len(tasks)):
        entry = tasks[index]
        yield entry["metadata"]["expression"].replace(" ", ""), entry["answer"]


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
            f"num_{name} is {wanted}, but there are only {sum(available.values())} distinct expressions for it: "
            f"ask for fewer rows, and train for several episodes"
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
