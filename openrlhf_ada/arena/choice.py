"""Which prompts are sampled, out of several times as many, by what their rollouts are expected to teach."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RULES = ("best", "share", "share-corrected")
"""`best`: those of the highest value. `share`: with a chance in proportion to their value (systematic sampling, so the
chance is exact). `share-corrected`: and each is weighed by the inverse of its chance, so that on average every
candidate counts alike (Horvitz and Thompson, 1952)."""

LEAST_VALUE = 0.1
"""Of the largest possible: what seems worthless is looked at now and then."""


class PromptQueue:
    """Prompts of a data set in a seeded order; with `candidates` C some of every C times as many are taken.

    The value of a prompt is sqrt(p (1 - p)) at a draw p of its posterior: the standard deviation of one outcome, and
    large as well where little is known. What is not taken comes back in a later episode.
    """

    def __init__(
        self, num_rows: int, candidates: int, seed: int, *, rule: str = "best", half_life: float = 50.0
    ) -> None:
        self._num_rows, self._candidates, self._rule = num_rows, candidates, rule
        self._rng = np.random.default_rng([seed, 3])
        self._waiting: deque[int] = deque()
        self._half_life = half_life
        self._counts = np.zeros((2, num_rows))
        self._seen_at = np.zeros(num_rows)
        self._step = 0

    def take(self, count: int) -> tuple[list[int], list[float]]:
        """(rows of `count` different prompts, weights of mean 1 over what might have been taken)."""
        rows = self._next(count * self._candidates)
        if self._candidates == 1:
            return rows, [1.0] * count
        fade = 0.5 ** ((self._step - self._seen_at[rows]) / self._half_life)
        wrong, right = self._counts[:, rows] * fade
        drawn = self._rng.beta(1.0 + right, 1.0 + wrong)
        value = np.maximum(2.0 * np.sqrt(drawn * (1.0 - drawn)), LEAST_VALUE)
        if self._rule == "best":
            best = np.argsort(-value, kind="stable")[:count]
            return [rows[i] for i in best], [1.0] * count
        chance = chances(value, count)
        taken = systematic(chance, self._rng)
        weights = 1.0 / (self._candidates * chance[taken]) if self._rule == "share-corrected" else np.ones(count)
        return [rows[i] for i in taken], weights.tolist()

    def observe(self, rows: Sequence[int], draws: Sequence[int], positives: Sequence[int]) -> None:
        """Outcomes of one step."""
        index = np.asarray(rows)
        fade = 0.5 ** ((self._step - self._seen_at[index]) / self._half_life)
        right = np.asarray(positives, dtype=float)
        self._counts[:, index] = self._counts[:, index] * fade + np.stack([np.asarray(draws) - right, right])
        self._seen_at[index] = self._step
        self._step += 1

    def _next(self, count: int) -> list[int]:
        if len(self._waiting) < count:
            kept = set(self._waiting)
            fresh = [int(row) for row in self._rng.permutation(self._num_rows) if row not in kept]
            self._waiting.extend(fresh)
        return [self._waiting.popleft() for _ in range(count)]


def chances(values: Floats, count: int) -> Floats:
    """min(1, c values), shape (N,), with the c at which they sum to `count`. Values are above 0."""
    certain = np.zeros(len(values), dtype=bool)
    while True:
        left = count - certain.sum()
        scaled = np.where(certain, 1.0, values * (left / values[~certain].sum()))
        over = ~certain & (scaled >= 1.0)
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
