"""From a closed pool to the group that is trained: which samples, and with which coefficients.

Everything is computed in float64 from the whole pool; the kept samples only inherit the pool's statistics. What a
combination of these options optimises follows from the effective-weight identity (`objectives.effective_weight`), and
docs/algorithms.md has the figures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from openrlhf_ada.core.objectives import Objective, TabulatedObjective
from openrlhf_ada.core.selection import Selection
from openrlhf_ada.core.types import PromptPool, RewardScale, TrainingGroup

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

GROUP_ESTIMATORS = ("group_norm", "dr_grpo", "rloo", "reinforce_baseline")
"""Host estimators whose baseline can be taken from a pool."""

POOL_ESTIMATORS = (*GROUP_ESTIMATORS, "gae")
"""Host estimators for groups selected from a pool; with `gae` the critic is the baseline."""

BASELINES = ("pool", "loo", "kept", "first_wave", "estimator", "critic", "none")
OUTSIDE_BASELINES = ("estimator", "critic", "none")
"""Baselines that owe nothing to the pool: with these a pool of one outcome has a gradient."""

CORRECTIONS = ("none", "paper", "stratum", "positives")

NO_SPREAD = 1e-6
"""A pool whose rewards differ by no more than this (relative to their size) is constant: float residue of a mean must
never become a signal. Dividing by a tiny std would blow it up to advantages in the thousands."""


@dataclass(frozen=True, slots=True)
class GroupBuilder:
    """Selection, baseline and correction: a pool in, coefficients out.

    Args:
        estimator: the host's advantage estimator (POOL_ESTIMATORS). `group_norm` divides by the pool's std; with `gae`
            the critic is the baseline of every token, and a coefficient is a weight of the advantage.
        baseline: b, from which source (BASELINES).
        correction: `none`: advantage alone. `paper`: times f'(p) over what allocation has given already.
            `stratum`: positives f'(p) s (n/k+), negatives f'(p) (1 - s) (n/k-), so that the kept samples stand for
            the share s of positives in all that was drawn. `positives`: n/k+ for positives, 0 for negatives, whose
            expectation is the derivative of the log objective truncated at N (sum over k of pass@k / k).
        objective: f.
        floor: smallest pass rate at which f' is taken.
        allocated: u(p), the weight that comes from drawing (and keeping) more; 1 where groups are equally large.
        graded: rewards say more than the outcome (raw scores), so samples of one outcome differ in what they teach.
    """

    selection: Selection
    estimator: str
    baseline: str = "pool"
    correction: str = "none"
    objective: Objective | TabulatedObjective = field(default_factory=Objective)
    floor: float = 0.0
    allocated: Callable[[float], float] = lambda p: 1.0
    graded: bool = False

    def build(
        self,
        pool: PromptPool,
        rng: np.random.Generator,
        predicted: float | None = None,
        scale: RewardScale | None = None,
        unbiased_rate: Callable[[int, int], float] = lambda drawn, positives: positives / drawn,
    ) -> TrainingGroup:
        """The trained group of a closed pool.

        Args:
            predicted: pass rate known before sampling; needed for baselines `estimator` and `critic` (ValueError).
            scale: what an outcome that the pool does not show is worth.
            unbiased_rate: (drawn, positives) -> the estimate of p without stopping bias. The default is right where
                outcomes had no say in how many were drawn.
        """
        metrics, rewards = pool.metrics, pool.rewards
        kept = self.selection.keep(metrics, rng)
        coefficients, critic_weights = self.weigh(metrics, rewards, kept, predicted, scale, unbiased_rate)
        return TrainingGroup(
            key=pool.key,
            indices=kept,
            coefficients=tuple(coefficients.tolist()),
            critic_weights=tuple(critic_weights.tolist()),
            resolved=self._is_resolved(metrics[np.array(kept)] if self.baseline == "kept" else metrics),
        )

    def weigh(
        self,
        metrics: Floats,
        rewards: Floats,
        kept: tuple[int, ...],
        predicted: float | None = None,
        scale: RewardScale | None = None,
        unbiased_rate: Callable[[int, int], float] = lambda drawn, positives: positives / drawn,
    ) -> tuple[Floats, Floats]:
        """(coefficients, critic weights) of the samples `kept` of a pool, shapes (k,); arguments as for `build`.

        metrics, rewards: of the whole pool in index order, shapes (N,).
        """
        positive = metrics > self.selection.threshold
        share, point = self._pass_rates(positive, predicted, unbiased_rate)
        in_ppo = self.estimator == "gae"
        critic_weights = self._stratum_factors(positive, kept, share if in_ppo else float(positive.mean()))
        index = np.array(kept)
        if self.correction == "positives":
            num_pos = int(positive[index].sum())
            return np.where(positive[index], self.selection.group_size / max(num_pos, 1), 0.0), critic_weights
        if in_ppo:
            # The critic is the baseline, also of prompts with one outcome. What is left is the sample's weight:
            # without strata a balanced group pulls a prompt of pass rate 0.02 four times as hard as one of 0.5.
            advantages, strata = np.ones(len(kept)), critic_weights
        elif not self._has_gradient(metrics, positive):
            return np.zeros(len(kept)), critic_weights
        else:
            if self.correction != "none" and not self.graded and not self._is_resolved(metrics):
                # f' multiplies what a pool of one outcome says of that outcome, not partial credit within it.
                rewards = np.full_like(rewards, rewards.mean())
            advantages = self._advantages(metrics, rewards, index, share, point, scale or RewardScale())
            is_exact = self.correction == "stratum"
            strata = self._stratum_factors(positive, kept, share) if is_exact else np.ones(len(kept))
        weight = self._weight(point, kept_all=self.selection.name == "all", kept=len(kept))
        return advantages * strata * weight, critic_weights

    def _has_gradient(self, metrics: Floats, positive: Bools) -> bool:
        """Are there differences to train on, or a baseline from outside the pool?"""
        if self._is_resolved(metrics) or (self.graded and self.correction == "none"):
            return True
        if self.baseline == "none":
            # At a pass rate of 0, f' is largest, and without a positive there is nothing to weigh.
            return self.correction == "none" or self.graded or bool(positive.any())
        return self.baseline in OUTSIDE_BASELINES

    def _is_resolved(self, metrics: Floats) -> bool:
        """Does the pool show more than one outcome?

        Without a correction: metrics that differ, whatever a length penalty makes of their rewards. A correction
        reckons with pass rates, so it needs a positive and a negative: partial credit below the threshold is none.
        """
        if self.correction == "none":
            return is_spread(metrics)
        positive = metrics > self.selection.threshold
        return bool(positive.any() and not positive.all())

    def _pass_rates(
        self, positive: Bools, predicted: float | None, unbiased_rate: Callable[[int, int], float]
    ) -> tuple[float, float]:
        """(share of positives that the kept samples stand for, point at which f' is taken)."""
        drawn, positives = len(positive), int(positive.sum())
        if self.estimator == "gae":
            share = unbiased_rate(drawn, positives) if self.correction == "stratum" else positives / drawn
            # At the prediction where there is one: by its own pass rate, an all-wrong pool would weigh most.
            return share, share if predicted is None else predicted
        # The mean of the positives asks for no pass rate at all.
        if self.baseline in ("pool", "loo", "kept", "none") or self.correction == "positives":
            return positives / drawn, positives / drawn
        share = unbiased_rate(drawn, positives)
        if self.baseline == "first_wave":
            return share, share
        if predicted is None:
            raise ValueError(f"baseline {self.baseline!r} needs a pass rate known before sampling, and there is none")
        return share, predicted

    def _weight(self, point: float, *, kept_all: bool, kept: int) -> float:
        """f' as the correction has it; `kept_all` groups differ in size, which is a weight already."""
        if self.correction == "none":
            return 1.0
        weight = self.objective.weight(point, self.floor)
        if self.correction == "stratum":
            return weight * self.selection.group_size / kept
        return weight / self.allocated(min(max(point, self.floor), 1.0)) if kept_all else weight

    def _advantages(
        self,
        metrics: Floats,
        rewards: Floats,
        index: NDArray[np.int64],
        share: float,
        point: float,
        scale: RewardScale,
    ) -> Floats:
        """r - b of the kept samples, shape (k,); with `group_norm` over the standard deviation."""
        if self.baseline == "kept":
            kept_rewards = rewards[index]
            if not self.graded and not is_spread(metrics[index]):
                return np.zeros(len(index))
            return self._normalised(kept_rewards - kept_rewards.mean(), kept_rewards)
        if self.baseline == "pool":
            advantages = rewards - rewards.mean()
        elif self.baseline == "loo":
            advantages = (rewards - rewards.mean()) * (len(rewards) / max(len(rewards) - 1, 1))
        elif self.baseline == "none":
            advantages = rewards
        else:
            positive = metrics > self.selection.threshold
            rate = share if self.baseline == "first_wave" else point
            worth_pos = float(rewards[positive].mean()) if positive.any() else scale.positive
            worth_neg = float(rewards[~positive].mean()) if not positive.all() else scale.negative
            advantages = rewards - (rate * worth_pos + (1.0 - rate) * worth_neg)
        if self.baseline in OUTSIDE_BASELINES and self.estimator != "group_norm":
            return advantages[index]
        return self._normalised(advantages, rewards)[index]

    def _normalised(self, advantages: Floats, rewards: Floats) -> Floats:
        """With `group_norm` over the rewards' standard deviation; 0 where they do not differ."""
        if not is_spread(rewards):
            return np.zeros_like(advantages)
        # As in the host: the unbiased std, and its epsilon.
        return advantages / (rewards.std(ddof=1) + 1e-9) if self.estimator == "group_norm" else advantages

    def _stratum_factors(self, positive: Bools, kept: tuple[int, ...], share: float) -> Floats:
        """share / (k+/k) for kept positives, (1 - share) / (k-/k) for kept negatives, k of them in all; shape (k,).

        With share = K/N an average over the kept samples, so weighted, is the pool's average. A random group is a fair
        sample as it is.
        """
        if self.selection.name == "random":
            return np.ones(len(kept))
        kept_positive = positive[np.array(kept)]
        num_pos = int(kept_positive.sum())
        num_neg = len(kept) - num_pos
        return np.where(
            kept_positive, share * len(kept) / max(num_pos, 1), (1.0 - share) * len(kept) / max(num_neg, 1)
        )


def is_spread(values: Floats) -> bool:
    """Do the values differ, beyond float noise? Asked of metrics, the zero-signal test of the whole package."""
    if len(values) < 2:
        return False
    return bool(values.max() - values.min() > NO_SPREAD * max(1.0, float(np.abs(values).max())))
