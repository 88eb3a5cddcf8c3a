"""Costs to a target, intervals over seeds, and tests of several methods against one reference on the same seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from openrlhf_ada.reporting.quantiles import t_quantile_975

Floats = NDArray[np.float64]

RESAMPLES = 2000

SEEDS_FOR_INTERVAL = 3

EXACT_UP_TO = 12
"""Seeds whose signs are flipped in all ways; of more, FLIPS ways are drawn."""

FLIPS = 20_000

SEEDS_FOR_TEST = 6
"""With fewer, no p is below 0.05: the least is 2 of all the ways to flip."""


def cost_to(target: float, accuracy: Sequence[float], spent: Sequence[float]) -> tuple[float, bool]:
    """(cost at which accuracy first reaches the target, between two measurements by a line; was it reached)."""
    for at, value in enumerate(accuracy):
        if value >= target:
            if at == 0:
                return float(spent[0]), True
            share = (target - accuracy[at - 1]) / (value - accuracy[at - 1])
            return spent[at - 1] + share * (spent[at] - spent[at - 1]), True
    return float(spent[-1]), False


# -- intervals --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Interval:
    """`low`, `high`: 95 %; None with too few seeds."""

    mean: float
    low: float | None
    high: float | None

    def text(self, form: str) -> str:
        """`form`: of each number, as for `format`."""
        mean = f"{self.mean:{form}}"
        return mean if self.low is None or self.high is None else f"{mean} ({self.low:{form}} to {self.high:{form}})"

    def times(self, factor: float) -> Interval:
        """In another unit."""
        low, high = (None if value is None else factor * value for value in (self.low, self.high))
        return Interval(factor * self.mean, low, high)


def mean_interval(differences: Sequence[float], show: Callable[[float], float] = float) -> Interval:
    """By Student's t over seeds. `show`: of logarithms, `math.exp`."""
    mean, count = float(np.mean(differences)), len(differences)
    if count < SEEDS_FOR_INTERVAL:
        return Interval(show(mean), None, None)
    half = t_quantile_975(count - 1) * float(np.std(differences, ddof=1)) / math.sqrt(count)
    return Interval(show(mean), show(mean - half), show(mean + half))


def ratio(ours: Floats, theirs: Floats) -> Interval:
    """Ratio of means, both by seed, with the interval of a paired bootstrap."""
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(ours), (RESAMPLES, len(ours)))
    ratios = ours[picks].mean(axis=1) / theirs[picks].mean(axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return Interval(float(ours.mean() / theirs.mean()), float(low), float(high))


def kendall_tau(ours: Floats, theirs: Floats) -> Interval:
    """Do two sides order methods alike? Shapes (methods, seeds) and (methods, other seeds), of what each measured.

    1: the same order, -1: the opposite, ties count 0. With the interval of a bootstrap over seeds of both sides.
    """
    rng = np.random.default_rng(0)
    drawn: list[float] = []
    for _ in range(RESAMPLES):
        picks = (side[:, rng.integers(0, side.shape[1], side.shape[1])].mean(axis=1) for side in (ours, theirs))
        drawn.append(_tau(*picks))
    mean = _tau(ours.mean(axis=1), theirs.mean(axis=1))
    if min(ours.shape[1], theirs.shape[1]) < SEEDS_FOR_INTERVAL:
        return Interval(mean, None, None)
    low, high = np.quantile(drawn, [0.025, 0.975]).tolist()
    return Interval(mean, low, high)


def _tau(x: Floats, y: Floats) -> float:
    first, second = np.triu_indices(len(x), 1)
    return float(np.mean(np.sign(x[first] - x[second]) * np.sign(y[first] - y[second])))


# -- tests ------------------------------------------------------------------------------------------------------------


def corrected_tests(differences: Mapping[str, Floats]) -> dict[str, float | None]:
    """p of each method's paired test, corrected for their number; None with fewer than SEEDS_FOR_TEST."""
    if not differences or any(len(values) < SEEDS_FOR_TEST for values in differences.values()):
        return dict.fromkeys(differences)
    return dict(zip(differences, corrected_p(np.array(list(differences.values()))), strict=True))


def corrected_p(differences: Floats) -> list[float]:
    """p of each method's mean difference being 0, two-sided; `differences`: shape (methods, seeds).

    If a method equals the reference, every difference might as well have the other sign. All methods' signs are
    flipped together, since they share the reference's run of a seed. p is the chance that any method not yet told
    apart has so large a mean, each beside its own root mean square (Westfall and Young, 1993, step-down max-T). So it
    does not grow with the number of methods that move together.
    """
    count = differences.shape[1]
    # Tiny, so that a method without any difference has size 0.
    scale = np.sqrt((differences**2).mean(axis=1)) + 1e-300
    sizes = np.abs(_signs(count) @ (differences / scale[:, None]).T) / count
    order = np.argsort(-sizes[0], kind="stable")
    # Of each method and all that come after it.
    largest = np.maximum.accumulate(sizes[:, order[::-1]], axis=1)[:, ::-1]
    # The differences as they are count as one of the ways, up to rounding.
    by_place = (largest >= sizes[0, order] * (1 - 1e-12)).mean(axis=0)
    found = np.empty(len(order))
    found[order] = np.maximum.accumulate(by_place)
    return found.tolist()


def _signs(count: int) -> Floats:
    """Ways to flip, one a row; the first flips nothing."""
    if count <= EXACT_UP_TO:
        return np.array(list(product((1.0, -1.0), repeat=count)))
    signs = np.random.default_rng(0).choice((1.0, -1.0), size=(FLIPS, count))
    signs[0] = 1.0
    return signs
