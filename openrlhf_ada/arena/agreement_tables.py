"""Do one process and the real stack agree? Each method's accuracy and costs on both, from the same starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from openrlhf_ada.arena.agreement import LEARNER, REAL, Cell, Result
from openrlhf_ada.arena.real_tables import Interval, interval

MARGIN = 0.02
"""Of accuracy: two tracks agree where the whole interval of their difference is within it."""

COST_MARGIN = 0.05
"""The same for what is drawn, as a share of what the learner draws."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number of a trial. `margin`: the largest difference that counts as agreement."""

    name: str
    margin: float
    of: Callable[[Result], float]
    relative: bool = False


def _mean_accuracy(result: Result) -> float:
    """Over the steps, between measurements by lines."""
    accuracy = result["accuracy"]
    return float(np.trapezoid(accuracy) / (len(accuracy) - 1))


QUANTITIES = (
    Quantity("mean accuracy", MARGIN, _mean_accuracy),
    Quantity("final accuracy", MARGIN, lambda result: result["accuracy"][-1]),
    Quantity("rollouts", COST_MARGIN, lambda result: result["rollouts"][-1], relative=True),
    Quantity("tokens", COST_MARGIN, lambda result: result["tokens"][-1], relative=True),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity of one method, over the seeds that both tracks have. `difference`: real less learner, by seed; a
    share of the learner's for costs. `spread`: its standard deviation over seeds. `by_chance`: what that would be if
    both tracks were one, from trials that were repeated in one process; nan with fewer than two of a seed."""

    method: str
    quantity: Quantity
    seeds: int
    learner: float
    real: float
    difference: Interval
    spread: float
    by_chance: float

    @property
    def agrees(self) -> bool | None:
        """None with too few seeds for an interval."""
        low, high = self.difference.low, self.difference.high
        if low is None or high is None:
            return None
        return -self.quantity.margin <= low and high <= self.quantity.margin

    @property
    def verdict(self) -> str:
        """In a word or two. A difference is seen where its interval has no 0, and small if it is within the margin."""
        low, high = self.difference.low, self.difference.high
        if low is None or high is None:
            return "too few seeds"
        if self.agrees:
            return "agree"
        return "differ" if low > 0.0 or high < 0.0 else "open"


Trials = Mapping[Cell, Result]


def table(trials: Trials, methods: Sequence[str]) -> list[Row]:
    """Methods without a seed that both tracks have are left out."""
    return [
        _row(method, quantity, pairs)
        for method in methods
        for pairs in [_pairs(trials, method)]
        if pairs
        for quantity in QUANTITIES
    ]


def _pairs(trials: Trials, method: str) -> dict[int, tuple[list[Result], list[Result]]]:
    """By seed: (trials in one process, on the real stack)."""
    found: dict[int, tuple[list[Result], list[Result]]] = {}
    for cell, result in trials.items():
        if cell.method == method:
            found.setdefault(cell.seed, ([], []))[(LEARNER, REAL).index(cell.stack)].append(result)
    return {seed: both for seed, both in sorted(found.items()) if all(both)}


def _row(method: str, quantity: Quantity, pairs: Mapping[int, tuple[list[Result], list[Result]]]) -> Row:
    values = [
        [np.array([quantity.of(result) for result in side], dtype=float) for side in both] for both in pairs.values()
    ]
    means = np.array([[side.mean() for side in both] for both in values])
    scale = means[:, 0] if quantity.relative else np.ones(len(means))
    difference = (means[:, 1] - means[:, 0]) / scale
    learner, real = means.mean(axis=0).tolist()
    return Row(
        method,
        quantity,
        len(pairs),
        learner,
        real,
        interval(difference.tolist()),
        spread=_deviation(difference),
        by_chance=_by_chance(values, scale),
    )


def _by_chance(values: Sequence[Sequence[np.ndarray]], scale: np.ndarray) -> float:
    """A trial of either track varies as repeated trials of one process do."""
    variances = [
        (_deviation(one) / by) ** 2 * (1 / len(one) + 1 / len(real))
        for (one, real), by in zip(values, scale, strict=True)
    ]
    return float(np.sqrt(np.mean(variances)))


def _deviation(values: np.ndarray) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else float("nan")


def contrast(trials: Trials, methods: Sequence[str], stack: str) -> Interval | None:
    """Mean accuracy of the second method less the first's, on one track, over the seeds of `table`."""
    first, second = (_pairs(trials, method) for method in methods[:2])
    side = (LEARNER, REAL).index(stack)
    seeds = sorted(first.keys() & second.keys())
    means = [[np.mean([_mean_accuracy(r) for r in of[seed][side]]) for of in (first, second)] for seed in seeds]
    return interval([float(b - a) for a, b in means]) if means else None


def curves(trials: Trials, method: str, stack: str) -> list[list[list[float]]]:
    """Accuracy at each measurement: for each seed that both tracks have, one curve for each of its trials."""
    side = (LEARNER, REAL).index(stack)
    return [[result["accuracy"] for result in both[side]] for both in _pairs(trials, method).values()]
