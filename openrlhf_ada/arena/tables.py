"""What the trials say: cost to a target beside that of the reference, with intervals over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from openrlhf_ada.arena.campaign import Cell, Result, Results, tuned

REFERENCE = "uniform-8"
COSTS = ("rollouts", "tokens", "trained_tokens", "steps")
TARGET_SHARE = 0.8
"""Of the reference's mean gain over the whole budget."""

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Row:
    """One method on one task. `cost`: mean cost to the target over that of the reference, `low` to `high`: its 95 %
    interval over seeds (paired bootstrap). `missed`: seeds that did not reach the target, counted at their budget.
    `final`: mean accuracy at the end."""

    method: str
    rate: float
    prompts: int
    cost: float
    low: float
    high: float
    missed: int
    final: float


def target_of(results: Results, task: str, seeds: int, budget: int) -> float:
    """The accuracy to reach."""
    setting = tuned(results, task, REFERENCE, budget)
    curves = [results.by_cell[Cell(task, REFERENCE, *setting, seed, budget)]["accuracy"] for seed in range(seeds)]
    first, last = (float(np.mean([curve[at] for curve in curves])) for at in (0, -1))
    return first + TARGET_SHARE * (last - first)


def cost_to(target: float, result: Result, cost: str) -> tuple[float, bool]:
    """(cost at which accuracy first reaches the target, between two measurements by a line; was it reached)."""
    accuracy, spent = result["accuracy"], [point[cost] for point in result["spent"]]
    for at, value in enumerate(accuracy):
        if value >= target:
            if at == 0:
                return float(spent[0]), True
            share = (target - accuracy[at - 1]) / (value - accuracy[at - 1])
            return spent[at - 1] + share * (spent[at] - spent[at - 1]), True
    return float(spent[-1]), False


def table(
    results: Results, task: str, methods: Sequence[str], seeds: int, budget: int, cost: str = "rollouts"
) -> list[Row]:
    """Cheapest first."""
    target = target_of(results, task, seeds, budget)
    costs: dict[str, NDArray[np.float64]] = {}
    rows: list[Row] = []
    for method in dict.fromkeys([REFERENCE, *methods]):
        rate, prompts = tuned(results, task, method, budget)
        runs = [results.by_cell[Cell(task, method, rate, prompts, seed, budget)] for seed in range(seeds)]
        found = [cost_to(target, run, cost) for run in runs]
        costs[method] = np.array([value for value, _ in found])
        ratio, low, high = _ratio(costs[method], costs[REFERENCE])
        final = float(np.mean([run["accuracy"][-1] for run in runs]))
        rows.append(Row(method, rate, prompts, ratio, low, high, sum(not reached for _, reached in found), final))
    return sorted(rows, key=lambda row: row.cost)


def _ratio(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> tuple[float, float, float]:
    """Ratio of means with its 95 % interval; both arrays are by seed."""
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(ours), (RESAMPLES, len(ours)))
    ratios = ours[picks].mean(axis=1) / theirs[picks].mean(axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(ours.mean() / theirs.mean()), float(low), float(high)
