"""Splits of a budget that read more than a pass rate: DUET the lengths, CERO what a prompt has had over epochs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.arena.peers.base import PeerPolicy
from openrlhf_ada.config.settings import Settings
from openrlhf_ada.core.estimators import PassRateCounts
from openrlhf_ada.core.types import Floats, Ints, PromptPool

if TYPE_CHECKING:
    from benchmarks.arena.drawn import Batch

# -- DUET -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Duet:
    """mean: rollouts of a prompt whose tokens, at the mean length, make the budget of a step. least, most: of one."""

    mean: float = 8.0
    least: int = 1
    most: int = 32

    @property
    def summary(self) -> str:
        return (
            "DUET (2605.08441, by its code): n as s / sqrt(length) under a budget of tokens, about 8 on average; the "
            "first visit takes the means of the others, not a ridge fit; without the abort by text markers"
        )

    def start(self, settings: Settings, rows: int, seed: int) -> DuetPolicy:
        return DuetPolicy(self, settings, rows, seed)

    def split(self, spread: Floats, length: Floats, budget: float) -> Ints:
        """n = clip(round(s / sqrt(lambda L))), shape (B,), with the least lambda at which n L sums to the budget at
        most. `spread`: s; `length`: L, in tokens, shapes (B,)."""

        def numbers(log_lambda: float) -> Ints:
            n = np.rint(spread / np.sqrt(np.exp(log_lambda) * length))
            return np.clip(n, self.least, self.most).astype(np.int64)

        low, high = -60.0, 60.0
        for _ in range(60):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if numbers(middle) @ length <= budget else (middle, high)
        return numbers(high)


class DuetPolicy(PeerPolicy):
    """By row: number, sum and sum of squares of A sum log pi, and sum of lengths, of all rollouts so far."""

    keeps_log_probs = True

    def __init__(self, rules: Duet, settings: Settings, rows: int, seed: int) -> None:
        super().__init__(settings, rows, seed)
        self.rules = rules
        self._drawn, self._sum, self._square, self._tokens = np.zeros((4, rows))

    def known(self, rows: Sequence[int]) -> tuple[Floats, Floats]:
        """(s, mean length) of these prompts, shapes (B,)."""
        seen = self._drawn > 0
        if not seen.any():
            return np.ones(len(rows)), np.ones(len(rows))
        drawn = np.maximum(self._drawn, 1.0)
        spread = np.sqrt(np.maximum(self._square / drawn - (self._sum / drawn) ** 2, 0.0))
        length = self._tokens / drawn
        spread, length = (np.where(seen, value, value[seen].mean()) for value in (spread, length))
        return spread[rows], length[rows]

    def counts(self, pools: Sequence[PromptPool]) -> Sequence[int]:
        if not pools:
            return []
        spread, length = self.known([pool.row for pool in pools])
        usual = self._tokens.sum() / self._drawn.sum() if self._drawn.any() else 1.0
        return self.rules.split(spread, length, self.rules.mean * len(pools) * usual).tolist()

    def before_training(self, batch: Batch) -> None:
        assert batch.drawn.log_probs is not None
        log_probs = batch.drawn.log_probs.sum(dim=1).double().numpy()
        lengths = batch.drawn.answers().num_tokens.numpy()
        for pool, group in zip(batch.trained, batch.groups, strict=True):
            places = batch.drawn.places[group.key]
            values = np.array(group.coefficients) * log_probs[places]
            self._drawn[pool.row] += len(values)
            self._sum[pool.row] += values.sum()
            self._square[pool.row] += (values**2).sum()
            self._tokens[pool.row] += lengths[places].sum()


# -- CERO -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cero:
    """mean: rollouts of a visit on average. least, most: of one. scale: rollouts a visit at which half of a prompt's
    utility is reached. pace: of the price."""

    mean: float = 8.0
    least: int = 2
    most: int = 32
    scale: float = 8.0
    pace: float = 0.5

    @property
    def summary(self) -> str:
        return (
            "CERO (2606.05606, as far as the abstract says): the posterior's expected p (1 - p) times m / (m + 8), m "
            "the mean number over all visits; one price of a rollout, moved to 8 a visit; utility and steps are ours"
        )

    def start(self, settings: Settings, rows: int, seed: int) -> CeroPolicy:
        return CeroPolicy(self, settings, rows, seed)

    def numbers(self, value: Floats, had: Floats, visits: Floats, price: float) -> Ints:
        """With which the mean m of all visits comes nearest to that of largest value m / (m + scale) - price m, within
        the bounds, shape (B,). had, visits: rollouts and visits before, shapes (B,)."""
        best = np.sqrt(value * self.scale / price) - self.scale
        return np.clip(np.rint(best * (visits + 1.0) - had), self.least, self.most).astype(np.int64)

    def first_price(self, value: float) -> float:
        """At which a prompt of this value gets the mean number."""
        return value * self.scale / (self.mean + self.scale) ** 2

    def moved(self, price: float, numbers: Ints, visits: Floats) -> float:
        """After a step: up if it had more rollouts than the budget has on average. `visits`: before it, shape (B,)."""
        # A number answers to the price in proportion to its visits, as it makes up for all of them.
        step = self.pace / (1.0 + float(visits.mean()))
        return price * float(np.exp(step * (numbers.mean() / self.mean - 1.0)))


class CeroPolicy(PeerPolicy):
    """The dual variables of prompts are taken at their optimum, the marginal utility; the budget's is `price`."""

    def __init__(self, rules: Cero, settings: Settings, rows: int, seed: int) -> None:
        super().__init__(settings, rows, seed)
        self.rules = rules
        self.posterior = PassRateCounts(half_life=1e12, prior_mean=0.5, prior_strength=2.0, give_up=0)
        self.price = rules.first_price(float(self.value([0])[0]))
        self._threshold = settings.positive_above
        self._had, self._visits = np.zeros((2, rows))

    def value(self, rows: Sequence[int]) -> Floats:
        """The posterior's expected p (1 - p), shape (B,)."""
        rates, strength = self.posterior.predict(rows), self.posterior.strength(rows)
        return rates * (1.0 - rates) * strength / (strength + 1.0)

    def counts(self, pools: Sequence[PromptPool]) -> Sequence[int]:
        rows = [pool.row for pool in pools]
        return self.rules.numbers(self.value(rows), self._had[rows], self._visits[rows], self.price).tolist()

    def observe(self, pools: Sequence[PromptPool]) -> dict[str, float]:
        rows, numbers = [pool.row for pool in pools], np.array([len(pool) for pool in pools])
        self.posterior.observe(rows, numbers, [pool.count_positives(self._threshold) for pool in pools])
        self.price = self.rules.moved(self.price, numbers, self._visits[rows])
        np.add.at(self._had, rows, numbers)
        np.add.at(self._visits, rows, 1)
        return {"price": self.price}
