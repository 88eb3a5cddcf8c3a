"""NGU, "never give up" (arXiv 2609.13443): prompts without a signal are sampled again, with a chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.arena.peers.base import PeerPolicy, group_of
from openrlhf_ada.config.settings import Settings
from openrlhf_ada.core.policies import Action, Close, Draw
from openrlhf_ada.core.types import Floats, PromptKey, PromptPool, TrainingGroup


@dataclass(frozen=True, slots=True)
class Ngu:
    """k rollouts at a time; a chain goes on with the chance rho, while it has no signal.

    over_steps: in the next step, else at once. max_age: of rollouts that are trained, in steps: engines get new
    weights once a step. late: a step's rollouts are trained after the next step's were sampled.
    """

    k: int = 4
    rho: float = 0.9
    over_steps: bool = True
    max_age: int = 4
    late: bool = False

    @property
    def summary(self) -> str:
        how = (
            f"in the next step; of at most {self.max_age} steps before, {'1 step late' if self.late else 'in time'}"
            if self.over_steps
            else "at once"
        )
        return f"NGU (2609.13443, by the authors' code): {self.k} of a prompt; without a signal {self.k} more {how}"

    def start(self, settings: Settings, rows: int, seed: int) -> NguPolicy:
        return NguPolicy(self, settings, rows, seed)

    def has_signal(self, rewards: Floats) -> bool:
        """Of a chain, shape (N,): do its first k differ, or has the last k the best so far?"""
        first = len(rewards) <= self.k
        return bool(np.ptp(rewards) > 0.0) if first else bool(rewards[-self.k :].max() > rewards[: -self.k].max())

    def coefficients(self, rewards: Floats, ages: Floats) -> Floats:
        """Of a chain's rollouts, shapes (N,). `ages`: in steps.

        r less the mean of all; of those not too old, negative ones are rescaled to sum to minus the others.
        """
        if not self.has_signal(rewards):
            return np.zeros(len(rewards))
        advantages = np.where(ages <= self.max_age, rewards - rewards.mean(), 0.0)
        positive, negative = advantages.clip(min=0.0), advantages.clip(max=0.0)
        total = negative.sum()
        return positive - negative * (positive.sum() / total if total else 0.0)


class NguPolicy(PeerPolicy):
    """A chain is a pool: over several steps it stays the same one."""

    keeps_log_probs = True

    def __init__(self, rules: Ngu, settings: Settings, rows: int, seed: int) -> None:
        super().__init__(settings, rows, seed)
        self.rules, self.late = rules, rules.late
        self._sampled: set[PromptKey] = set()
        """In this step."""

    def decide(self, pools: Sequence[PromptPool]) -> Sequence[Action]:
        return [self._decide_one(pool) for pool in pools]

    def _decide_one(self, pool: PromptPool) -> Action:
        again = pool.key not in self._sampled if self.rules.over_steps else not len(pool) or self._tries_again(pool)
        if again:
            self._sampled.add(pool.key)
            return Draw(pool.key, self.rules.k)
        self._sampled.discard(pool.key)
        return Close(pool.key)

    def _tries_again(self, pool: PromptPool) -> bool:
        """All right needs no more, and has no signal."""
        rewards = pool.rewards
        unsolved = not self.rules.has_signal(rewards) and rewards.max() < 1.0
        return bool(unsolved and self.rng.random() < self.rules.rho)

    def goes_on(self, pool: PromptPool) -> bool:
        return self.rules.over_steps and self._tries_again(pool)

    def build(self, pool: PromptPool, rng: np.random.Generator) -> TrainingGroup:
        versions = np.array([sample.version for sample in pool.samples], dtype=np.float64)
        return group_of(pool, self.rules.coefficients(pool.rewards, versions.max() + self.late - versions))
