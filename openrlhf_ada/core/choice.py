"""Which prompts are sampled, out of several times as many, by what their rollouts are expected to teach."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openrlhf_ada.core.pieces import Need, Table

Floats = NDArray[np.float64]

LEAST_VALUE = 0.1
"""Of the largest possible value, 1: what seems worthless is sampled now and then."""

CHOICES: Table[Callable[[Floats], Floats]] = Table()
"""Functions of pass rates, shape (N,): the value of a prompt, at most 1. Prompts are chosen in proportion to it."""


@CHOICES.add("std", needs={Need.PASS_RATE})
def std(p: Floats) -> Floats:
    """Twice the standard deviation of one outcome: how much a rollout is expected to move its pass rate."""
    return 2.0 * np.sqrt(p * (1.0 - p))


@CHOICES.add("vade", needs={Need.PASS_RATE})
def vade(p: Floats) -> Floats:
    """p (1-p)^2, largest at 1/3 (VADE, arXiv 2511.18902, which takes the best instead of drawing)."""
    return 6.75 * p * (1.0 - p) ** 2


@CHOICES.add("mopps", needs={Need.PASS_RATE})
def mopps(p: Floats) -> Floats:
    """Nearness to 1/2 (MoPPS, arXiv 2507.04632, which takes the nearest instead of drawing)."""
    return 1.0 - np.abs(2.0 * p - 1.0)


class RateDraws(Protocol):
    """What a prompt's pass rate may be."""

    def draw(self, rows: ArrayLike, rng: np.random.Generator) -> Floats:
        """One draw of each row's pass rate from its posterior, in [0, 1], shape (B,)."""
        ...


@dataclass(frozen=True, slots=True)
class Choice:
    """A prompt that was chosen: its row in the data set, with which chance, and what its coefficients are
    multiplied by."""

    row: int
    chance: float = 1.0
    weight: float = 1.0


class PromptChooser:
    """Rows of a data set in a seeded order, pass after pass; `candidates` C times as many are considered as are taken.

    Which are taken: with a chance in proportion to `value` (one of CHOICES) at a draw of the pass rate from `rates`,
    by systematic sampling, so the chance is exact. Candidates that are not taken come back in the next pass.

    Args:
        rng: of its own; its state is saved.
        rates: where draws come from; needed for C > 1.
        inverse: weigh prompts by the inverse of their chance, with mean 1, so that all candidates count alike on
            average (Horvitz and Thompson, 1952).
    """

    def __init__(
        self,
        num_rows: int,
        candidates: int,
        rng: np.random.Generator,
        rates: RateDraws | None = None,
        *,
        value: str = "std",
        inverse: bool = False,
    ) -> None:
        self._candidates, self._rates = candidates, rates
        self._value, self._inverse = CHOICES[value].function, inverse
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
        if self._rates is None:
            raise ValueError("prompts can be chosen only where pass rates are known")
        value = np.maximum(self._value(self._rates.draw(rows, self._rng)), LEAST_VALUE)
        chance = chances(value, count)
        weight = count / (len(rows) * chance) if self._inverse else np.ones(len(rows))
        taken: list[int] = systematic(chance, self._rng).tolist()
        return [Choice(rows[i], float(chance[i]), float(weight[i])) for i in taken]

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

    def end_step(self) -> dict[str, float]:
        """Count a training step; returns figures on what was taken so far and in this step."""
        figures = {
            "ada/coverage": float((self._sampled_at >= 0).mean()),
            "ada/prompt_age": float(np.median(self._step - self._sampled_at)),
            "ada/choice_chance": float(np.mean(self._chances)) if self._chances else 1.0,
        }
        self._step += 1
        self._chances = []
        return figures

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and lists. To be asked for between steps."""
        return {
            "step": self._step,
            "waiting": list(self._waiting),
            "sampled_at": self._sampled_at.tolist(),
            "random": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`, to the bit. Raises ValueError for the state of another data set."""
        rows = len(state["sampled_at"])
        if rows != self.num_rows:
            raise ValueError(
                f"the checkpoint's queue is of {rows} prompts, and the data set has {self.num_rows}; resume with the "
                f"same data, or start without the checkpoint"
            )
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


def systematic(chance: Floats, rng: np.random.Generator) -> NDArray[np.int64]:
    """As many indices as the chances sum to, each with its own chance (Madow, 1949), in a random order."""
    order = rng.permutation(len(chance))
    edges = np.cumsum(chance[order])
    # The sum is a whole number up to rounding; so many marks fit below it.
    marks = rng.random() + np.arange(round(float(edges[-1])))
    edges[-1] = np.ceil(edges[-1] - 1e-9)
    return order[np.searchsorted(edges, marks, side="right")]
