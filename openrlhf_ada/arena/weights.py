"""Which weight a method really gives a prompt of pass rate p, measured, for those whose weight has no formula.

A split gives a prompt rollouts that depend on the other prompts of the batch, and a choice leaves prompts out. So
their effective weight (`core.objectives.effective_weight`) is measured in training, where all pass rates are known.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from openrlhf_ada.core.objectives import TabulatedObjective
from openrlhf_ada.core.types import PromptPool, TrainingGroup

if TYPE_CHECKING:
    from openrlhf_ada.arena.learner import Learner
    from openrlhf_ada.arena.trial import Trial

Floats = NDArray[np.float64]

MEASURED = Path(__file__).parent / "results" / "weights.json"
"""`benchmarks/arena_weights.py` writes it."""

EDGES = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.88, 0.92, 0.95, 0.97, 0.98, 0.99)
LEAST_OUTCOMES = 200
"""Ranges of pass rates in a table: between these, and with so many right and wrong answers that were trained."""


@dataclass(frozen=True, slots=True)
class Visits:
    """Pass rates of all training prompts before each step, and what the step gave each, shapes (steps x R,).

    positive, negative: C+ and C- of `effective_weight`, over the number of rollouts that the step trained.
    right, wrong: rollouts that were trained. trained: how many groups of this prompt were.
    """

    rates: Floats
    positive: Floats
    negative: Floats
    right: Floats
    wrong: Floats
    trained: Floats

    def weight(self, among: NDArray[np.bool_]) -> float:
        """Mean over these prompts, trained or not: E[C+] / p + E[C-] / (1 - p). NaN where none was trained."""
        right = (self.trained * self.rates)[among].sum()
        trained = self.trained[among].sum()
        if not 0.0 < right < trained:
            return float("nan")
        given = self.positive[among].sum() / right + self.negative[among].sum() / (trained - right)
        return float(given * trained / among.sum())


def visits(learner: Learner, trial: Trial, budget: int) -> Visits:
    """Of a training by `trial` until `budget` rollouts are drawn."""
    from openrlhf_ada.arena.learner import pass_rates

    steps: list[Floats] = []
    while trial.spent.rollouts < budget:
        rates = pass_rates(learner.model, learner.world.train)
        steps.append(np.vstack([rates, _given(trial.step(), len(rates))]))
    return Visits(*np.concatenate(steps, axis=1))


def _given(groups: Iterable[tuple[PromptPool, TrainingGroup]], rows: int) -> Floats:
    """The other fields of `Visits`, shape (5, rows)."""
    from openrlhf_ada.arena.trial import THRESHOLD

    given = np.zeros((5, rows))
    for pool, group in groups:
        coefficients = np.array(group.coefficients)
        positive = pool.scores[np.array(group.indices)] > THRESHOLD
        sums = (coefficients[positive].sum(), -coefficients[~positive].sum(), positive.sum(), (~positive).sum(), 1.0)
        given[:, pool.row] += sums
    given[:2] /= max(given[2:4].sum(), 1.0)
    return given


def joined(parts: Sequence[Visits]) -> Visits:
    """Of several trainings."""
    names = Visits.__slots__
    return Visits(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def tabulated(name: str, seen: Visits) -> TabulatedObjective:
    """f' over ranges of pass rates that hold LEAST_OUTCOMES, 1 at p = 0.5. Raises ValueError for a weight below 0."""
    rates, weights = [], []
    for among in _ranges(seen):
        held = seen.trained * among
        rates.append(float((held * seen.rates).sum() / held.sum()))
        weights.append(seen.weight(among))
    table = TabulatedObjective(name, tuple(rates), tuple(weights))
    return TabulatedObjective(name, table.rates, tuple(weight / table.weight(0.5) for weight in weights))


def _ranges(seen: Visits) -> list[NDArray[np.bool_]]:
    """Neighbours of EDGES, joined from the lowest up until they hold LEAST_OUTCOMES; what is left joins the last one.

    Prompts that cannot be solved have no gradient, and are in none.
    """
    place = np.where(seen.rates > 0.0, np.searchsorted(EDGES, seen.rates), -1)
    ranges: list[NDArray[np.bool_]] = []
    among = np.zeros(len(place), dtype=np.bool_)
    for at in range(len(EDGES) + 1):
        among = among | (place == at)
        if min(seen.right[among].sum(), seen.wrong[among].sum()) >= LEAST_OUTCOMES:
            ranges.append(among)
            among = np.zeros(len(place), dtype=np.bool_)
    if len(ranges) < 2:
        raise ValueError(f"fewer than two ranges with {LEAST_OUTCOMES} right and wrong answers: train for longer")
    ranges[-1] |= among
    return ranges


@cache
def measured() -> dict[str, dict[str, list[list[float]]]]:
    """[rates, weights] by task and method."""
    return json.loads(MEASURED.read_text(encoding="utf-8"))


def weights_of(method: str) -> dict[str, list[list[float]]]:
    """Its tables by task."""
    return {task: tables[method] for task, tables in measured().items() if method in tables}


def measured_weight(method: str, task: str) -> TabulatedObjective:
    """f', as it was measured on this task."""
    rates, weights = weights_of(method)[task]
    return TabulatedObjective(f"measured:{method}", tuple(rates), tuple(weights))


def check_weights(of: Mapping[str, str | None], tasks: Sequence[str]) -> None:
    """Raises ValueError for tasks on which a weight was not measured. `of`: whose it is, by the method that has it."""
    for name, matched in of.items():
        known = tasks if matched is None else weights_of(matched)
        missing = [task for task in tasks if task not in known]
        if missing:
            raise ValueError(
                f"--methods {name} --tasks {','.join(missing)}: the weight of {matched} was measured on "
                f"{', '.join(known)} only. Take these tasks, or leave {name} out"
            )
