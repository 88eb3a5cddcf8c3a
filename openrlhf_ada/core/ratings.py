"""Ratings: every rollout is a game between the policy and a prompt, and pass rates follow from both ratings.

    logit p(x) = ability of the policy + ease of prompt x

Ability is shared, so what is learned on some prompts moves the predictions of all; counts per prompt forget instead.
The model is Rasch's (1960), the updates are Glicko's (Glickman, 1999): a Gaussian for the ability and one for each
prompt, by a Laplace approximation at every step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from openrlhf_ada.core.estimators import RateEstimator
from openrlhf_ada.core.row_table import RowTable, missing_names
from openrlhf_ada.core.types import Floats, Ints

PRIOR_VARIANCE = 4.0
"""Of a prompt's ease, in logits squared: a prompt one deviation from the mean is passed 12 % or 88 % of the time."""

EASE_DRIFT, ABILITY_DRIFT = 0.01, 0.01
"""Variance that a step adds. Half or twice as much makes predictions worse by less than 1 %."""

LARGEST_STEP = 1.0
"""Logits by which ability may move in one step: a first step with a wrong prior mean must not overshoot."""

NEWTON_STEPS = 8

_COLUMNS = ("ease", "variance", "seen_at", "misses")


@dataclass
class PromptRatings(RateEstimator):
    """Gaussian ratings per dataset row. The population's mean ease is 0; `prior_mean` is the first pass rate."""

    prior_mean: float
    give_up: int = 0
    step: int = 0
    ability: float = field(init=False)
    ability_variance: float = 1.0
    _table: RowTable = field(init=False)

    def __post_init__(self) -> None:
        # Such that the mean over prompts of all eases is `prior_mean`.
        self.ability = _logit(self.prior_mean) * math.sqrt(1.0 + math.pi * PRIOR_VARIANCE / 8.0)
        self._table = RowTable(_COLUMNS, (0.0, PRIOR_VARIANCE, 0.0, 0.0))

    def predict(self, rows: ArrayLike) -> Floats:
        ease, variance = self._ratings(rows)
        return _mean_rate(self.ability + ease, variance)

    def strength(self, rows: ArrayLike) -> Floats:
        ease, variance = self._ratings(rows)
        p = _rate(self.ability + ease)
        return 1.0 / (variance * p * (1.0 - p))

    def draw(self, rows: ArrayLike, rng: np.random.Generator) -> Floats:
        ease, variance = self._ratings(rows)
        return _rate(self.ability + ease + np.sqrt(variance) * rng.standard_normal(len(ease)))

    @property
    def population_mean(self) -> float:
        return float(_mean_rate(np.array([self.ability]), np.array([PRIOR_VARIANCE]))[0])

    def _start(self, rows: Ints, draws: Floats, positives: Floats) -> None:
        # In shares, as a run would see them: the ability is learned before the last prompts are rated.
        for part in np.array_split(np.arange(len(rows)), max(len(rows) // 64, 1)):
            self._update(rows[part], draws[part], positives[part])

    def _learn(self, rows: Ints, draws: Floats, positives: Floats) -> None:
        unique, visit = np.unique(rows, return_inverse=True)
        drawn, hits = (np.bincount(visit, counts, len(unique)).astype(np.float64) for counts in (draws, positives))
        self._update(unique, drawn, hits)

    def _update(self, rows: Ints, n: Floats, k: Floats) -> None:
        """Rows are different. Ability first, from what all outcomes have in common; then every prompt's ease."""
        ease, variance = self._ratings(rows)
        p = _mean_rate(self.ability + ease, variance)
        # An outcome says less of the ability the less is known of its prompt.
        known = 1.0 / (1.0 + n * p * (1.0 - p) * variance)
        self.ability_variance += ABILITY_DRIFT
        self.ability_variance /= 1.0 + self.ability_variance * float((n * p * (1.0 - p) * known).sum())
        move = self.ability_variance * float(((k - n * p) * known).sum())
        self.ability += float(np.clip(move, -LARGEST_STEP, LARGEST_STEP))
        mode = _posterior_mode(self.ability, ease, variance, n, k)
        p = _rate(self.ability + mode)
        misses = np.where(k > 0, 0.0, self._table.of(rows)[3] + n)
        self._table.put(
            rows, (mode, 1.0 / (1.0 / variance + n * p * (1.0 - p)), np.full(len(rows), self.step), misses)
        )

    def _ratings(self, rows: ArrayLike) -> tuple[Floats, Floats]:
        """(ease, variance) now."""
        ease, variance, seen_at, _ = self._table.of(rows)
        return ease, np.minimum(variance + EASE_DRIFT * (self.step - seen_at), PRIOR_VARIANCE)

    def state_dict(self) -> dict[str, Any]:
        seen = np.flatnonzero(self._table.column("variance") != PRIOR_VARIANCE)
        ability = {"ability": self.ability, "ability_variance": self.ability_variance}
        return {"step": self.step} | ability | self._table.state(seen)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if missing := missing_names(state, ("step", "ability", "ability_variance", "rows", *_COLUMNS)):
            raise ValueError(f"the saved ratings lack {missing}: start without the checkpoint")
        self.step, self.ability, self.ability_variance = (state[n] for n in ("step", "ability", "ability_variance"))
        self._table.load(state)


def _rate(logit: Floats) -> Floats:
    return 1.0 / (1.0 + np.exp(-logit))


def _logit(p: float) -> float:
    return math.log(p / (1.0 - p))


def _mean_rate(mean: Floats, variance: Floats) -> Floats:
    """E[rate] of a Gaussian logit (MacKay, 1992; off by at most .02)."""
    return _rate(mean / np.sqrt(1.0 + np.pi * variance / 8.0))


def _posterior_mode(ability: float, ease: Floats, variance: Floats, n: Floats, k: Floats) -> Floats:
    """Of the ease, given k of n; the log posterior is concave, and a Newton step of at most 2 cannot leave it."""
    mode = ease.copy()
    for _ in range(NEWTON_STEPS):
        p = _rate(ability + mode)
        slope = k - n * p - (mode - ease) / variance
        mode += np.clip(slope / (n * p * (1.0 - p) + 1.0 / variance), -2.0, 2.0)
    return mode
