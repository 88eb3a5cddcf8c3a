"""95 % intervals for means over problems, right for few problems and for few that differ.

One method for shares, averages and differences: the score interval. A mean m is in it if the observed mean is within
z * sqrt(V(m) / P) of m, where V(m) is the variance of the likeliest distribution on [low, high] that has the mean m.
That distribution may put weight on `low` and `high` even if no problem had such a value. So the interval is never
empty. Of values 0 and 1 it is Wilson's (1927); of paired differences -1, 0 and 1 it is Tango's (1998).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from openrlhf_ada.reporting.quantiles import NORMAL_975

Floats = NDArray[np.float64]

STEPS = 32
"""Halvings of a range of at most 1: down to 1e-9."""


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
    """Its weights are w / (1 - t (x - mean)), with 0 <= t <= 1 / (1 - mean); what they lack to 1 is on x = 1."""
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
