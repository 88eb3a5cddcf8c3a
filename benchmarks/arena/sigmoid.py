"""Accuracy over the logarithm of the cost as a sigmoid (ScaleRL, arXiv 2510.13786)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.arena.tasks import Floats


@dataclass(frozen=True, slots=True)
class Sigmoid:
    """start + (end - start) / (1 + (middle / cost)^slope)."""

    start: float
    end: float
    middle: float
    slope: float

    def at(self, cost: float | Floats) -> Floats:
        """Accuracy there; `start` at 0."""
        with np.errstate(divide="ignore"):
            return self.start + (self.end - self.start) / (1.0 + (self.middle / np.asarray(cost, float)) ** self.slope)


SLOPES, PARTS, ROUNDS = (0.2, 5.0), 25, 8


def fitted(cost: Sequence[float], accuracy: Sequence[float]) -> Sigmoid:
    """By least squares through the first point, whose cost is 0. Raises ValueError for fewer than five points.

    Middle and slope are looked for on finer and finer grids, in logarithms; the best end for each pair is a quotient.
    """
    if len(cost) < 5 or cost[0] != 0.0:
        raise ValueError(f"{len(cost)} points from a cost of {cost[0] if cost else None}: needed are 5, from 0")
    start, x, y = accuracy[0], np.array(cost[1:]), np.array(accuracy[1:]) - accuracy[0]
    bounds = np.log([[x[0] / 16.0, x[-1] * 16.0], SLOPES])
    (low_m, high_m), (low_s, high_s) = bounds
    best = Sigmoid(start, start, 1.0, 1.0)
    for _ in range(ROUNDS):
        middles, slopes = np.exp(np.linspace(low_m, high_m, PARTS)), np.exp(np.linspace(low_s, high_s, PARTS))
        shares = 1.0 / (1.0 + (middles[:, None, None] / x) ** slopes[None, :, None])
        gains = np.clip((shares @ y) / (shares**2).sum(axis=2), -start, 1.0 - start)
        errors = ((gains[..., None] * shares - y) ** 2).sum(axis=2)
        m, s = np.unravel_index(int(errors.argmin()), errors.shape)
        best = Sigmoid(start, start + float(gains[m, s]), float(middles[m]), float(slopes[s]))
        step_m, step_s = (high_m - low_m) / 8.0, (high_s - low_s) / 8.0
        low_m, high_m = np.clip(np.log(best.middle) + np.array([-step_m, step_m]), *bounds[0])
        low_s, high_s = np.clip(np.log(best.slope) + np.array([-step_s, step_s]), *bounds[1])
    return best
