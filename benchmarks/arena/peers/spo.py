"""SPO (arXiv 2509.13232): one rollout, compared with a running estimate of its prompt's pass rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.arena.peers.base import PeerPolicy, group_of
from benchmarks.arena.tasks import PAD
from openrlhf_ada.config.settings import Settings
from openrlhf_ada.core.choice import Choice
from openrlhf_ada.core.types import Floats, Ints, PromptPool, TrainingGroup

if TYPE_CHECKING:
    from benchmarks.arena.drawn import Batch


@dataclass(frozen=True, slots=True)
class Spo:
    """The released code's constants (verl-recipe, 2509.13232).

    half: change D of the policy at which the evidence counts half. least, most: bounds of rho. explore: added to the
    weight by which prompts are drawn. start_count: a and b of a prompt without evidence. The released code has 8
    rollouts of every prompt before the training instead, which would be a budget of its own here.
    """

    half: float = 0.06
    least: float = 0.875
    most: float = 0.96
    explore: float = 0.05
    start_count: float = 0.5

    @property
    def summary(self) -> str:
        return (
            "SPO (2509.13232, by its code): 1 rollout, compared with its counts, which fade with the policy's change; "
            "whitened; drawn by spread; without the 8 rollouts of every prompt before training"
        )

    def start(self, settings: Settings, rows: int, seed: int) -> SpoPolicy:
        return SpoPolicy(self, settings, rows, seed)

    def rho(self, change: Floats) -> Floats:
        """By which evidence fades, where the policy has changed so much since the prompt's last visit."""
        return np.clip(2.0 ** (-change / self.half), self.least, self.most)


class SpoPolicy(PeerPolicy):
    """a, b: decayed counts of right and wrong answers by row."""

    def __init__(self, rules: Spo, settings: Settings, rows: int, seed: int) -> None:
        super().__init__(settings, rows, seed)
        self.rules, self.chooser = rules, self
        self.a, self.b = (np.full(rows, rules.start_count) for _ in range(2))
        self._last: dict[int, tuple[Ints, Floats]] = {}
        """By row: the tokens of the last answer, and their log-probabilities after it was trained; shapes (T,)."""

    @property
    def rates(self) -> Floats:
        """Shape (R,)."""
        return self.a / (self.a + self.b)

    @property
    def draw_shares(self) -> Floats:
        """With which the first prompt of a step is drawn, shape (R,)."""
        weight = np.sqrt(self.rates * (1.0 - self.rates)) + self.rules.explore
        return weight / weight.sum()

    def take(self, count: int) -> list[Choice]:
        """Different prompts, one after the other."""
        rows = self.rng.choice(len(self.a), count, replace=False, p=self.draw_shares)
        return [Choice(int(row)) for row in rows]

    def end_step(self, pools: Sequence[PromptPool]) -> dict[str, float]:
        return {}

    def counts(self, pools: Sequence[PromptPool]) -> Sequence[int]:
        for pool in pools:
            pool.predicted = float(self.rates[pool.row])
        return [1] * len(pools)

    def build(self, pool: PromptPool, rng: np.random.Generator) -> TrainingGroup:
        assert pool.predicted is not None
        return group_of(pool, pool.rewards - pool.predicted)

    def shaped(self, coefficients: Floats) -> Floats:
        """Whitened."""
        return (coefficients - coefficients.mean()) / (coefficients.std(ddof=1) + 1e-8)

    def after_training(self, batch: Batch) -> None:
        rows = [pool.row for pool in batch.trained]
        tokens = batch.drawn.answers().tokens[batch.index].numpy()
        rewards = np.array([pool.rewards[0] for pool in batch.trained])
        rho = self.rules.rho(self._changes(batch, rows, tokens))
        self.a[rows] = rho * self.a[rows] + rewards
        self.b[rows] = rho * self.b[rows] + 1.0 - rewards
        now = batch.learner.log_probs_of(rows, tokens)
        self._last |= {row: (tokens[i], now[i]) for i, row in enumerate(rows)}

    def _changes(self, batch: Batch, rows: Sequence[int], tokens: Ints) -> Floats:
        """D of each prompt, shape (B,): how much the log-probabilities of its last answer's tokens have moved, on
        average, since that was trained. 0 at the first visit."""
        seen = [i for i, row in enumerate(rows) if row in self._last]
        changes = np.zeros(len(rows))
        if seen:
            said, then = (np.stack([self._last[rows[i]][part] for i in seen]) for part in (0, 1))
            now = batch.learner.log_probs_of([rows[i] for i in seen], said)
            changes[seen] = np.abs(now - then).sum(axis=1) / (said != PAD).sum(axis=1)
        return changes
