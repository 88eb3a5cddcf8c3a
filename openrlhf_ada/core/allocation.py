"""How a fixed number of rollouts is split among prompts: priorities u(p), and the exact bounded integer split."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openrlhf_ada.core.pieces import Need, Table

Floats = NDArray[np.float64]

PRIORITIES: Table[Callable[[Floats], Floats]] = Table()
"""Functions u(p), shape (B,): the number of rollouts is drawn in proportion to it."""

_NO_WEIGHT = {Need.COUNTS_AS_WEIGHT: "spends rollouts against variance"}


@PRIORITIES.add("inverse_sqrt")
def inverse_sqrt(p: Floats) -> Floats:
    """1 / sqrt(p): half of the log objective's weight 1/p (Reinforce-Ada's hybrid, arXiv 2510.04996v3)."""
    return 1.0 / np.sqrt(p)


@PRIORITIES.add("inverse")
def inverse(p: Floats) -> Floats:
    """1 / p: all of the log objective's weight."""
    return 1.0 / p


@PRIORITIES.add("std", lacks=_NO_WEIGHT)
def std(p: Floats) -> Floats:
    """sqrt(p (1 - p)): least variance for the linear objective (Neyman: f'(p) x std of a baselined gradient)."""
    return np.sqrt(p * (1.0 - p))


@PRIORITIES.add("odds", lacks=_NO_WEIGHT)
def odds(p: Floats) -> Floats:
    """sqrt((1 - p) / p): least variance for the log objective."""
    return np.sqrt((1.0 - p) / p)


@PRIORITIES.add("uniform")
def uniform(p: Floats) -> Floats:
    """1: equally many for every prompt."""
    return np.ones_like(p)


def priority(name: str, pass_rates: ArrayLike, floor: float) -> Floats:
    """u(p), shape (B,), with p moved into [floor, 1 - floor] first."""
    p = np.clip(np.asarray(pass_rates, dtype=np.float64), floor, 1.0 - floor)
    return PRIORITIES[name].function(p)


def allocate(
    priorities: ArrayLike, budget: int, lower: ArrayLike, upper: ArrayLike, tie_break: ArrayLike
) -> NDArray[np.int64]:
    """Integers n with sum `budget` and lower <= n <= upper, as near to proportional as the bounds allow.

    The real-valued split is n = clip(c u, lower, upper) with the one c that meets the budget; the largest remainders
    are rounded up, equal ones in the order of `tie_break`. The result does not depend on the order of the prompts, and
    with equal bounds a higher priority never gets fewer.

    Args:
        priorities: u >= 0, finite, shape (B,). A prompt of priority 0 gets more than its lower bound only when all
            others are full.
        budget: rollouts in all.
        lower, upper: integer bounds, shape (B,) or scalars.
        tie_break: a different number for each prompt, shape (B,).

    Returns: int64, shape (B,).

    Raises:
        ValueError: a priority is negative or not finite, or the bounds leave no room for the budget.
    """
    u = np.asarray(priorities, dtype=np.float64)
    if not (np.isfinite(u).all() and (u >= 0).all()):
        raise ValueError("priorities must be finite and not negative")
    low, high = (np.broadcast_to(np.asarray(bound, dtype=np.int64), u.shape) for bound in (lower, upper))
    if (low > high).any() or not low.sum() <= budget <= high.sum():
        raise ValueError(
            f"a budget of {budget} does not fit the bounds, which allow {int(low.sum())} to {int(high.sum())}"
        )
    if not len(u):
        return np.empty(0, dtype=np.int64)
    # In one order whatever the order of the prompts: sums of floats depend on it.
    order = np.lexsort((np.asarray(tie_break), u))
    u, low, high = u[order], low[order], high[order]
    split = _round(_water_fill(u, budget, low, high), budget, low, high)
    result = np.empty_like(split)
    result[order] = split
    return result


def _water_fill(u: Floats, budget: int, low: NDArray[np.int64], high: NDArray[np.int64]) -> Floats:
    """clip(c u, low, high) with the c at which it sums to the budget: piecewise linear in c, so found exactly."""
    top = float(u.max(initial=0.0))
    # Priority 0 comes last, not never.
    u = np.maximum(u / top, 1e-12) if top > 0 else np.ones_like(u)
    corners = np.concatenate([low / u, high / u])
    order = np.argsort(corners, kind="stable")
    corners = corners[order]
    slopes = np.cumsum(np.concatenate([u, -u])[order])
    # Sum of the split at each corner; below the first corner every prompt is at its lower bound.
    sums = low.sum() + np.concatenate([[0.0], np.cumsum(slopes[:-1] * np.diff(corners))])
    at = int(np.clip(np.searchsorted(sums, budget, side="right") - 1, 0, len(corners) - 1))
    c = corners[at] + ((budget - sums[at]) / slopes[at] if slopes[at] > 1e-12 else 0.0)
    return np.clip(c * u, low, high)


def _round(quota: Floats, budget: int, low: NDArray[np.int64], high: NDArray[np.int64]) -> NDArray[np.int64]:
    """Largest remainders up. Arrays are in the order (u, tie_break) already, so a stable sort settles ties."""
    split = np.floor(quota + 1e-9).astype(np.int64)
    remainder = quota - split
    # One pass, except where float noise in the quotas of millions of prompts adds up to more than a unit each.
    while rest := budget - int(split.sum()):
        sign = 1 if rest > 0 else -1
        room = np.flatnonzero(split < high if sign > 0 else split > low)
        chosen = room[np.argsort(-sign * remainder[room], kind="stable")[: abs(rest)]]
        split[chosen] += sign
        remainder[chosen] -= sign
    return split
