"""Ada-Seq: sample a prompt in waves until its exit rule holds or the cap is reached (Reinforce-Ada, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from openrlhf_ada.core.grouping import advantages, outcomes_differ, select_balanced, stratum_factors
from openrlhf_ada.core.policies.base import Action, Close, Draw, PromptView
from openrlhf_ada.core.stopping import ExitRule, next_wave
from openrlhf_ada.core.types import PromptPool, TrainingGroup


@dataclass(frozen=True, slots=True)
class Sequential:
    """Wave size M, cap N_max, group size n, and the host's estimator whose baseline is taken over the pool.

    The rule is read at multiples of M, from n samples on. Where the cap comes first, the pool is trained as it is
    (`keep`); with one outcome only, every coefficient of it is zero.
    """

    rule: ExitRule
    wave: int
    max_samples: int
    group_size: int
    estimator: str

    def decide(self, views: Sequence[PromptView]) -> Sequence[Action]:
        return [self._decide_one(view) for view in views]

    def _decide_one(self, view: PromptView) -> Action:
        drawn = len(view.samples)
        if drawn >= self.group_size and self.rule.is_met(view.samples):
            return Close(view.key)
        # Nothing can close before n samples are there, so the waves up to n go out at once.
        wave = self.wave if drawn else -(-self.group_size // self.wave) * self.wave
        size = next_wave(drawn, wave=wave, max_samples=self.max_samples)
        return Draw(view.key, size) if size else Close(view.key)

    def build(self, pool: PromptPool, rng: np.random.Generator) -> TrainingGroup:
        samples = pool.samples
        kept = select_balanced(samples, self.group_size, self.rule, rng)
        # Equal outcomes carry no signal, whatever a length penalty makes of their rewards.
        resolved = outcomes_differ(samples)
        strata = stratum_factors(samples, kept, self.rule)
        return TrainingGroup(
            key=pool.key,
            indices=kept,
            coefficients=self._coefficients(pool, kept, strata, resolved),
            critic_weights=strata,
            resolved=resolved,
        )

    def _coefficients(
        self, pool: PromptPool, kept: Sequence[int], strata: tuple[float, ...], resolved: bool
    ) -> tuple[float, ...]:
        """Pool advantages of the kept samples. In PPO the critic is the baseline, and the weight of its advantage is
        the stratum factor: without it a balanced group pulls a prompt of pass rate 0.02 four times as hard as 0.5.
        """
        if self.estimator == "gae":
            return strata
        if not resolved:
            return (0.0,) * len(kept)
        values = advantages([s.reward for s in pool.samples], self.estimator)
        return tuple(float(values[i]) for i in kept)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise ValueError(f"Ada-Seq keeps no state between steps, but the checkpoint holds {sorted(state)}")
