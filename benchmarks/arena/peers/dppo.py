"""DPPO (arXiv 2603.04135): prompts and completions are pruned at random, and what is left is weighed up for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.arena.peers.base import PeerPolicy
from openrlhf_ada.config.settings import Settings
from openrlhf_ada.core.choice import Choice, systematic
from openrlhf_ada.core.types import Floats, PromptPool, TrainingGroup


@dataclass(frozen=True, slots=True)
class Dppo:
    """n: rollouts of a prompt that is not pruned. prompts, completions: shares that are pruned of those whose
    |advantage| is below average: of prompts at the last visit, of completions in the group."""

    n: int = 8
    prompts: float = 0.5
    completions: float = 0.5

    @property
    def summary(self) -> str:
        return (
            "DPPO (2603.04135, as far as the abstract says): GRPO; half of the prompts and completions with an "
            "|advantage| below average are pruned, the rest weighed by 1/chance; the rule and its rates are ours"
        )

    def start(self, settings: Settings, rows: int, seed: int) -> DppoPolicy:
        return DppoPolicy(self, settings, rows, seed)

    def keep_chances(self, sizes: Floats, pruned: float) -> Floats:
        """1 - `pruned` for sizes below their mean, else 1; shape (N,). Unknown sizes are NaN, and have 1."""
        mean = np.nanmean(sizes) if not np.isnan(sizes).all() else 0.0
        # Equal sizes may differ from their mean by rounding.
        return np.where(sizes < mean * (1.0 - 1e-9), 1.0 - pruned, 1.0)


class DppoPolicy(PeerPolicy):
    """`sizes`: mean |advantage| of each row at its last visit, NaN before the first."""

    def __init__(self, rules: Dppo, settings: Settings, rows: int, seed: int) -> None:
        super().__init__(settings, rows, seed)
        self.rules = rules
        self.chooser = self
        self.sizes = np.full(rows, np.nan)
        self._weights = np.ones(rows)
        """Of this step's prompts, by row."""

    def take(self, count: int) -> list[Choice]:
        """So many of the next candidates, each with its own chance. Raises ValueError where there are too few."""
        rows: list[int] = []
        while self._chances(rows).sum() < count:
            rows += [choice.row for choice in self.queue.take(1, avoid=rows)]
        chances = self._chances(rows)
        # Exactly `count` are wanted, and the chances sum to a little more.
        chances *= count / chances.sum()
        self._weights[rows] = chances.mean() / chances
        return [Choice(rows[i], float(chances[i])) for i in systematic(chances, self.rng).tolist()]

    def _chances(self, rows: Sequence[int]) -> Floats:
        return self.rules.keep_chances(self.sizes[list(rows)], self.rules.prompts)

    def end_step(self, pools: Sequence[PromptPool]) -> dict[str, float]:
        return self.queue.end_step(pools)

    def counts(self, pools: Sequence[PromptPool]) -> Sequence[int]:
        return [self.rules.n] * len(pools)

    def build(self, pool: PromptPool, rng: np.random.Generator) -> TrainingGroup:
        group = self.inner.build(pool, rng)
        advantages = np.array(group.coefficients)
        sizes = np.abs(advantages)
        self.sizes[pool.row] = sizes.mean()
        chances = self.rules.keep_chances(sizes, self.rules.completions)
        kept = rng.random(len(sizes)) < chances
        weighed = np.where(kept, advantages / chances, 0.0) * self._weights[pool.row]
        return replace(group, coefficients=tuple(weighed.tolist()))
