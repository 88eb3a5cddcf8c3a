"""From a closed pool to the group that is trained: which samples, and with which coefficients.

Everything is computed in float64 from the whole pool; the kept samples only inherit the pool's statistics.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openrlhf_ada.core.stopping import ExitRule
from openrlhf_ada.core.types import Sample

POOL_BASELINES = ("group_norm", "dr_grpo", "rloo", "reinforce_baseline")
"""Host estimators whose baseline can be taken from a pool."""

POOL_ESTIMATORS = (*POOL_BASELINES, "gae")
"""Host estimators for groups selected from a pool; with `gae` the critic is the baseline."""

NO_SPREAD = 1e-6
"""A pool whose rewards differ by no more than this (relative to their size) is constant: float residue of a mean must
never become a signal. Dividing by a tiny std would blow it up to advantages in the thousands."""


def select_balanced(pool: Sequence[Sample], n: int, rule: ExitRule, rng: np.random.Generator) -> tuple[int, ...]:
    """Indices (ascending) of n samples: up to floor(n/2) positives, negatives for the rest, spares filled from either.

    The draw within a stratum is seeded-uniform over the index-ordered pool (the published code keeps the first k,
    which in order of completion would prefer short answers). Raises ValueError if the pool holds fewer than n.
    """
    if len(pool) < n:
        raise ValueError(f"pool of {len(pool)} samples cannot fill a group of {n}")
    positives = [s.index for s in pool if rule.is_positive(s)]
    negatives = [s.index for s in pool if not rule.is_positive(s)]
    num_pos = min(len(positives), max(n // 2, n - len(negatives)))
    return tuple(sorted([*_choose(positives, num_pos, rng), *_choose(negatives, n - num_pos, rng)]))


def _choose(indices: Sequence[int], count: int, rng: np.random.Generator) -> list[int]:
    return [indices[int(i)] for i in rng.permutation(len(indices))[:count]]


def advantages(rewards: Sequence[float], estimator: str) -> np.ndarray:
    """Advantage of every sample of one pool against the pool's own statistics, float64, shape (N,).

    `group_norm`: (r - mean) / std with the unbiased std, as the host has it. `dr_grpo`, `reinforce_baseline`:
    r - mean. `rloo`: r - mean of the others. A constant pool has advantage exactly 0, and so has a pool of one. With N
    equal to the group size these are the host's own values. Raises ValueError for other estimators.
    """
    if estimator not in POOL_BASELINES:
        raise ValueError(f"estimator {estimator!r} has no pool baseline, expected one of {', '.join(POOL_BASELINES)}")
    r = np.asarray(rewards, dtype=np.float64)
    if not is_spread(r):
        return np.zeros_like(r)
    centred = r - r.mean()
    if estimator in ("dr_grpo", "reinforce_baseline"):
        return centred
    if estimator == "rloo":
        return centred * (len(r) / (len(r) - 1))
    return centred / (r.std(ddof=1) + 1e-9)


def outcomes_differ(samples: Sequence[Sample]) -> bool:
    """Do the metrics differ? The zero-signal test of the whole package: shaping of the reward has no part in it."""
    return is_spread(np.array([s.metric for s in samples]))


def is_spread(values: np.ndarray) -> bool:
    """Do the values differ, beyond float noise?"""
    if len(values) < 2:
        return False
    return bool(values.max() - values.min() > NO_SPREAD * max(1.0, float(np.abs(values).max())))


def stratum_factors(pool: Sequence[Sample], kept: Sequence[int], rule: ExitRule) -> tuple[float, ...]:
    """(N_c/N)/(k_c/n) per kept sample: what makes an average over the kept samples equal the pool's average.

    c is the sample's outcome (positive or negative), N_c its count in the pool, k_c among the n kept.
    """
    positive = {s.index: rule.is_positive(s) for s in pool}
    pool_pos = sum(positive.values())
    kept_pos = sum(positive[i] for i in kept)
    n, total = len(kept), len(pool)
    factor = {
        True: (pool_pos / total) / (kept_pos / n) if kept_pos else 0.0,
        False: ((total - pool_pos) / total) / ((n - kept_pos) / n) if n > kept_pos else 0.0,
    }
    return tuple(factor[positive[i]] for i in kept)
