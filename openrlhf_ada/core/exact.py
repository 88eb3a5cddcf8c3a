"""What a policy's settings optimise, by exact enumeration of all states in which sampling can end.

Effective-weight identity: E[sum c_i grad log pi(y_i)] = n f'(p) grad p, with f'(p) = E[C+ / p + C- / (1 - p)] / n, C+
the sum of the coefficients of the kept positives, C- minus that of the negatives. For scores and rewards of 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openrlhf_ada.core.allocation import allocate, priority
from openrlhf_ada.core.grouping import GroupBuilder
from openrlhf_ada.core.objectives import effective_weight
from openrlhf_ada.core.pieces import Trait
from openrlhf_ada.core.policies import Estimated, Sequential
from openrlhf_ada.core.stopping_paths import StoppingPlan

Floats = NDArray[np.float64]

NEGLIGIBLE = 1e-14
"""End states less likely than this are left out: their coefficients are bounded by f'(floor) n."""


@dataclass(frozen=True, slots=True)
class Weight:
    """Of one prompt's trained group.

    `effective` is f'(p). Of a coefficient: `mean` and `square` (the mean of its square), over end states and the n
    samples of the group; `largest`, the largest absolute one that comes up with more than a negligible chance.
    """

    effective: float
    mean: float
    square: float
    largest: float

    @property
    def variance(self) -> float:
        """Of a coefficient."""
        return self.square - self.mean**2

    @property
    def noise(self) -> float:
        """Standard deviation of the group's update per unit of signal, for independent score vectors of length 1."""
        return math.sqrt(self.square) / abs(self.effective) if self.effective else math.inf


def sequential_weight(policy: Sequential, p: float, predicted: float | None = None) -> Weight:
    """What Ada-Seq weighs a prompt of pass rate p in (0, 1) by.

    `predicted`: what the policy takes the rate to be (default: p).
    """
    return _weight(policy.builder, policy.plan, p, p if predicted is None else predicted)


def drawn_weight(builder: GroupBuilder, drawn: int, p: float, predicted: float | None = None) -> Weight:
    """The same for a prompt that gets `drawn` rollouts, whatever they show."""
    return _weight(builder, StoppingPlan(0, 0, drawn, drawn, drawn), p, p if predicted is None else predicted)


def estimated_weights(policy: Estimated, rates: ArrayLike, at: ArrayLike | None = None) -> list[Weight]:
    """What Ada-Est weighs prompts by, in a batch of pass rates `rates`, shape (B,), all predicted right.

    The split depends on the batch, so the weights do. `at`: positions in `rates` to answer for (default: all).
    """
    p = np.asarray(rates, dtype=np.float64)
    split = expected_split(policy, p)
    chosen = np.arange(len(p)) if at is None else np.asarray(at)
    return [drawn_weight(policy.builder, int(split[i]), float(p[i])) for i in chosen]


def expected_split(policy: Estimated, rates: Floats) -> NDArray[np.int64]:
    """Rollouts of each prompt of a batch whose pass rates are predicted right, shape (B,)."""
    budget = round(policy.budget * len(rates))
    u = priority(policy.allocation, rates, policy.floor)
    return allocate(u, budget, policy.min_samples, policy.max_samples, np.arange(len(rates)))


def _weight(builder: GroupBuilder, plan: StoppingPlan, p: float, predicted: float) -> Weight:
    effective = mean = square = largest = 0.0
    n = builder.selection.group_size
    for (drawn, positives), chance in plan.outcomes(p).items():
        if chance < NEGLIGIBLE:
            continue
        scores = (np.arange(drawn) < positives).astype(np.float64)
        for share, kept in _kept(builder, scores, positives):
            c, _ = builder.weigh(scores, scores, kept, predicted, None, plan.unbiased_rate)
            positive = np.array(kept) < positives
            if builder.estimator == "gae":
                # With a perfect critic: what is left of the reward beyond the pass rate.
                c = c * np.where(positive, 1.0 - p, -p)
            mass = chance * share
            effective += mass * effective_weight(c, positive, p, n)
            mean += mass * float(c.sum()) / n
            square += mass * float((c**2).sum()) / n
            largest = max(largest, float(np.abs(c).max(initial=0.0)))
    return Weight(effective, mean, square, largest)


def _kept(builder: GroupBuilder, scores: Floats, positives: int) -> Iterator[tuple[float, tuple[int, ...]]]:
    """(probability, indices) of the groups that a pool of 0/1 scores, positives first, can lead to.

    Which samples of an outcome are kept makes no difference to their coefficients. Raises ValueError for a selection
    that does not say how many it keeps of each outcome (`Trait`).
    """
    selection = builder.selection
    drawn, n = len(scores), selection.group_size
    if selection.has(Trait.OUTCOMES_BY_COUNT):
        # Samples of one outcome have equal coefficients, so any generator will do.
        yield 1.0, selection.keep(scores, np.random.Generator(np.random.PCG64(0)))
        return
    if not selection.has(Trait.FAIR_SAMPLE):
        raise ValueError(f"selection {selection.name!r} declares no Trait, so its groups cannot be enumerated")
    total = math.comb(drawn, n)
    for k in range(max(0, n - (drawn - positives)), min(n, positives) + 1):
        share = math.comb(positives, k) * math.comb(drawn - positives, n - k) / total
        yield share, (*range(k), *range(positives, positives + n - k))
