"""What a policy remembers from step to step: pass rates per prompt, what outcomes are worth, a factor of baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from openrlhf_ada.core.estimators import Calibration, RateEstimator, RewardMeans, brier
from openrlhf_ada.core.grouping import GroupBuilder, UnbiasedRate, own_rate
from openrlhf_ada.core.least_noise import LeastNoiseFactor
from openrlhf_ada.core.types import Floats, PromptPool, Sample, TrainingGroup


@dataclass
class Memory:
    """An estimator of pass rates and, with `calibration`, a critic that is used only while it beats knowing nothing.

    `threshold`: a sample is positive iff its score exceeds it. `reward_half_life`: steps after which rewards count
    half in what an outcome is worth. `factor`: of a predicted baseline, where it is measured.
    """

    counts: RateEstimator
    threshold: float
    calibration: Calibration | None = None
    reward_half_life: float = 50.0
    factor: LeastNoiseFactor | None = None
    rewards: RewardMeans = field(init=False)

    def __post_init__(self) -> None:
        self.rewards = RewardMeans(self.reward_half_life)

    @property
    def uses_critic(self) -> bool:
        """Are predictions the critic's now?"""
        return self.calibration is not None and self.calibration.trusted

    def predict(self, pools: Sequence[PromptPool]) -> Floats:
        """Pass rates of prompts that are not sampled yet, shape (B,); the pools get them and their strength. Raises
        ValueError where the critic gave a prompt no finite value."""
        if not pools:
            return np.empty(0)
        values = None if self.calibration is None else self._critic_values(pools)
        rows = [pool.row for pool in pools]
        counted = self.counts.predict(rows)
        predicted = values if self.uses_critic and values is not None else counted
        for pool, rate, strength in zip(pools, predicted, self.counts.strength(rows), strict=True):
            pool.predicted, pool.strength = float(rate), float(strength)
        return predicted

    @staticmethod
    def _critic_values(pools: Sequence[PromptPool]) -> Floats:
        """The critic's values as pass rates, in [0, 1]."""
        values = np.array([np.nan if pool.critic_value is None else pool.critic_value for pool in pools], dtype=float)
        if not np.isfinite(values).all():
            bad = pools[int(np.flatnonzero(~np.isfinite(values))[0])]
            raise ValueError(
                f"the critic's value of row {bad.row} is {bad.critic_value}: it has no pass rate to predict from. "
                f"Lower --critic.adam.lr, or use --ada_estimator ema"
            )
        return np.clip(values, 0.0, 1.0)

    def observe(self, pools: Sequence[PromptPool], first: int | None = None) -> dict[str, float]:
        """One step's closed pools; returns figures on how good the predictions were. `first`: learn from so many
        first samples alone, which have no stopping bias where outcomes decided how many were drawn."""
        rows = np.array([pool.row for pool in pools])
        heads = [pool.scores[:first] > self.threshold for pool in pools]
        draws = np.array([len(head) for head in heads])
        positives = np.array([int(head.sum()) for head in heads])
        prior = self.counts.population_mean
        figures = {
            "ada/prior_brier": brier(prior, draws, positives),
            "ada/estimator_brier": brier(np.array([pool.predicted for pool in pools]), draws, positives),
        }
        if self.counts.give_up:
            figures["ada/given_up"] = float(self.counts.given_up(rows).sum())
        if self.calibration is not None:
            values = self._critic_values(pools)
            figures["ada/critic_in_use"] = float(self.uses_critic)
            figures["ada/critic_brier"] = brier(values, draws, positives)
            self.calibration.record(values, prior, draws, positives)
        if self.factor is not None:
            figures["ada/baseline_factor"] = self.factor.value
            self._observe_noise(self.factor, pools)
        self.counts.observe(rows, draws, positives)
        scores = np.concatenate([pool.scores for pool in pools])
        self.rewards.observe(np.concatenate([pool.rewards for pool in pools]), scores > self.threshold)
        return figures

    @staticmethod
    def _observe_noise(factor: LeastNoiseFactor, pools: Sequence[PromptPool]) -> None:
        """Of what was built. Simulated rollouts have no log-probabilities: the factor stays what it is."""
        built = [pool.evidence for pool in pools if pool.evidence is not None]
        known = np.hstack([seen for seen in built if not np.isnan(seen).any()] or [np.empty((3, 0))])
        factor.observe(*known)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"counts": self.counts.state_dict(), "rewards": self.rewards.state_dict()}
        if self.calibration is not None:
            state["calibration"] = self.calibration.state_dict()
        if self.factor is not None:
            state["factor"] = self.factor.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counts.load_state_dict(state["counts"])
        self.rewards.load_state_dict(state["rewards"])
        if self.calibration is not None and "calibration" in state:
            self.calibration.load_state_dict(state["calibration"])
        if self.factor is not None and "factor" in state:
            self.factor.load_state_dict(state["factor"])


class Remembering:
    """What our policies do with their memory. `kind` is its name in a checkpoint; `first`: see `Memory.observe`."""

    kind: ClassVar[str]
    builder: GroupBuilder
    memory: Memory | None

    @property
    def first(self) -> int | None:
        return None

    @property
    def reads_critic(self) -> bool:
        return self.memory is not None and self.memory.calibration is not None

    def chance_of_need(self, pool: PromptPool, ahead: Sequence[Sample], sent: int) -> float:
        """0: a split is all that is drawn."""
        return 0.0

    def _group(
        self, pool: PromptPool, rng: np.random.Generator, unbiased_rate: UnbiasedRate = own_rate
    ) -> TrainingGroup:
        """Of the builder, with what is remembered."""
        scale, factor = (None, None) if self.memory is None else (self.memory.rewards.scale, self.memory.factor)
        return self.builder.build(pool, rng, pool.predicted, scale, unbiased_rate, factor)

    def load_prior_counts(self, draws: ArrayLike, positives: ArrayLike) -> None:
        if self.memory is not None:
            self.memory.counts.load_prior_counts(draws, positives)

    def observe(self, pools: Sequence[PromptPool]) -> dict[str, float]:
        return {} if self.memory is None else self.memory.observe(pools, self.first)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.memory is None else {self.kind: self.memory.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        expected = [] if self.memory is None else [self.kind]
        if list(state) != expected:
            raise ValueError(
                f"the checkpoint's sampling policy has the state {list(state)}, these flags go on from {expected}: "
                f"resume with the --ada_... flags that it was written with"
            )
        if self.memory is not None:
            self.memory.load_state_dict(state[self.kind])
