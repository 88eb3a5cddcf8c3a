"""What prompts showed when they were sampled: how long their answers were, and how often they had one outcome only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openrlhf_ada.core.criteria import Candidates
from openrlhf_ada.core.row_table import RowTable, missing_names
from openrlhf_ada.core.types import PromptPool

Floats = NDArray[np.float64]

_COLUMNS = ("draws", "tokens", "seen_at", "last", "run")

EXPLORE_STEP, EXPLORE_BOUNDS = 0.01, (0.05, 0.95)
EASY_TARGET, HARD_TARGET = 0.25 / 3.0, 0.25 * 2.0 / 3.0
"""GRESO's: a quarter of a step's prompts may show one outcome, a third of them the right one."""


@dataclass
class VisitHistory:
    """By dataset row: decayed counts of rollouts and tokens, and the outcomes of the last visits.

    The expected length of a prompt's answers is

        (t + s m) / (n + s),    t, n: its tokens and rollouts, halved every `half_life` steps;   s: `strength`

    with m the mean length of all prompts' visits, decayed in the same way. `threshold`: a sample is positive iff its
    score exceeds it.
    """

    threshold: float
    half_life: float
    strength: float
    step: int = 0
    easy: float = 0.5
    hard: float = 0.5
    _population: Floats = field(default_factory=lambda: np.zeros(2))  # decayed sum of visits' mean lengths, and visits
    _table: RowTable = field(default_factory=lambda: RowTable(_COLUMNS, (0.0, 0.0, 0.0, np.nan, 0.0)))

    def known(self, rows: ArrayLike, rates: Floats) -> Candidates:
        """Of these rows, whose pass rates were drawn, shape (B,)."""
        _, _, _, last, run = self._table.of(rows)
        return Candidates(rates, self.lengths(rows), last, run, self.easy, self.hard)

    def lengths(self, rows: ArrayLike) -> Floats:
        """Expected tokens of a rollout over those of the mean prompt's, shape (B,); 1 before the first visit."""
        draws, tokens, seen_at, _, _ = self._table.of(rows)
        total, visits = self._population
        if not visits:
            return np.ones(len(draws))
        mean, fade = total / visits, self._fade(self.step - seen_at)
        return (fade * tokens / mean + self.strength) / (fade * draws + self.strength)

    def observe(self, pools: Sequence[PromptPool]) -> None:
        """One step's closed pools; ends the step."""
        self._population *= self._fade(1)
        seen_before = bool((self._table.of([pool.row for pool in pools])[0] > 0).any())
        for pool in pools:
            self._observe_visit(pool)
        if seen_before:
            self._explore(np.array([pool.count_positives(self.threshold) / len(pool) for pool in pools]))
        self.step += 1

    def _explore(self, shares: Floats) -> None:
        """By a step's shares of positives: if more prompts than wanted had one outcome, fewer are looked at again."""
        self.easy = _moved(self.easy, float((shares == 1.0).mean()) >= EASY_TARGET)
        self.hard = _moved(self.hard, float((shares == 0.0).mean()) >= HARD_TARGET)

    def _observe_visit(self, pool: PromptPool) -> None:
        draws, tokens, seen_at, last, run = self._table.of([pool.row])[:, 0]
        drawn, fade = len(pool), self._fade(self.step - seen_at)
        new_tokens = sum(sample.num_tokens for sample in pool.samples)
        share = pool.count_positives(self.threshold) / drawn
        run = 0.0 if 0.0 < share < 1.0 else run + 1.0 if share == last else 1.0
        visit = (fade * draws + drawn, fade * tokens + new_tokens, self.step, share, run)
        self._table.put([pool.row], [np.array([value]) for value in visit])
        self._population += (new_tokens / drawn, 1.0)

    def _fade(self, steps: Any) -> Any:
        return 0.5 ** (steps / self.half_life)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and lists; only rows that were visited."""
        seen = np.flatnonzero(self._table.column("draws") > 0)
        scalars = {"step": self.step, "easy": self.easy, "hard": self.hard, "population": self._population.tolist()}
        return scalars | self._table.state(seen)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`, to the bit. Raises ValueError for a state that lacks something."""
        if missing := missing_names(state, ("step", "easy", "hard", "population", "rows", *_COLUMNS)):
            raise ValueError(f"the saved visits of prompts lack {missing}: start without the checkpoint")
        self.step, self.easy, self.hard = state["step"], state["easy"], state["hard"]
        self._population = np.array(state["population"])
        self._table.load(state)


def _moved(explore: float, too_many: bool) -> float:
    least, most = EXPLORE_BOUNDS
    return max(explore - EXPLORE_STEP, least) if too_many else min(explore + EXPLORE_STEP, most)
