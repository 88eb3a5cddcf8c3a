"""From a closed pool to the group that is trained: which samples, and with which coefficients.

Everything is computed in float64 from the whole pool; the kept samples only inherit the pool's statistics. Which
baseline, correction and selection there are is in tables (`advantages`, `corrections`, `selection`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from openrlhf_ada.core.advantages import BASELINES, ESTIMATORS, Drawn, is_spread
from openrlhf_ada.core.corrections import CORRECTIONS, KeptSamples
from openrlhf_ada.core.least_noise import LeastNoiseFactor
from openrlhf_ada.core.objectives import Objective, TabulatedObjective
from openrlhf_ada.core.pieces import Need, Trait
from openrlhf_ada.core.selection import Selection
from openrlhf_ada.core.types import Bools, Floats, Ints, PromptPool, RewardScale, TrainingGroup

UnbiasedRate = Callable[[int, int], float]
"""(drawn, positives) -> the estimate of a pass rate without stopping bias."""


def own_rate(drawn: int, positives: int) -> float:
    """The unbiased estimate where outcomes had no say in how many were drawn."""
    return positives / drawn


def untrained_group(pool: PromptPool, size: int) -> TrainingGroup:
    """A group of `size` samples that trains nothing, for pools with fewer samples, which come more than once."""
    indices = tuple(sorted(i % len(pool) for i in range(size)))
    return TrainingGroup(pool.key, indices, (0.0,) * size, (0.0,) * size, resolved=False)


@dataclass(frozen=True, slots=True)
class GroupBuilder:
    """Selection, baseline and correction: a pool in, coefficients out.

    Args:
        estimator: OpenRLHF's advantage estimator (`advantages.ESTIMATORS`). With `gae` the critic is the baseline of
            every token, and a coefficient is a weight of the advantage.
        baseline: b, from which source (`advantages.BASELINES`).
        correction: how coefficients come from advantages (`corrections.CORRECTIONS`).
        objective: f.
        floor: smallest pass rate at which f' is taken.
        allocated: u(p), the weight that comes from drawing (and keeping) more; 1 where groups are equally large.
        rounding: see `advantages.Drawn`; for predicted baselines.
        factor: the same.
        graded: rewards say more than the outcome (raw scores), so samples of one outcome differ in what they teach.
    """

    selection: Selection
    estimator: str
    baseline: str = "pool"
    correction: str = "none"
    objective: Objective | TabulatedObjective = field(default_factory=Objective)
    floor: float = 0.0
    allocated: Callable[[float], float] = lambda p: 1.0
    rounding: float = 0.0
    factor: float = 1.0
    graded: bool = False

    def build(
        self,
        pool: PromptPool,
        rng: np.random.Generator,
        predicted: float | None = None,
        scale: RewardScale | None = None,
        unbiased_rate: UnbiasedRate = own_rate,
        factor: LeastNoiseFactor | None = None,
    ) -> TrainingGroup:
        """The trained group of a closed pool. `predicted`: pass rate known before sampling (ValueError where the
        baseline needs one and there is none). `scale`: what an outcome that the pool does not show is worth. `factor`:
        in the place of this builder's; the pool gets the `evidence` for it."""
        scores, rewards = pool.scores, pool.rewards
        kept = self.selection.keep(scores, rng)
        known: tuple[Any, ...] = (scores, rewards, kept, predicted, scale, unbiased_rate)
        coefficients, critic_weights = self.weigh(*known, strength=pool.strength)
        if factor is not None:
            without, _ = replace(self, factor=0.0).weigh(*known, strength=pool.strength)
            # Times the weight of each sample, which is in both.
            baselines = without - coefficients
            coefficients = without - factor.value * baselines
            pool.evidence = np.stack([pool.score_norms[list(kept)], without, baselines])
        return TrainingGroup(
            key=pool.key,
            indices=kept,
            coefficients=tuple(coefficients.tolist()),
            critic_weights=tuple(critic_weights.tolist()),
            resolved=self._is_resolved(scores[np.array(kept)] if self._lacks(Need.WHOLE_POOL) else scores),
        )

    def weigh(
        self,
        scores: Floats,
        rewards: Floats,
        kept: tuple[int, ...],
        predicted: float | None = None,
        scale: RewardScale | None = None,
        unbiased_rate: UnbiasedRate = own_rate,
        *,
        strength: float = 1.0,
    ) -> tuple[Floats, Floats]:
        """(coefficients, critic weights) of the samples `kept` of a pool, shapes (k,); arguments as for `build`.

        scores, rewards: of the whole pool, shapes (N,). strength: rollouts that `predicted` is worth, above 0.
        """
        index = np.array(kept)
        positive = scores > self.selection.threshold
        share, point = self._pass_rates(positive, predicted, unbiased_rate)
        in_ppo = self.estimator == "gae"
        critic_weights = self._stratum_factors(positive[index], share if in_ppo else float(positive.mean()))
        strata = np.ones(len(kept))
        if in_ppo:
            # The critic is the baseline, also of prompts with one outcome. What is left is the sample's weight:
            # without strata a balanced group pulls a prompt of pass rate 0.02 four times as hard as one of 0.5.
            advantages = ESTIMATORS["gae"].function(rewards[index], rewards) * critic_weights
        elif self._has(Need.NO_BASELINE):
            advantages = rewards[index]
        elif not self._has_gradient(scores, positive):
            return np.zeros(len(kept)), critic_weights
        else:
            if self._weighs and not self.graded and not self._is_resolved(scores):
                # f' multiplies what a pool of one outcome says of that outcome, not partial credit within it.
                rewards = np.full_like(rewards, rewards.mean())
            of_baseline = (strength, scale or RewardScale(), len(rewards), self.rounding, self.factor)
            drawn = Drawn(rewards, positive, point, *of_baseline)
            advantages = self._advantages(scores, drawn, index)
            strata = self._stratum_factors(positive[index], share)
        samples = KeptSamples(
            advantages=advantages,
            positive=positive[index],
            strata=strata,
            point=point,
            group_size=self.selection.group_size,
            objective=self.objective,
            floor=self.floor,
            allocated=self.allocated if self.selection.keeps_all else None,
        )
        return CORRECTIONS[self.correction].function(samples), critic_weights

    def _has(self, need: Need) -> bool:
        """Does the correction need this?"""
        return need in CORRECTIONS[self.correction].needs

    @property
    def _weighs(self) -> bool:
        """Does the correction work with pass rates?"""
        return self._has(Need.SUMMED_TOKENS)

    def _lacks(self, need: Need) -> bool:
        """Does the baseline lack this: WHOLE_POOL (it reads kept samples), SILENT_UNRESOLVED (it is from outside)?"""
        return need in BASELINES[self.baseline].lacks

    def _has_gradient(self, scores: Floats, positive: Bools) -> bool:
        """Are there differences to train on, or a baseline from outside the pool?"""
        if self._is_resolved(scores) or (self.graded and not self._weighs):
            return True
        if not self._lacks(Need.SILENT_UNRESOLVED):
            return False
        # Without a prediction f' is taken at the pool's own rate: at 0 it is largest, and there is nothing to weigh.
        predicts = Need.PREDICTION in BASELINES[self.baseline].needs
        return predicts or not self._weighs or self.graded or bool(positive.any())

    def _is_resolved(self, scores: Floats) -> bool:
        """Are there two outcomes? To a correction partial credit is none; else scores that differ are two."""
        if not self._weighs:
            return is_spread(scores)
        positive = scores > self.selection.threshold
        return bool(positive.any() and not positive.all())

    def _pass_rates(
        self, positive: Bools, predicted: float | None, unbiased_rate: UnbiasedRate
    ) -> tuple[float, float]:
        """(share of positives that the kept samples stand for, point at which f' is taken)."""
        drawn, positives = len(positive), int(positive.sum())
        own = positives / drawn
        if self.estimator == "gae":
            share = unbiased_rate(drawn, positives) if self._has(Need.UNBIASED_RATE) else own
            # At the prediction where there is one: by its own pass rate, an all-wrong pool would weigh most.
            return share, share if predicted is None else predicted
        needs = frozenset[Need]() if self._has(Need.NO_BASELINE) else BASELINES[self.baseline].needs
        share = unbiased_rate(drawn, positives) if Need.UNBIASED_RATE in needs else own
        if Need.PREDICTION not in needs:
            return share, share
        if predicted is None:
            raise ValueError(f"baseline {self.baseline!r} needs a pass rate known before sampling, and there is none")
        return share, predicted

    def _advantages(self, scores: Floats, drawn: Drawn, index: Ints) -> Floats:
        """r - b of the kept samples as OpenRLHF's estimator has them, shape (k,); 0 where there is no difference."""
        if self._lacks(Need.WHOLE_POOL):
            if not self.graded and not self._lacks(Need.SILENT_UNRESOLVED) and not is_spread(scores[index]):
                return np.zeros(len(index))
            drawn = replace(drawn, rewards=drawn.rewards[index], positive=drawn.positive[index])
            index = np.arange(len(index))
        advantages = BASELINES[self.baseline].function(drawn)
        estimator = ESTIMATORS[self.estimator]
        if self._lacks(Need.SILENT_UNRESOLVED) and Need.SILENT_UNRESOLVED not in estimator.needs:
            return advantages[index]
        if not is_spread(drawn.rewards):
            return np.zeros(len(index))
        return estimator.function(advantages, drawn.rewards)[index]

    def _stratum_factors(self, kept_positive: Bools, share: float) -> Floats:
        """share / (k+/k) for kept positives, (1 - share) / (k-/k) for kept negatives, k of them in all; shape (k,)."""
        kept, num_pos = len(kept_positive), int(kept_positive.sum())
        if self.selection.has(Trait.FAIR_SAMPLE):
            return np.ones(kept)
        return np.where(kept_positive, share * kept / max(num_pos, 1), (1.0 - share) * kept / max(kept - num_pos, 1))
