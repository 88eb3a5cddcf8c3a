"""Estimates of a prompt's pass rate before it is sampled: `RateEstimator`, and those that count.

`PassRateCounts`: counts per prompt with a Beta prior. Old counts fade with the training steps since then, because the
policy changes with steps. `Calibration`: is a critic's prediction better than the mean pass rate of all prompts?
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from openrlhf_ada.core.row_table import RowTable, missing_names
from openrlhf_ada.core.types import Bools, Floats, Ints, RewardScale

RATES, EM_STEPS = 100, 20
"""Of `spread_of_rates`: rates between 0 and 1, and steps. With more steps it is a few single rates."""

_COLUMNS = ("draws", "positives", "seen_at", "misses")


class RateEstimator(ABC):
    """What predicts pass rates by dataset row, from outcomes of earlier steps.

    `step`: training steps so far. A row is given up after `give_up` rollouts in a row without a positive (0: never);
    the last column of `_table` counts them.
    """

    step: int
    give_up: int
    _table: RowTable

    @abstractmethod
    def predict(self, rows: ArrayLike) -> Floats:
        """Expected pass rate per row, in (0, 1), float64, shape (B,)."""

    @abstractmethod
    def strength(self, rows: ArrayLike) -> Floats:
        """Rollouts that a prediction is worth, shape (B,): n of a Beta distribution as wide as the posterior."""

    @abstractmethod
    def draw(self, rows: ArrayLike, rng: np.random.Generator) -> Floats:
        """One pass rate per row from its posterior, shape (B,)."""

    @property
    @abstractmethod
    def population_mean(self) -> float:
        """Expected pass rate of a prompt that was never seen."""

    def given_up(self, rows: ArrayLike) -> Bools:
        """Which rows get the least number of rollouts now, shape (B,)."""
        return self._table.of(rows)[-1] >= (self.give_up or np.inf)

    def load_prior_counts(self, draws: ArrayLike, positives: ArrayLike) -> None:
        """Start from counts by row, shapes (R,), that were made before the run; rows without draws count as unseen.

        Raises ValueError after the first step, or for impossible counts.
        """
        n, k = np.asarray(draws, dtype=np.float64), np.asarray(positives, dtype=np.float64)
        if self.step or len(self._table):
            raise ValueError("prior counts can be loaded before the first step only")
        if not ((k >= 0) & (k <= n)).all():
            raise ValueError("every row needs between 0 and all of its draws positive")
        self._table.grow(len(n))
        seen = np.flatnonzero(n > 0)
        self._start(seen, n[seen], k[seen])

    def observe(self, rows: ArrayLike, draws: ArrayLike, positives: ArrayLike) -> None:
        """One training step's evidence, shapes (B,); a row may come more than once. Ends the step."""
        n, k = np.asarray(draws, dtype=np.float64), np.asarray(positives, dtype=np.float64)
        if not (n > 0).all() or not ((k >= 0) & (k <= n)).all():
            raise ValueError("every visit needs at least one draw, and between 0 and all of them positive")
        self._learn(np.asarray(rows, dtype=np.int64), n, k)
        self.step += 1

    def _start(self, rows: Ints, draws: Floats, positives: Floats) -> None:
        """Evidence from before the run; rows are different."""
        self._learn(rows, draws, positives)

    @abstractmethod
    def _learn(self, rows: Ints, draws: Floats, positives: Floats) -> None:
        """A step's evidence; a row may come more than once."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and lists; only rows with evidence."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`, to the bit. Raises ValueError for a state that lacks something."""


@dataclass
class PassRateCounts(RateEstimator):
    """Decayed counts of draws and positives per dataset row; a prompt's estimate is

        p = (k + s m) / (n + s),    k, n: its counts, halved every `half_life` steps;   s: `prior_strength`

    with m the mean pass rate of all visits, decayed in the same way and started at `prior_mean`. So a prompt that was
    never seen counts as a typical one, and an old estimate returns to that.

    A prompt is given up after `give_up` rollouts in a row without a positive (0: never). Every visit then draws the
    least number of rollouts, N_min. One positive among them ends this; at pass rate p that takes
    1 / (1 - (1 - p)^N_min) visits on average. Misses do not fade: in long episodes no prompt would be given up.
    """

    half_life: float
    prior_mean: float
    prior_strength: float
    give_up: int
    step: int = 0
    _population: Floats = field(default_factory=lambda: np.zeros(2))  # decayed sum of visits' rates, and of visits
    _table: RowTable = field(default_factory=lambda: RowTable(_COLUMNS, (0.0,) * len(_COLUMNS)))

    def predict(self, rows: ArrayLike) -> Floats:
        positives, draws = self._posterior(rows)
        return positives / draws

    def strength(self, rows: ArrayLike) -> Floats:
        return self._posterior(rows)[1]

    def draw(self, rows: ArrayLike, rng: np.random.Generator) -> Floats:
        """From Beta(k + s m, n - k + s (1 - m)): as counts fade, it widens to what is known of a prompt never seen."""
        positives, draws = self._posterior(rows)
        return rng.beta(positives, draws - positives)

    def _posterior(self, rows: ArrayLike) -> tuple[Floats, Floats]:
        """(positives, draws), those of the prior included."""
        draws, positives, seen_at, _ = self._table.of(rows)
        fade = self._fade(seen_at)
        prior = self.prior_strength
        return fade * positives + prior * self.population_mean, fade * draws + prior

    @property
    def population_mean(self) -> float:
        # Every visit counts the same, and fades.
        rates, visits = self._population
        return float((rates + self.prior_strength * self.prior_mean) / (visits + self.prior_strength))

    def _learn(self, rows: Ints, draws: Floats, positives: Floats) -> None:
        self._population *= 0.5 ** (1.0 / self.half_life)
        for row, drawn, hits in zip(rows.tolist(), draws, positives, strict=True):
            self._observe_visit(row, drawn, hits)
        self._population += (float((positives / draws).sum()), len(draws))

    def _observe_visit(self, row: int, drawn: float, hits: float) -> None:
        draws, positives, seen_at, misses = self._table.of([row])[:, 0]
        fade = float(self._fade(seen_at))
        visit = (draws * fade + drawn, positives * fade + hits, self.step, 0.0 if hits else misses + drawn)
        self._table.put([row], [np.array([value]) for value in visit])

    def _fade(self, seen_at: Any) -> Any:
        return 0.5 ** ((self.step - seen_at) / self.half_life)

    def state_dict(self) -> dict[str, Any]:
        seen = np.flatnonzero(self._table.column("draws") > 0)
        return {"step": self.step, "population": self._population.tolist()} | self._table.state(seen)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if missing := missing_names(state, ("step", "population", "rows", *_COLUMNS)):
            raise ValueError(f"the saved pass rates lack {missing}: start without the checkpoint")
        self.step = state["step"]
        self._population = np.array(state["population"])
        self._table.load(state)


