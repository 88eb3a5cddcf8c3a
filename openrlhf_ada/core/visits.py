"""What prompts showed when they were sampled: how often they had one outcome only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from openrlhf_ada.core.criteria import Candidates
from openrlhf_ada.core.row_table import RowTable, missing_names
from openrlhf_ada.core.types import Floats, PromptPool

_COLUMNS = ("last", "run")

EXPLORE_STEP, EXPLORE_BOUNDS = 0.01, (0.05, 0.95)
EASY_TARGET, HARD_TARGET = 0.25 / 3.0, 0.25 * 2.0 / 3.0
"""GRESO's: a quarter of a step's prompts may show one outcome, a third of them the right one."""


@dataclass
class VisitHistory:
    """By dataset row: the outcomes of the last visits. `threshold`: a sample is positive iff its score exceeds it."""

    threshold: float
    easy: float = 0.5
    hard: float = 0.5
    _table: RowTable = field(default_factory=lambda: RowTable(_COLUMNS, (np.nan, 0.0)))

    def known(self, rows: ArrayLike, rates: Floats) -> Candidates:
        """Of these rows, whose pass rates were drawn, shape (B,)."""
        last, run = self._table.of(rows)
        return Candidates(rates, last, run, self.easy, self.hard)

    def observe(self, pools: Sequence[PromptPool]) -> None:
        """One step's closed pools."""
        seen_before = not np.isnan(self._table.of([pool.row for pool in pools])[0]).all()
        for pool in pools:
            self._observe_visit(pool)
        if seen_before:
            # If more prompts than wanted had one outcome, fewer are looked at again.
            shares = np.array([pool.count_positives(self.threshold) / len(pool) for pool in pools])
            self.easy = _moved(self.easy, float((shares == 1.0).mean()) >= EASY_TARGET)
            self.hard = _moved(self.hard, float((shares == 0.0).mean()) >= HARD_TARGET)

    def _observe_visit(self, pool: PromptPool) -> None:
        last, run = self._table.of([pool.row])[:, 0]
        share = pool.count_positives(self.threshold) / len(pool)
        run = 0.0 if 0.0 < share < 1.0 else run + 1.0 if share == last else 1.0
        self._table.put([pool.row], [np.array([value]) for value in (share, run)])

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and lists; only rows that were visited."""
        seen = np.flatnonzero(~np.isnan(self._table.column("last")))
        return {"easy": self.easy, "hard": self.hard, **self._table.state(seen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`, to the bit. Raises ValueError for a state that lacks something."""
        if missing := missing_names(state, ("easy", "hard", "rows", *_COLUMNS)):
            raise ValueError(f"the saved visits of prompts lack {missing}: start without the checkpoint")
        self.easy, self.hard = state["easy"], state["hard"]
        self._table.load(state)


def _moved(explore: float, too_many: bool) -> float:
    least, most = EXPLORE_BOUNDS
    return max(explore - EXPLORE_STEP, least) if too_many else min(explore + EXPLORE_STEP, most)
