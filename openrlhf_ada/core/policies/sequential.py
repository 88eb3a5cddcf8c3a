"""Ada-Seq: sample a prompt in waves until its exit rule holds or the cap is reached (Reinforce-Ada, Algorithm 2)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from openrlhf_ada.core.grouping import GroupBuilder, untrained_group
from openrlhf_ada.core.policies.base import Action, Close, Draw
from openrlhf_ada.core.policies.memory import Memory, Remembering
from openrlhf_ada.core.speculation import chance_of_count
from openrlhf_ada.core.stopping import ExitRule, StoppingPlan
from openrlhf_ada.core.types import PromptPool, Sample, TrainingGroup


@dataclass(frozen=True)
class Sequential(Remembering):
    """Wave size M, cap N_max, and the builder of the trained group of n.

    The rule is read at multiples of M, from n samples on. Where the cap comes first, the pool is trained as it is;
    with one outcome only it is *unresolved*. A pool that a gate closed before n samples were there is not trained.

    `memory`: counts over steps, for the baseline `estimator`; None where nothing is to be remembered.
    """

    rule: ExitRule
    wave: int
    max_samples: int
    builder: GroupBuilder
    memory: Memory | None = None
    kind: ClassVar[str] = "memory"

    @property
    def group_size(self) -> int:
        """n, the number of trained samples."""
        return self.builder.selection.group_size

    @cached_property
    def plan(self) -> StoppingPlan:
        """When the rule is read, and every state in which it can end sampling."""
        return StoppingPlan.of(self.rule, self.group_size, wave=self.wave, max_samples=self.max_samples)

    @property
    def first(self) -> int:
        return self.plan.looks[0]

    def decide(self, pools: Sequence[PromptPool]) -> Sequence[Action]:
        if self.memory is not None:
            self.memory.predict([pool for pool in pools if not len(pool)])
        return [self._decide_one(pool) for pool in pools]

    def _decide_one(self, pool: PromptPool) -> Action:
        # Nothing can close before the first look, so the waves up to it go out at once.
        drawn = len(pool)
        may_close = drawn >= min(self.group_size, self.plan.looks[0])
        if may_close and self.rule.is_met(drawn, pool.count_positives(self.rule.threshold)):
            return Close(pool.key)
        size = self.plan.next_draw(drawn)
        return Draw(pool.key, size) if size else Close(pool.key)

    def chance_of_need(self, pool: PromptPool, ahead: Sequence[Sample], sent: int) -> float:
        """That the rule does not hold at the last look before this sample. Spreads are read as counts."""
        looks = self.plan.looks
        if sent < looks[0]:
            return 1.0
        if sent >= looks[-1]:
            return 0.0
        look = looks[bisect_right(looks, sent) - 1]
        threshold = self.rule.threshold
        known = [sample.score > threshold for sample in ahead if sample.index < look]
        positives = pool.count_positives(threshold) + sum(known)
        num_known = len(pool) + len(known)
        # In steps, so that chances repeat and are remembered; a Beta prior has no mean of 0 or 1.
        prior = 0.5 if pool.predicted is None else min(max(round(pool.predicted, 2), 0.01), 0.99)
        known_and_not = (positives, num_known - positives, look - num_known, prior)
        gate = self.rule.gate
        if gate is not None:
            return chance_of_count(gate.fewest, gate.most, *known_and_not)
        return max(1.0 - chance_of_count(self.rule.k_pos, look - self.rule.k_neg, *known_and_not), 0.0)

    def build(self, pool: PromptPool, rng: np.random.Generator) -> TrainingGroup:
        if self.rule.gate is not None and len(pool) < self.group_size:
            return untrained_group(pool, self.group_size)
        return self._group(pool, rng, self.plan.unbiased_rate)