@dataclass
class Calibration:
    """Brier scores of predictions made before sampling, against those of the population mean as the only prediction.

    A critic is trusted once its mean Brier score over the last `window` steps is the better one. It loses that trust
    when it was worse in every one of them.
    """

    window: int
    trusted: bool = False
    _scores: list[tuple[float, float]] = field(default_factory=list["tuple[float, float]"])

    def record(self, predicted: ArrayLike, prior: float, draws: ArrayLike, positives: ArrayLike) -> None:
        """Compare one step's predictions, shapes (B,), with what was then drawn."""
        score = brier(predicted, draws, positives), brier(prior, draws, positives)
        self._scores = [*self._scores, score][-self.window :]
        if len(self._scores) < self.window:
            return
        skill = [theirs - ours for ours, theirs in self._scores]
        self.trusted = max(skill) > 0 if self.trusted else sum(skill) > 0

    def state_dict(self) -> dict[str, Any]:
        return {"trusted": self.trusted, "scores": [list(pair) for pair in self._scores]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.trusted = state["trusted"]
        self._scores = [(ours, theirs) for ours, theirs in state["scores"]]


def brier(predicted: ArrayLike, draws: ArrayLike, positives: ArrayLike) -> float:
    """Mean over prompts of the mean squared distance between prediction and outcome (0 or 1); 0 is perfect."""
    q = np.asarray(predicted, dtype=np.float64)
    n, k = np.asarray(draws, dtype=np.float64), np.asarray(positives, dtype=np.float64)
    return float(np.mean((k * (1.0 - q) ** 2 + (n - k) * q**2) / n))


def spread_of_rates(positives: ArrayLike, draws: ArrayLike, count: int = 1000) -> Floats:
    """Pass rates spread as those of these prompts are, ascending, float64, shape (count,).

    Not a rate for each prompt: rates of single prompts are spread wider than the truth if they are K / N, and less
    wide if they are drawn towards the mean. This is the distribution that explains the counts best (Kiefer and
    Wolfowitz, 1956), by a few steps of EM from a uniform one, so that it stays smooth. Rules that stop by outcomes do
    not bias it.

    Args:
        positives: K of each prompt, shape (B,).
        draws: N of each prompt, shape (B,); prompts without draws say nothing.
        count: rates to return.
    """
    n, k = np.asarray(draws, dtype=np.float64), np.asarray(positives, dtype=np.float64)
    found, prompts = np.unique(np.stack([k, n - k])[:, n > 0], axis=1, return_counts=True)
    rates = np.concatenate([[0.0], (np.arange(RATES) + 0.5) / RATES, [1.0]])
    with np.errstate(divide="ignore", invalid="ignore"):
        # No outcome of a kind says nothing of it, also where its rate is 0: 0 log 0 is 0.
        logs = np.nan_to_num(found.T @ np.log([rates, 1.0 - rates]), nan=0.0)
    likelihood = np.exp(logs - logs.max(axis=1, keepdims=True))
    weights = np.full(len(rates), 1.0 / len(rates))
    for _ in range(EM_STEPS):
        posterior = likelihood * weights
        posterior /= posterior.sum(axis=1, keepdims=True)
        weights = prompts @ posterior / prompts.sum()
    at = np.searchsorted(np.cumsum(weights), (np.arange(count) + 0.5) / count)
    return rates[np.minimum(at, len(rates) - 1)]


@dataclass
class RewardMeans:
    """Running mean reward of negatives and of positives, decayed per step."""

    half_life: float
    _sums: Floats = field(default_factory=lambda: np.zeros((2, 2)))  # [negative, positive] x [sum of rewards, count]

    def observe(self, rewards: Floats, positive: Bools) -> None:
        """One step's samples, shapes (N,) each."""
        self._sums *= 0.5 ** (1.0 / self.half_life)
        for outcome in (0, 1):
            chosen = rewards[positive == bool(outcome)]
            self._sums[outcome] += (float(chosen.sum()), len(chosen))

    @property
    def scale(self) -> RewardScale:
        """0 for negatives and 1 for positives while there are none, as a verifier gives."""
        (neg, num_neg), (pos, num_pos) = self._sums
        return RewardScale(float(neg / num_neg) if num_neg else 0.0, float(pos / num_pos) if num_pos else 1.0)

    def state_dict(self) -> list[list[float]]:
        return self._sums.tolist()

    def load_state_dict(self, state: list[list[float]]) -> None:
        self._sums = np.array(state)
