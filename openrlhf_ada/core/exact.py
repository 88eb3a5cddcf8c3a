"""What a policy's settings optimise, by exact enumeration of all states in which sampling can end.

Effective-weight identity: E[sum c_i grad log pi(y_i)] = n f'(p) grad p, with f'(p) = E[C+ / p + C- / (1 - p)] / n, C+
the sum of the coefficients of the kept positives, C- minus that of the negatives. For scores and rewards of 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from openrlhf_ada.core.grouping import GroupBuilder, UnbiasedRate
from openrlhf_ada.core.objectives import effective_weight
from openrlhf_ada.core.pieces import Trait
from openrlhf_ada.core.policies import Estimated, Sequential, TwoStage
from openrlhf_ada.core.stopping import ExitRule, StoppingPlan
from openrlhf_ada.core.types import Floats, Ints

End = tuple[int, int, float, UnbiasedRate]
"""An end of sampling: (N drawn, K positive, its probability, the pass rate without stopping bias)."""

NEGLIGIBLE = 1e-14
"""End states less likely than this are left out: their coefficients are bounded by f'(floor) n."""


@dataclass(frozen=True, slots=True)
class Weight:
    """Of one prompt's trained group: `effective` is f'(p), `square` the mean square of a coefficient, over end states
    and the n samples of the group."""

    effective: float
    square: float

    @property
    def noise(self) -> float:
        """Standard deviation of the group's update per unit of signal, for independent score vectors of length 1."""
        return math.sqrt(self.square) / abs(self.effective) if self.effective else math.inf


def sequential_weight(policy: Sequential, p: float, predicted: float | None = None) -> Weight:
    """What Ada-Seq weighs a prompt of pass rate p in (0, 1) by.

    `predicted`: what the policy takes the rate to be (default: p).
    """
    # Pools that a gate closed before n samples are not trained.
    ends = (end for end in _ends(policy.plan, p) if policy.rule.gate is None or end[0] >= policy.group_size)
    return _weight(policy.builder, ends, p, p if predicted is None else predicted)


def drawn_weight(builder: GroupBuilder, drawn: int, p: float, predicted: float | None = None) -> Weight:
    """The same for a prompt that gets `drawn` rollouts, whatever they show."""
    plan = StoppingPlan(ExitRule(0, 0, builder.selection.threshold), drawn, drawn, drawn)
    return _weight(builder, _ends(plan, p), p, p if predicted is None else predicted)


def estimated_weights(policy: Estimated, rates: ArrayLike, at: ArrayLike | None = None) -> list[Weight]:
    """What Ada-Est weighs prompts by, in a batch of pass rates `rates`, shape (B,), all predicted right.

    The split depends on the batch, so the weights do. `at`: positions in `rates` to answer for (default: all).
    """
    p = np.asarray(rates, dtype=np.float64)
    split = expected_split(policy, p)
    chosen = np.arange(len(p)) if at is None else np.asarray(at)
    return [drawn_weight(policy.builder, int(split[i]), float(p[i])) for i in chosen]


def expected_split(policy: Estimated, rates: Floats) -> Ints:
    """Rollouts of each prompt of a batch whose pass rates are predicted right, shape (B,)."""
    return policy.split(rates, np.zeros(len(rates), dtype=bool), np.arange(len(rates)))


def two_stage_weights(policy: TwoStage, rates: ArrayLike, at: ArrayLike | None = None) -> list[Weight]:
    """What two rounds weigh prompts by, in a large batch in which each of `rates`, shape (B,), is equally frequent.

    `at`: as for `estimated_weights`. Predictions for a baseline are right.
    """
    p = np.asarray(rates, dtype=np.float64)
    pilots = np.array([pilot_chances(policy.pilot, rate) for rate in p])
    extra = extra_chances(policy, pilots.mean(axis=0))
    chosen = range(len(p)) if at is None else np.asarray(at).tolist()
    return [
        _weight(policy.builder, _two_stage_ends(pilots[i], extra, float(p[i])), float(p[i]), float(p[i]))
        for i in chosen
    ]


