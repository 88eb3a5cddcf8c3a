"""What the trials say: cost to a target beside that of the reference, with intervals and tests over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from openrlhf_ada.arena.campaign import Result, Results, Setting, final_cells, tuned
from openrlhf_ada.arena.costs import StepModel, mean_accuracy, spent_as
from openrlhf_ada.arena.sign_flips import SEEDS_FOR_TEST, Floats, corrected_p

REFERENCE = "uniform-8"
TARGET_SHARE = 0.8
"""Of the reference's mean gain over the whole budget."""

RESAMPLES = 2000


@dataclass(frozen=True, eq=False)
class Finals:
    """The trials of one task that count, tuned for `cost`: `runs` by method, one for each seed.

    A machine in the place of a cost's name: tuned for "seconds", and compared by that machine's.
    """

    task: str
    cost: str | StepModel
    settings: Mapping[str, Setting]
    runs: Mapping[str, Sequence[Result]]

    @cached_property
    def spent(self) -> dict[str, list[list[float]]]:
        """By method: the cost at each measurement of each seed."""
        return {method: [spent_as(self.cost, run["spent"]) for run in runs] for method, runs in self.runs.items()}

    @cached_property
    def target(self) -> float:
        """The accuracy to reach."""
        return self.target_of(REFERENCE)

    def target_of(self, method: str) -> float:
        """Accuracy at the start, and most of this method's mean gain."""
        curves = [run["accuracy"] for run in self.runs[method]]
        first, last = (float(np.mean([curve[at] for curve in curves])) for at in (0, -1))
        return first + TARGET_SHARE * (last - first)

    @cached_property
    def budget(self) -> float:
        """What the reference spends in all, on average."""
        return float(np.mean([spent[-1] for spent in self.spent[REFERENCE]]))

    @cached_property
    def to_target(self) -> dict[str, tuple[Floats, int]]:
        """By method: as `costs_to` the target."""
        return {method: self.costs_to(self.target, method) for method in self.runs}

    def costs_to(self, target: float, method: str) -> tuple[Floats, int]:
        """(cost to that accuracy by seed, number of seeds that did not reach it).

        These count with the whole budget: the reference's, or their own if it is more. A starting model that is there
        already would cost nothing: it counts with a thousandth of the budget.
        """
        found = [
            cost_to(target, run["accuracy"], spent)
            for run, spent in zip(self.runs[method], self.spent[method], strict=True)
        ]
        costs = [value if reached else max(value, self.budget) for value, reached in found]
        return np.maximum(costs, self.budget / 1000), sum(not reached for _, reached in found)

    @cached_property
    def log_ratios(self) -> dict[str, Floats]:
        """By method: log of the cost to the target over the reference's on the same world, by seed."""
        costs = {method: np.log(found) for method, (found, _) in self.to_target.items()}
        return {method: values - costs[REFERENCE] for method, values in costs.items()}

    @cached_property
    def common_range(self) -> float:
        """The cost that all trials cover."""
        return min(spent[-1] for curves in self.spent.values() for spent in curves)

    def area(self, method: str) -> float:
        """Mean accuracy over that range, over all seeds."""
        both = zip(self.spent[method], self.runs[method], strict=True)
        return float(np.mean([mean_accuracy(spent, run["accuracy"], self.common_range) for spent, run in both]))


def finals_of(results: Results, task: str, methods: Sequence[str], seeds: int, budget: int, cost: str) -> Finals:
    """Of the reference and these methods. Raises KeyError for a trial that has not ended."""
    names = list(dict.fromkeys([REFERENCE, *methods]))
    settings = {name: tuned(results, task, name, budget, cost) for name in names}
    runs = {
        name: [results.by_cell[cell] for cell in final_cells(results, [task], [name], seeds, budget, cost)]
        for name in names
    }
    return Finals(task, cost, settings, runs)


@dataclass(frozen=True, slots=True)
class Row:
    """One method on one task.

    `cost`: mean cost to the target over that of the reference, `low` to `high`: its 95 % interval over seeds (paired
    bootstrap). `p`: of the paired test against the reference, corrected for the number of methods; None with too few
    seeds, and for the reference. `missed`: seeds that did not reach the target. `area`: mean accuracy over the cost
    that all trials cover. `final`: mean accuracy at the end.
    """

    method: str
    rate: float
    prompts: int
    cost: float
    low: float
    high: float
    p: float | None
    missed: int
    area: float
    final: float


def cost_to(target: float, accuracy: Sequence[float], spent: Sequence[float]) -> tuple[float, bool]:
    """(cost at which accuracy first reaches the target, between two measurements by a line; was it reached)."""
    for at, value in enumerate(accuracy):
        if value >= target:
            if at == 0:
                return float(spent[0]), True
            share = (target - accuracy[at - 1]) / (value - accuracy[at - 1])
            return spent[at - 1] + share * (spent[at] - spent[at - 1]), True
    return float(spent[-1]), False


@lru_cache
def table(finals: Finals) -> Sequence[Row]:
    """Cheapest first."""
    reference, _ = finals.to_target[REFERENCE]
    tests = corrected_tests({name: values for name, values in finals.log_ratios.items() if name != REFERENCE})
    rows: list[Row] = []
    for name, runs in finals.runs.items():
        costs, missed = finals.to_target[name]
        final = float(np.mean([run["accuracy"][-1] for run in runs]))
        ours = ratio(costs, reference)
        rows.append(Row(name, *finals.settings[name], *ours, tests.get(name), missed, finals.area(name), final))
    return sorted(rows, key=lambda row: row.cost)


@dataclass(frozen=True, slots=True)
class Rank:
    """One method over several tasks.

    `cost`: geometric mean of its ratios to the reference. `rank`: mean of its places. `p`: as in a row, of the paired
    test over all seeds of all tasks.
    """

    method: str
    cost: float
    rank: float
    p: float | None


def ranks(by_task: Sequence[Finals]) -> list[Rank]:
    """Of the methods that were tried on every task, lowest mean rank first."""
    names = [name for name in by_task[0].runs if all(name in finals.runs for finals in by_task)]
    costs = np.array([[row.cost for row in _in_order(finals, names)] for finals in by_task])
    places = costs.argsort(axis=1).argsort(axis=1) + 1
    ratios = {name: np.concatenate([f.log_ratios[name] for f in by_task]) for name in names if name != REFERENCE}
    tests = corrected_tests(ratios)
    found = [
        Rank(name, math.exp(float(np.log(costs[:, i]).mean())), float(places[:, i].mean()), tests.get(name))
        for i, name in enumerate(names)
    ]
    return sorted(found, key=lambda rank: (rank.rank, rank.cost))


def _in_order(finals: Finals, names: Sequence[str]) -> list[Row]:
    rows = {row.method: row for row in table(finals)}
    return [rows[name] for name in names]


def corrected_tests(differences: Mapping[str, Floats]) -> dict[str, float | None]:
    """p of each method's paired test, corrected for their number; None with fewer than SEEDS_FOR_TEST."""
    if not differences or any(len(values) < SEEDS_FOR_TEST for values in differences.values()):
        return dict.fromkeys(differences)
    return dict(zip(differences, corrected_p(np.array(list(differences.values()))), strict=True))


def ratio(ours: Floats, theirs: Floats) -> tuple[float, float, float]:
    """Ratio of means with its 95 % interval; both arrays are by seed."""
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(ours), (RESAMPLES, len(ours)))
    ratios = ours[picks].mean(axis=1) / theirs[picks].mean(axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(ours.mean() / theirs.mean()), float(low), float(high)
