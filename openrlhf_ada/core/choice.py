"""Which prompts are sampled, out of several times as many, by what their rollouts are expected to teach."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from openrlhf_ada.core.criteria import CHOICES, LEAST_VALUE
from openrlhf_ada.core.estimators import RateEstimator
from openrlhf_ada.core.row_table import missing_names
from openrlhf_ada.core.types import Floats, Ints, PromptPool
from openrlhf_ada.core.visits import VisitHistory

MOST_EPOCHS = 20
"""A prompt that has not been sampled for so many epochs is taken when it is a candidate again. By chance alone, one of
the least value would wait longer with a probability of e^-2."""

CERTAIN = 1e9
"""A value so large that the chance is 1 while there are places."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A prompt that was chosen: its row in the data set, and with which chance."""

    row: int
    chance: float = 1.0


class PromptChooser:
    """Rows of a data set in a seeded order, pass after pass; `candidates` C times as many are considered as are taken.

    Which are taken: with a chance in proportion to `value` (one of CHOICES) at a draw of the pass rate from `rates`
    and at what earlier visits showed, by systematic sampling, so the chance is exact. Candidates that are not taken
    come back in the next pass. None waits for much longer than MOST_EPOCHS.

    Args:
        rng: of its own; its state is saved.
        rates, visits: where draws come from, and what earlier visits showed; needed for C > 1.
    """

    def __init__(
        self,
        num_rows: int,
        candidates: int,
        rng: np.random.Generator,
        rates: RateEstimator | None = None,
        visits: VisitHistory | None = None,
        *,
        value: str = "std",
    ) -> None:
        self._candidates, self._rates, self._visits = candidates, rates, visits
        self._value = CHOICES[value].function
        self._rng = rng
        self._waiting: list[int] = []  # of this pass
        self._step = 0
        self._sampled_at = np.full(num_rows, -1)  # -1: never
        self._chances: list[float] = []  # of prompts taken in this step

    @property
    def num_rows(self) -> int:
        """Of the data set."""
        return len(self._sampled_at)

    def take(self, count: int, avoid: Collection[int] = ()) -> list[Choice]:
        """`count` different prompts, none of the rows in `avoid`. Where C times as many are not left, fewer are
        considered. Raises ValueError where `count` are not left."""
        if not count:
            return []
        number = min(count * self._candidates, self.num_rows - len(avoid))
        if number < count:
            raise ValueError(f"{count} prompts are wanted, and {number} of {self.num_rows} are left to choose from")
        rows = self._next(number, avoid)
        chosen = [Choice(row) for row in rows] if self._candidates == 1 else self._choose(rows, count)
        self._sampled_at[[choice.row for choice in chosen]] = self._step
        self._chances += [choice.chance for choice in chosen]
        return chosen

    def _choose(self, rows: list[int], count: int) -> list[Choice]:
        if self._rates is None or self._visits is None:
            raise ValueError("prompts can be chosen only where pass rates and earlier visits are known")
        known = self._visits.known(rows, self._rates.draw(rows, self._rng))
        value = np.maximum(self._value(known), LEAST_VALUE)
        is_overdue = self._step - self._sampled_at[rows] > MOST_EPOCHS * self.num_rows / count
        chance = chances(np.where(is_overdue, CERTAIN, value), count)
        taken: list[int] = systematic(chance, self._rng).tolist()
        return [Choice(rows[i], float(chance[i])) for i in taken]

    def _next(self, count: int, avoid: Collection[int]) -> list[int]:
        """The first `count` rows of the pass but those of `avoid`, which keep their places."""
        skipped = set(avoid)
        if sum(row not in skipped for row in self._waiting) < count:
            kept = set(self._waiting)
            self._waiting += [int(row) for row in self._rng.permutation(self.num_rows) if row not in kept]
        taken = [row for row in self._waiting if row not in skipped][:count]
        gone = set(taken)
        self._waiting = [row for row in self._waiting if row not in gone]
        return taken

    def end_step(self, pools: Sequence[PromptPool]) -> dict[str, float]:
        """Learn from a training step's closed pools; returns figures on what was taken so far and in this step."""
        age = self._step - self._sampled_at
        figures = {
            "ada/coverage": float((self._sampled_at >= 0).mean()),
            "ada/prompt_age": float(np.median(age)),
            "ada/prompt_age_max": float(age.max()),
            "ada/choice_chance": float(np.mean(self._chances)) if self._chances else 1.0,
        }
        if self._visits is not None:
            self._visits.observe(pools)
        self._step += 1
        self._chances = []
        return figures

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and lists. To be asked for between steps."""
        state = {
            "step": self._step,
            "waiting": list(self._waiting),
            "sampled_at": self._sampled_at.tolist(),
            "random": self._rng.bit_generator.state,
        }
        return state if self._visits is None else state | {"visits": self._visits.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`, to the bit. Raises ValueError for the state of another data set or version."""
        rows = len(state["sampled_at"])
        if rows != self.num_rows:
            raise ValueError(
                f"the checkpoint's queue is of {rows} prompts, and the data set has {self.num_rows}; resume with the "
                f"same data, or start without the checkpoint"
            )
        if self._visits is not None:
            if missing := missing_names(state, ("visits",)):
                raise ValueError(f"the checkpoint's queue of prompts lacks {missing}: start without the checkpoint")
            self._visits.load_state_dict(state["visits"])
        self._step = state["step"]
        self._waiting = list(state["waiting"])
        self._sampled_at = np.array(state["sampled_at"])
        self._rng.bit_generator.state = state["random"]


def chances(values: Floats, count: float) -> Floats:
    """min(1, c values), shape (N,), with the c at which they sum to `count`. Values are above 0."""
    certain = np.zeros(len(values), dtype=bool)
    while True:
        left = count - certain.sum()
        free = ~certain
        if left <= 0.0 or not free.any():
            return certain.astype(np.float64)
        scaled = np.where(certain, 1.0, values * (left / values[free].sum()))
        over = free & (scaled >= 1.0)
        if not over.any():
            return scaled
        certain |= over


def systematic(chance: Floats, rng: np.random.Generator) -> Ints:
    """As many indices as the chances sum to, each with its own chance (Madow, 1949), in a random order."""
    order = rng.permutation(len(chance))
    edges = np.cumsum(chance[order])
    # The sum is a whole number up to rounding; so many marks fit below it.
    marks = rng.random() + np.arange(round(float(edges[-1])))
    edges[-1] = np.ceil(edges[-1] - 1e-9)
    return order[np.searchsorted(edges, marks, side="right")]
