"""A first round for every prompt, then an exact split of what is left of the budget by what it has shown (HORA)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from openrlhf_ada.core.allocation import PILOTED, take_best
from openrlhf_ada.core.grouping import GroupBuilder
from openrlhf_ada.core.policies.base import Action, Close, Draw
from openrlhf_ada.core.policies.memory import Memory, Remembering
from openrlhf_ada.core.types import Floats, PromptKey, PromptPool, TrainingGroup


@dataclass(frozen=True)
class TwoStage(Remembering):
    """`pilot` rollouts of every prompt, then those of the second round; `budget` per prompt on average, exactly.

    HORA (arXiv 2605.07114; from a replication), with the uniform prior Beta(1, 1). `allocation`: one of
    `allocation.PILOTED`. Both decisions are about all prompts of a step, so it needs the scheduler `rounds`. They
    depend on no earlier step; `memory` predicts, for baselines from outside the pool.

    The number of rollouts depends on the first round's outcomes, so the pool's mean is biased. The first round's mean
    is not: it is what `stratum` and the baseline `unbiased` go by.
    """

    pilot: int
    budget: float
    min_samples: int
    max_samples: int
    allocation: str
    builder: GroupBuilder
    # It always has one.
    memory: Memory  # pyright: ignore[reportIncompatibleVariableOverride]
    kind: ClassVar[str] = "two_stage"

    @property
    def first(self) -> int:
        return self.pilot

    @property
    def threshold(self) -> float:
        """A sample is positive iff its score exceeds it."""
        return self.builder.selection.threshold

    @property
    def extra_bounds(self) -> tuple[int, int]:
        """Least and largest number of rollouts of a prompt in the second round."""
        return max(self.min_samples - self.pilot, 0), self.max_samples - self.pilot

    def decide(self, pools: Sequence[PromptPool]) -> Sequence[Action]:
        self.memory.predict([pool for pool in pools if not len(pool)])
        piloted = [pool for pool in pools if len(pool) == self.pilot]
        # A prompt in the place of one that got no score in its second round gets its number: the sum is exact.
        left = {pool.key: (pool.quota or 0) - self.pilot for pool in piloted}
        quotas = {key: count for key, count in left.items() if count > 0}
        extra = quotas | self._second_round([pool for pool in piloted if pool.key not in quotas])
        return [self._action(pool, extra) for pool in pools]

    def _action(self, pool: PromptPool, extra: dict[PromptKey, int]) -> Action:
        if not len(pool):
            return Draw(pool.key, self.pilot)
        count = extra.get(pool.key, 0)
        return Draw(pool.key, count) if count else Close(pool.key)

    def _second_round(self, piloted: Sequence[PromptPool]) -> dict[PromptKey, int]:
        if not piloted:
            return {}
        positives = np.array([pool.count_positives(self.threshold) for pool in piloted])
        least, _ = self.extra_bounds
        left = round(self.budget * len(piloted)) - (self.pilot + least) * len(piloted)
        keys = [pool.key for pool in piloted]
        extra = least + take_best(self.gains(positives), left, keys)
        return dict(zip(keys, extra.tolist(), strict=True))

    def gains(self, positives: ArrayLike) -> Floats:
        """What each rollout that the split decides about is worth after so many positives, shape (B, most - least)."""
        k = np.asarray(positives, dtype=np.float64)[:, None]
        extra = np.arange(*self.extra_bounds, dtype=np.float64)[None, :]
        return PILOTED[self.allocation].function(1.0 + k, 1.0 + self.pilot - k, extra)

    def build(self, pool: PromptPool, rng: np.random.Generator) -> TrainingGroup:
        rate = float((pool.scores[: self.pilot] > self.threshold).mean())
        return self._group(pool, rng, lambda drawn, positives: rate)
