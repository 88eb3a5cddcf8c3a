"""The pools of a run, one for every visit of a prompt, read from `samples.jsonl`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from openrlhf_ada.reporting.jsonl import damage_error, damaged_file, read_rows
from openrlhf_ada.reporting.run_log import CONFIG_FILE, SAMPLES_FILE
from openrlhf_ada.reporting.run_record import Row, Run, is_number

Floats = NDArray[np.float64]

NUMBERS = ("step", "key", "index", "metric", "reward", "tokens")
"""Keys that every row has, all of them numbers."""

SOME_NUMBERS, SOME_TEXTS = ("coefficient", "predicted"), ("prompt", "label", "response")
"""Keys that a row may have, or have as null."""


@dataclass(slots=True)
class Visit:
    """Everything that was drawn for one prompt in one step. R samples, in the order of their index.

    `coefficients` has NaN for samples that are not trained. `predicted`: the pass rate that was expected before
    sampling, where one was. `num_chars`: characters of recorded answers, 0 without texts.
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
    def positives(self) -> int:
        return int(self.positive.sum())

    @property
    def is_trained(self) -> bool:
        return not bool(np.isnan(self.coefficients).all())

    @property
    def shows_two_outcomes(self) -> bool:
        """Do its scores differ?"""
        return bool(self.scores.max() > self.scores.min())

    @property
    def mixed_from(self) -> int | None:
        """So many first samples show more than one score; None if all are equal."""
        differs = np.flatnonzero(self.scores != self.scores[0])
        return int(differs[0]) + 1 if len(differs) else None


@dataclass(slots=True)
class _Draft:
    """Rows of one visit, as far as they are read."""

    prompt_id: str
    rows: list[tuple[float, ...]] = field(default_factory=list)
    predicted: float | None = None
    num_chars: int = 0


def read_visits(run: Run) -> list[Visit]:
    """Every recorded visit, by step and key; empty if no samples were recorded (mode off).

    Raises:
        RunDamageError: a row that is no sample, by file and line.
    """
    threshold = run.by_step(_threshold)
    drafts: dict[tuple[int, int], _Draft] = {}
    path = run.run_dir / SAMPLES_FILE
    for line, row in read_rows(path) if path.exists() else ():
        if wrong := _wrong(row):
            raise damage_error(path, line, wrong)
        draft = drafts.setdefault((row["step"], row["key"]), _Draft(str(row.get("prompt_id", row["key"]))))
        _add(draft, row, threshold(row["step"]))
    return [_finished(*identity, drafts[identity]) for identity in sorted(drafts)]


def _threshold(run: Run) -> float:
    threshold = run.flag("ada.positive_threshold")
    # The default of --ada_positive_threshold.
    threshold = 0.5 if threshold is None else threshold
    if not is_number(threshold):
        what = f"'ada.positive_threshold' is {threshold!r}, expected a number"
        raise damaged_file(run.run_dir / CONFIG_FILE, what)
    return threshold


def _wrong(row: Row) -> str:
    """What a row of samples has of another type; empty if nothing."""
    for name in (*NUMBERS, *SOME_NUMBERS):
        value = row.get(name)
        if not is_number(value) and (name in NUMBERS or value is not None):
            return f"{name!r} is {value!r}, expected a number"
    for name in SOME_TEXTS:
        if not isinstance(row.get(name), str | None):
            return f"{name!r} is {row[name]!r}, expected a text"
    return ""


def _add(draft: _Draft, row: Row, threshold: float) -> None:
    # The threshold was of the raw score, where a row has one; its score is 0 or 1 by then.
    positive = row["metric"] > (0.5 if "raw_score" in row else threshold)
    coefficient = row.get("coefficient")
    coefficient = float("nan") if coefficient is None else coefficient
    draft.rows.append((row["index"], row["metric"], row["reward"], coefficient, row["tokens"], positive))
    draft.num_chars += len(row.get("response") or "")
    if row.get("predicted") is not None:
        draft.predicted = row["predicted"]


def _finished(step: int, key: int, draft: _Draft) -> Visit:
    table = np.array(sorted(draft.rows), dtype=np.float64).T
    return Visit(
        step=step,
        key=key,
        prompt_id=draft.prompt_id,
        scores=table[1],
        rewards=table[2],
        coefficients=table[3],
        tokens=table[4].astype(np.int64),
        positive=table[5] > 0,
        predicted=draft.predicted,
        num_chars=draft.num_chars,
    )


@dataclass(slots=True)
class Texts:
    """Recorded texts. `prompts`: (prompt, reference answer) by prompt id; `answers`: by visit and index."""

    prompts: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    answers: dict[tuple[int, int], dict[int, str]] = field(default_factory=dict)


def read_texts(run: Run, visits: Collection[tuple[int, int]]) -> Texts:
    """Texts of all prompts, and the answers of these visits, each a (step, key)."""
    texts = Texts()
    for row in run.samples():
        if "prompt" in row:
            texts.prompts.setdefault(str(row.get("prompt_id", row["key"])), (row["prompt"], row.get("label")))
        visit = (row["step"], row["key"])
        if visit in visits and row.get("response") is not None:
            texts.answers.setdefault(visit, {})[row["index"]] = row["response"]
    return texts
