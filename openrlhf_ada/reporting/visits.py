"""The pools of a run, one for every visit of a prompt, read from `samples.jsonl`; and those that a page shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openrlhf_ada.reporting.charts import rounded, shortened
from openrlhf_ada.reporting.jsonl import damage, read_rows
from openrlhf_ada.reporting.run_log import SAMPLES_FILE
from openrlhf_ada.reporting.run_record import Row, Run, is_number

Floats = NDArray[np.float64]

MOST_CHARS = 12_000_000
"""Of the visits in a page, a sample's figures counted as SAMPLE_CHARS; with more, visits are taken evenly."""

SAMPLE_CHARS = 12

NUMBERS = ("step", "key", "index", "metric", "reward", "tokens")
"""Keys that every row has, all of them numbers."""

SOME_NUMBERS, TEXTS = ("coefficient", "predicted"), ("prompt", "label", "response")
"""Keys that a row may have, or have as null."""


@dataclass(slots=True)
class Visit:
    """Everything that was drawn for one prompt in one step. R samples, in the order of their index.

    `coefficients` has NaN for samples that are not trained. `predicted`: the pass rate that was expected before
    sampling, where one was. `num_chars`: characters of recorded texts.
    """

    step: int
    key: int
    prompt_id: str
    scores: Floats
    rewards: Floats
    coefficients: Floats
    tokens: NDArray[np.int64]
    positive: NDArray[np.bool_]
    predicted: float | None = None
    num_chars: int = 0

    @property
    def drawn(self) -> int:
        return len(self.scores)

    @property
    def is_trained(self) -> bool:
        return not bool(np.isnan(self.coefficients).all())

    @property
    def shows_two_outcomes(self) -> bool:
        """Do its scores differ?"""
        return self.mixed_from is not None

    @property
    def mixed_from(self) -> int | None:
        """So many first samples show more than one score; None if all are equal."""
        differs = np.flatnonzero(self.scores != self.scores[0])
        return int(differs[0]) + 1 if len(differs) else None


def read_visits(run: Run) -> list[Visit]:
    """Every recorded visit, by step and key; empty if no samples were recorded (mode off).

    Raises RunDamageError for a row that is no sample, by file and line.
    """
    drafts: dict[tuple[int, int], list[tuple[float, ...]]] = {}
    names: dict[tuple[int, int], str] = {}
    path = run.run_dir / SAMPLES_FILE
    for line, row in read_rows(path) if path.exists() else ():
        _check_types(path, line, row)
        identity = row["step"], row["key"]
        names.setdefault(identity, _prompt_id(row))
        drafts.setdefault(identity, []).append(_figures(row))
    return [_visit(*identity, names[identity], drafts[identity]) for identity in sorted(drafts)]


def _figures(row: Row) -> tuple[float, ...]:
    coefficient, predicted = (math.nan if row.get(n) is None else row[n] for n in SOME_NUMBERS)
    # Records of older versions do not say what was positive.
    positive = row.get("positive", row["metric"] > 0.5)
    num_chars = sum(len(row.get(name) or "") for name in TEXTS)
    return row["index"], row["metric"], row["reward"], coefficient, row["tokens"], positive, predicted, num_chars


def _visit(step: int, key: int, prompt_id: str, figures: Sequence[tuple[float, ...]]) -> Visit:
    table = np.array(sorted(figures), dtype=np.float64).T
    _, scores, rewards, coefficients, tokens, positive, predicted, num_chars = table
    known = predicted[~np.isnan(predicted)].tolist()
    samples = (scores, rewards, coefficients, tokens.astype(np.int64), positive > 0)
    return Visit(step, key, prompt_id, *samples, known[0] if known else None, int(num_chars.sum()))


def _prompt_id(row: Row) -> str:
    return str(row.get("prompt_id", row["key"]))


def _check_types(path: Path, line: int, row: Row) -> None:
    """Raises RunDamageError for a value of another type."""
    for name in (*NUMBERS, *SOME_NUMBERS):
        value = row.get(name)
        if not is_number(value) and (name in NUMBERS or value is not None):
            raise damage(path, f"{name!r} is {value!r}, expected a number", line)
    for name in TEXTS:
        if not isinstance(row.get(name), str | None):
            raise damage(path, f"{name!r} is {row[name]!r}, expected a text", line)


# -- what a page's script gets ----------------------------------------------------------------------------------------


def page_samples(run: Run, visits: Sequence[Visit], reasons: Sequence[str] = ()) -> dict[str, Any]:
    """Visits with their samples and recorded texts, evenly over the run within MOST_CHARS.

    Keys of a visit: s step, p prompt id, m scores, k coefficients by index (of trained samples), t tokens, r rewards
    (if they are not the scores), o positive (if not score > 0.5), q predicted, a answers by index, w number of its
    reason. `reasons`: a sentence for each visit, or none.
    """
    size = sum(visit.num_chars + SAMPLE_CHARS * visit.drawn for visit in visits)
    count = len(visits) if size <= MOST_CHARS else max(1, len(visits) * MOST_CHARS // size)
    picked = [i * len(visits) // count for i in range(count)]
    shown, said = [visits[i] for i in picked], {text: number for number, text in enumerate(dict.fromkeys(reasons))}
    rows = {(visit.step, visit.key): _page_visit(visit) for visit in shown}
    for i in picked if reasons else ():
        rows[visits[i].step, visits[i].key]["w"] = said[reasons[i]]
    wanted = {visit.prompt_id for visit in shown}
    prompts: dict[str, list[str | None]] = {}
    for row in run.samples():
        if "prompt" in row and (name := _prompt_id(row)) in wanted:
            prompts.setdefault(name, [row["prompt"], row.get("label")])
        if (visit := rows.get((row["step"], row["key"]))) is not None and row.get("response") is not None:
            visit.setdefault("a", {})[str(row["index"])] = row["response"]
    return {"visits": list(rows.values()), "prompts": prompts, "total": len(visits), "reasons": [*said]}


def _page_visit(visit: Visit) -> dict[str, Any]:
    trained = np.flatnonzero(~np.isnan(visit.coefficients))
    row: dict[str, Any] = {
        "s": visit.step,
        "p": visit.prompt_id,
        "m": shortened(visit.scores.tolist()),
        "k": {str(i): rounded(float(visit.coefficients[i])) for i in trained},
        "t": visit.tokens.tolist(),
    }
    if (visit.rewards != visit.scores).any():
        row["r"] = shortened(visit.rewards.tolist())
    if (visit.positive != (visit.scores > 0.5)).any():
        row["o"] = [int(positive) for positive in visit.positive]
    if visit.predicted is not None:
        row["q"] = rounded(visit.predicted)
    return row