def extra_chances(policy: TwoStage, pilots: Floats) -> Floats:
    """Shares of prompts with k positives in the first round that get so many rollouts in the second, shape
    (G + 1, most + 1). `pilots`: shares of prompts with k = 0, 1, ... positives, shape (G + 1,)."""
    # A large batch takes gains from the largest down, and stops within those of one k.
    least = policy.extra_bounds[0]
    gains = policy.gains(np.arange(policy.pilot + 1))
    k, level = (index.ravel() for index in np.indices(gains.shape))
    order = np.lexsort((level, -gains.ravel()))
    mass = pilots[k[order]]
    before = np.concatenate([[0.0], np.cumsum(mass)[:-1]])
    left = policy.budget - policy.pilot - least - before
    taken = np.zeros_like(gains)
    taken[k[order], level[order]] = np.clip(np.divide(left, mass, out=np.zeros_like(mass), where=mass > 0), 0.0, 1.0)
    ends = np.hstack([np.ones((len(gains), 1)), taken]) - np.hstack([taken, np.zeros((len(gains), 1))])
    return np.hstack([np.zeros((len(gains), least)), ends])


def pilot_chances(pilot: int, p: float) -> Floats:
    """Of 0, 1, ..., `pilot` positives."""
    return np.array([math.comb(pilot, k) * p**k * (1.0 - p) ** (pilot - k) for k in range(pilot + 1)])


def _two_stage_ends(pilots: Floats, extra: Floats, p: float) -> Iterator[End]:
    pilot = len(pilots) - 1
    for k, count in np.argwhere(extra).tolist():
        for more, chance in enumerate(pilot_chances(count, p)):
            mass = float(pilots[k] * extra[k, count] * chance)
            yield pilot + count, k + more, mass, lambda drawn, positives, rate=k / pilot: rate


def _ends(plan: StoppingPlan, p: float) -> Iterator[End]:
    for (drawn, positives), chance in plan.outcomes(p).items():
        yield drawn, positives, chance, plan.unbiased_rate


def _weight(builder: GroupBuilder, ends: Iterable[End], p: float, predicted: float) -> Weight:
    effective = square = 0.0
    n = builder.selection.group_size
    for drawn, positives, chance, unbiased_rate in ends:
        if chance < NEGLIGIBLE:
            continue
        scores = (np.arange(drawn) < positives).astype(np.float64)
        for share, kept in _kept(builder, scores, positives):
            c, _ = builder.weigh(scores, scores, kept, predicted, None, unbiased_rate)
            positive = np.array(kept) < positives
            if builder.estimator == "gae":
                # With a perfect critic: what is left of the reward beyond the pass rate.
                c = c * np.where(positive, 1.0 - p, -p)
            mass = chance * share
            effective += mass * effective_weight(c, positive, p, n)
            square += mass * float((c**2).sum()) / n
    return Weight(effective, square)


def _kept(builder: GroupBuilder, scores: Floats, positives: int) -> Iterator[tuple[float, tuple[int, ...]]]:
    """(probability, indices) of each group of a pool of 0/1 scores, positives first; ValueError without a `Trait`."""
    selection = builder.selection
    drawn, n = len(scores), selection.group_size
    if selection.has(Trait.OUTCOMES_BY_COUNT):
        # Samples of one outcome have equal coefficients: any of them will do.
        yield 1.0, selection.keep(scores, np.random.Generator(np.random.PCG64(0)))
        return
    if selection.has(Trait.BEST_AND_FAIR) and positives:
        # The first is kept, and the others are a fair sample of what is left.
        for k, share in _fair_counts(drawn - 1, positives - 1, n - 1):
            yield share, (*range(k + 1), *range(positives, positives + n - k - 1))
        return
    if not (selection.has(Trait.FAIR_SAMPLE) or selection.has(Trait.BEST_AND_FAIR)):
        raise ValueError(f"selection {selection.name!r} declares no Trait, so its groups cannot be enumerated")
    for k, share in _fair_counts(drawn, positives, n):
        yield share, (*range(k), *range(positives, positives + n - k))


def _fair_counts(drawn: int, positives: int, n: int) -> Iterator[tuple[int, float]]:
    """(positives among n of the samples drawn, its chance)."""
    for k in range(max(0, n - (drawn - positives)), min(n, positives) + 1):
        yield k, math.comb(positives, k) * math.comb(drawn - positives, n - k) / math.comb(drawn, n)
