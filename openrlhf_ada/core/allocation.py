"""How a fixed number of rollouts is split among prompts: by priorities u(p), or by what one rollout more is worth."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from openrlhf_ada.core.pieces import Need, Piece, Table
from openrlhf_ada.core.types import Floats, Ints

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


@PRIORITIES.add("gvm", lacks=_NO_WEIGHT)
def gvm(p: Floats) -> Floats:
    """1 / sqrt(p + 0.001 / p): GVM-RAFT (arXiv 2505.02391, its code's alpha and beta) with all gradient norms 1."""
    return 1.0 / np.sqrt(p + 1e-3 / p)


@PRIORITIES.add("dars")
def dars(p: Floats) -> Floats:
    """1 / (4 p (1 - p)) below p = 1/2, 1 above (DARS, arXiv 2508.13755, equal-treatment schedule of its code).

    So all prompts below 1/2 have the summed absolute advantage that 1/2 has. DARS takes p from first rollouts.
    """
    return 1.0 / np.where(p < 0.5, 4.0 * p * (1.0 - p), 1.0)


# -- what one rollout more is worth -----------------------------------------------------------------------------------

GAINS: Table[Callable[[Floats, Floats], Floats]] = Table()
"""Functions (p, n) -> gain of the rollout after the n-th, broadcast. Each falls as n grows: a separable
concave problem, for which it is optimal to take the largest gains first."""


@GAINS.add("vip", lacks=_NO_WEIGHT)
def least_variance(p: Floats, n: Floats) -> Floats:
    """Fall of p (1 - p) / (n - 1), the variance of RLOO's gradient (VIP, arXiv 2602.01601; n at least 2).

    The released code subtracts 7e-4 n log p as well. The paper does not, and neither do we.
    """
    return p * (1.0 - p) * (1.0 / np.maximum(n - 1.0, 0.5) - 1.0 / n)


@GAINS.add("knapsack", lacks=_NO_WEIGHT)
def knapsack(p: Floats, n: Floats) -> Floats:
    """Growth of (1 - p^n - (1 - p)^n) p (1 - p)^2: chance of two outcomes x expected progress (arXiv 2509.25849).

    It falls with n, so no dynamic programme is needed. The released one overrates the first rollout above the least.
    """
    return (p**n * (1.0 - p) + (1.0 - p) ** n * p) * p * (1.0 - p) ** 2


PILOTED: Table[Callable[[Floats, Floats, Floats], Floats]] = Table()
"""Functions (a, b, extra) -> gain of one rollout more for a prompt of pass rate Beta(a, b), known from a first round,
after `extra` rollouts of the second. Each falls as `extra` grows."""


@PILOTED.add("hit", lacks=_NO_WEIGHT)
def hit(a: Floats, b: Floats, extra: Floats) -> Floats:
    """E[p (1 - p)^extra], the chance that this rollout is the second round's first positive (HORA, arXiv 2605.07114).

    It is B(a + 1, b + extra) / B(a, b); from a replication, not checked against the paper.
    """
    return np.exp(_log_beta(a + 1.0, b + extra) - _log_beta(a, b))


_LGAMMA = np.vectorize(math.lgamma, otypes=[float])


def _log_beta(a: Floats, b: Floats) -> Floats:
    return _LGAMMA(a) + _LGAMMA(b) - _LGAMMA(a + b)


ALLOCATIONS: Mapping[str, Piece[Any]] = ChainMap(PILOTED, GAINS, PRIORITIES)
"""All that --ada_allocation offers."""


def priority(name: str, pass_rates: ArrayLike, floor: float) -> Floats:
    """u(p), shape (B,), with p moved into [floor, 1 - floor] first."""
    p = np.clip(np.asarray(pass_rates, dtype=np.float64), floor, 1.0 - floor)
    return PRIORITIES[name].function(p)


def allocate(priorities: ArrayLike, budget: int, lower: ArrayLike, upper: ArrayLike, tie_break: ArrayLike) -> Ints:
    """Integers n with sum `budget` and lower <= n <= upper, as near to proportional as the bounds allow.

    The real-valued split is n = clip(c u, lower, upper) with the one c that meets the budget; the largest remainders
    are rounded up, equal ones in the order of `tie_break`. The result does not depend on the order of the prompts, and
    with equal bounds a higher priority never gets fewer.

    Args:
        priorities: u >= 0, shape (B,). Prompts of priority 0 get more than their lower bound when all others are full.
        lower: least number of each prompt, shape (B,) or a scalar.
        upper: largest.
        tie_break: a different number for each prompt, shape (B,).

    Returns int64, shape (B,). Raises ValueError where the bounds leave no room for the budget, and for priorities that
    are negative or not finite.
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
    order = np.lexsort((np.asarray(tie_break), -u))
    u, low, high = u[order], low[order], high[order]
    result = np.empty(len(u), dtype=np.int64)
    result[order] = _round(_water_fill(u, budget, low, high), budget, low, high)
    return result


def split(
    name: str, pass_rates: ArrayLike, budget: int, lower: int, upper: int, floor: float, given_up: ArrayLike,
    tie_break: ArrayLike,
) -> Ints:  # fmt: skip
    """Rollouts of prompts of these pass rates, shape (B,), by one of PRIORITIES or GAINS; their sum is the budget.

    given_up: which prompts get more than `lower` only where all others are at `upper`, bool, shape (B,). Pass rates
    are moved into [floor, 1 - floor] first. Raises ValueError where the bounds leave no room for the budget.
    """
    hopeless = np.asarray(given_up, dtype=bool)
    if name in PRIORITIES:
        priorities = priority(name, pass_rates, floor)
        priorities[hopeless] = 0.0
        return allocate(priorities, budget, lower, upper, tie_break)
    p = np.clip(np.asarray(pass_rates, dtype=np.float64), floor, 1.0 - floor)
    gains = GAINS[name].function(p[:, None], np.arange(lower, upper, dtype=np.float64)[None, :])
    gains[hopeless] = -1.0
    return lower + take_best(gains, budget - lower * len(p), tie_break)


def take_best(gains: Floats, budget: int, tie_break: ArrayLike) -> Ints:
    """How many of each row's gains are taken, from the left, so that their sum is largest; int64, shape (B,).

    gains: shape (B, most), not rising along a row. Equal ones go to the row that has fewer, then in the order of
    `tie_break`. Raises ValueError unless 0 <= budget <= gains.size.
    """
    if not 0 <= budget <= gains.size:
        raise ValueError(f"{budget} rollouts above the least numbers do not fit the bounds, which allow {gains.size}")
    # Rounding must not make a row rise: a later gain would be taken before an earlier one.
    falling = np.minimum.accumulate(gains, axis=1)
    rows, level = np.indices(gains.shape)
    ties = np.asarray(tie_break)[rows]
    order = np.lexsort((ties.ravel(), level.ravel(), -falling.ravel()))[:budget]
    return np.bincount(rows.ravel()[order], minlength=len(gains)).astype(np.int64)


def _water_fill(u: Floats, budget: int, low: Ints, high: Ints) -> Floats:
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


def _round(quota: Floats, budget: int, low: Ints, high: Ints) -> Ints:
    """Largest remainders up. Highest priorities come first, then `tie_break`: a stable sort settles ties so."""
    split = np.floor(quota + 1e-9).astype(np.int64)
    remainder = quota - split
    # One pass, except where float noise in the quotas of millions of prompts adds up to more than a unit each.
    while rest := budget - int(split.sum()):
        sign = 1 if rest > 0 else -1
        room = np.flatnonzero(split < high if sign > 0 else split > low)
        ranked = room[np.argsort(-remainder[room], kind="stable")]
        chosen = ranked[:rest] if rest > 0 else ranked[rest:]
        split[chosen] += sign
        remainder[chosen] -= sign
    return split
