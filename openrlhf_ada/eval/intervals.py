"""95 % intervals and tests for means over problems, right for few problems and for few that differ.

One method for shares, averages and differences: the score interval. A mean m is in it if the observed mean is within
z * sqrt(V(m) / P) of m, where V(m) is the variance of the likeliest distribution on [low, high] that has the mean m.
That distribution may put weight on `low` and `high` even if no problem had such a value. So the interval is never
empty. Of values 0 and 1 it is Wilson's (1927); of paired differences -1, 0 and 1 it is Tango's (1998).
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from openrlhf_ada.reporting.quantiles import NORMAL_975

Floats = NDArray[np.float64]

STEPS = 32
"""Halvings of a range of at most 1: down to 1e-9."""

FLIPS = 20_000
MOST_CELLS = 1 << 28
"""Problems times possible sums up to which the test is exact; else it takes FLIPS random flips."""


def wilson(positives: float, draws: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share, which stays in [0, 1] and is not empty at 0 and 1."""
    z2, p = NORMAL_975**2, positives / draws
    centre = (p + z2 / (2 * draws)) / (1 + z2 / draws)
    half = NORMAL_975 * math.sqrt(p * (1 - p) / draws + z2 / (4 * draws**2)) / (1 + z2 / draws)
    # At 0 and 1, rounding would put a bound slightly outside [0, 1].
    return max(0.0, centre - half), min(1.0, centre + half)


def score_interval(values: Floats, low: float = 0.0, high: float = 1.0) -> tuple[float, float]:
    """95 % score interval of the mean of P >= 1 values in [low, high], each of another problem."""
    shares, counts = np.unique((values - low) / (high - low), return_counts=True)
    lower = 1.0 - _upper(1.0 - shares[::-1], counts[::-1])
    return low + (high - low) * lower, low + (high - low) * _upper(shares, counts)


def _upper(shares: Floats, counts: NDArray[np.int64]) -> float:
    """Upper bound of the mean of shares in [0, 1], in rising order and all different."""
    weights = counts / counts.sum()
    mean = float(weights @ shares)
    inside, outside = mean, 1.0
    for _ in range(STEPS):
        middle = (inside + outside) / 2
        is_inside = (middle - mean) ** 2 * counts.sum() <= NORMAL_975**2 * _likeliest_variance(shares, weights, middle)
        inside, outside = (middle, outside) if is_inside else (inside, middle)
    return inside


def _likeliest_variance(shares: Floats, weights: Floats, mean: float) -> float:
    """Variance of the likeliest distribution on [0, 1] with this mean, which is at least the observed one.

    Its weights are w / (1 - t (x - mean)), with 0 <= t <= 1 / (1 - mean); what they lack to 1 is on x = 1.
    """
    if mean >= 1.0:
        return 0.0
    gaps = shares - mean
    few, many = 0.0, 1.0 / (1.0 - mean)
    for _ in range(STEPS):
        tilt = (few + many) / 2
        tilted = weights / (1.0 - tilt * gaps)
        few, many = (tilt, many) if tilted @ gaps < 0.0 else (few, tilt)
    likeliest = weights / np.maximum(1.0 - few * gaps, 1e-300)
    rest = max(0.0, 1.0 - likeliest.sum())
    return float(likeliest @ gaps**2 + rest * (1.0 - mean) ** 2)


def exchange_p_value(differences: Floats, seed: int = 0) -> float:
    """Chance of a mean difference at least as large, up or down, if the two models were the same.

    The same models could exchange their names at every problem, which changes the sign of its difference. So the
    chance is over all signs. With one answer per problem this is McNemar's exact test. 1 where nothing differs.
    """
    sizes = [Fraction(float(d)).limit_denominator(10_000) for d in differences if d != 0.0]
    scale = math.lcm(*(size.denominator for size in sizes))
    whole = [int(size * scale) for size in sizes]
    total, extreme = sum(map(abs, whole)), abs(sum(whole))
    if len(whole) * total > MOST_CELLS:
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(FLIPS, len(whole)))
        reached = np.abs(signs @ np.array(whole, dtype=np.float64)) >= extreme
        return float((1 + reached.sum()) / (1 + FLIPS))
    # Chance of each sum of the differences whose sign is +.
    chances = np.zeros(total + 1)
    chances[0] = 1.0
    for size in map(abs, whole):
        chances /= 2
        chances[size:] += chances[: total + 1 - size].copy()
    sums = 2 * np.arange(total + 1) - total
    return min(1.0, float(chances[np.abs(sums) >= extreme].sum()))
