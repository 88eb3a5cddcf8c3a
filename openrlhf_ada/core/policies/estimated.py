"""Ada-Est: predict every prompt's pass rate and split an exact budget before sampling (Reinforce-Ada, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from openrlhf_ada.core.allocation import split
from openrlhf_ada.core.grouping import GroupBuilder
from openrlhf_ada.core.policies.base import Action, Close, Draw
from openrlhf_ada.core.policies.memory import Memory, Remembering
from openrlhf_ada.core.types import Ints, PromptKey, PromptPool, TrainingGroup


@dataclass(frozen=True)
class Estimated(Remembering):
    """One split per batch: `budget` rollouts per prompt on average, between `min_samples` and `max_samples` for each.

    `allocation`: one of `allocation.PRIORITIES` or `allocation.GAINS`, with pass rates of no less than `floor`.
    """

    budget: float
    min_samples: int
    max_samples: int
    allocation: str
    floor: float
    builder: GroupBuilder
    # It always has one.
    memory: Memory  # pyright: ignore[reportIncompatibleVariableOverride]
    kind: ClassVar[str] = "estimated"

    def decide(self, pools: Sequence[PromptPool]) -> Sequence[Action]:
        fresh = [pool for pool in pools if not len(pool)]
        counts = self._split(fresh) if fresh else {}
        return [Draw(pool.key, counts[pool.key]) if pool.key in counts else Close(pool.key) for pool in pools]

    def _split(self, fresh: Sequence[PromptPool]) -> dict[PromptKey, int]:
        rates = self.memory.predict(fresh)
        # A prompt in the place of one without a score gets its number: the step's sum is exact.
        quotas = {pool.key: pool.quota for pool in fresh if pool.quota is not None}
        at = [i for i, pool in enumerate(fresh) if pool.quota is None]
        if not at:
            return quotas
        keys = [fresh[i].key for i in at]
        given_up = self.memory.counts.given_up([fresh[i].row for i in at])
        counts = self.split(rates[at], given_up, keys)
        return quotas | dict(zip(keys, counts.tolist(), strict=True))

    def split(self, rates: ArrayLike, given_up: ArrayLike, tie_break: ArrayLike) -> Ints:
        """Rollouts of prompts whose pass rates are taken to be `rates`, shape (B,)."""
        rates = np.asarray(rates)
        budget = round(self.budget * len(rates))
        return split(
            self.allocation, rates, budget, self.min_samples, self.max_samples, self.floor, given_up, tie_break
        )

    def build(self, pool: PromptPool, rng: np.random.Generator) -> TrainingGroup:
        return self._group(pool, rng)
