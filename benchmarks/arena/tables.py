"""What the trials of a task say: cost to a target beside that of the reference, with intervals and tests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from benchmarks.arena.campaign import Setting, Trials, final_cells, tuned
from benchmarks.arena.costs import Machine, spent_as
from benchmarks.arena.folders import Result
from benchmarks.arena.methods import METHODS
from benchmarks.arena.statistics import Floats, Interval, corrected_tests, cost_to, ratio

REFERENCE = "uniform-8"
TARGET_SHARE = 0.8
"""Of the reference's mean gain over the whole budget."""

UNIFORM = tuple(name for name in METHODS if name.startswith(("uniform-", "grpo-")) and "-as-" not in name)
"""As many rollouts of every prompt, without the weight of another method: in one update of a step, in four or in
eight, in one pass or in two, with and without computing rollouts of advantage 0."""


@dataclass(frozen=True, eq=False)
class Finals:
    """The trials of one task that count, tuned for `cost`: `runs` by method, one for each seed.

    A machine in the place of a cost's name: tuned for "seconds", and compared by that machine's.
    """

    task: str
    cost: str | Machine
    settings: Mapping[str, Setting]
    runs: Mapping[str, Sequence[Result]]

    @cached_property
    def spent(self) -> dict[str, list[list[float]]]:
        """By method: the cost at each measurement of each seed."""
        return {method: [spent_as(self.cost, run["spent"]) for run in runs] for method, runs in self.runs.items()}

    @cached_property
    def target(self) -> float:
        """The accuracy to reach: that at the start, and most of the reference's mean gain."""
        curves = [run["accuracy"] for run in self.runs[REFERENCE]]
        first, last = (float(np.mean([curve[at] for curve in curves])) for at in (0, -1))
        return first + TARGET_SHARE * (last - first)

    @cached_property
    def to_target(self) -> dict[str, tuple[Floats, int]]:
        """By method: (cost to the target by seed, number of seeds that did not reach it).

        These count with the whole budget: the reference's, or their own if it is more. A starting model that is there
        already would cost nothing: it counts with a thousandth of the budget.
        """
        budget = float(np.mean([spent[-1] for spent in self.spent[REFERENCE]]))
        return {method: self._to_target(method, budget) for method in self.runs}

    def _to_target(self, method: str, budget: float) -> tuple[Floats, int]:
        both = zip(self.runs[method], self.spent[method], strict=True)
        found = [cost_to(self.target, run["accuracy"], spent) for run, spent in both]
        costs = [value if reached else max(value, budget) for value, reached in found]
        return np.maximum(costs, budget / 1000), sum(not reached for _, reached in found)

    @cached_property
    def log_ratios(self) -> dict[str, Floats]:
        """By method: log of the cost to the target over the reference's on the same world, by seed."""
        costs = {method: np.log(found) for method, (found, _) in self.to_target.items()}
        return {method: values - costs[REFERENCE] for method, values in costs.items()}

    @cached_property
    def rows(self) -> dict[str, Row]:
        """By method, cheapest first."""
        tests = corrected_tests({name: values for name, values in self.log_ratios.items() if name != REFERENCE})
        found: list[Row] = []
        for name, runs in self.runs.items():
            final = float(np.mean([run["accuracy"][-1] for run in runs]))
            found.append(Row(name, self.beside(name, REFERENCE), tests.get(name), self.to_target[name][1], final))
        return {row.method: row for row in sorted(found, key=lambda row: row.cost.mean)}

    def beside(self, ours: str, other: str) -> Interval:
        """Cost of one method to the target over that of another, on the same worlds."""
        return ratio(self.to_target[ours][0], self.to_target[other][0])

    def cheapest_uniform(self) -> str:
        """By mean cost. It is chosen by the very trials that ours is then compared with, so it is a little lucky."""
        return min(set(UNIFORM) & self.runs.keys(), key=lambda name: float(self.to_target[name][0].mean()))


def finals_of(trials: Trials, task: str, methods: Sequence[str], seeds: int, budget: int, cost: str) -> Finals:
    """Of the reference and these methods. Raises KeyError for a trial that has not ended."""
    names = list(dict.fromkeys([REFERENCE, *methods]))
    settings = {name: tuned(trials, task, name, budget, cost) for name in names}
    runs = {
        name: [trials.by_cell[cell] for cell in final_cells(trials, [task], [name], seeds, budget, cost)]
        for name in names
    }
    return Finals(task, cost, settings, runs)


@dataclass(frozen=True, slots=True)
class Row:
    """One method on one task.

    `cost`: mean cost to the target over that of the reference. `p`: of the paired test against the reference,
    corrected for the number of methods; None with too few seeds, and for the reference. `missed`: seeds that did not
    reach the target. `final`: mean accuracy at the end.
    """

    method: str
    cost: Interval
    p: float | None
    missed: int
    final: float


def over_tasks(by_task: Sequence[Finals]) -> dict[str, tuple[float, float | None]]:
    """Of the methods that were tried on every task, cheapest first: (geometric mean of the ratios to the reference,
    p of the paired test over all seeds of all tasks).
    """
    names = [name for name in by_task[0].runs if all(name in finals.runs for finals in by_task)]
    costs = {name: float(np.mean([np.log(finals.rows[name].cost.mean) for finals in by_task])) for name in names}
    ratios = {name: np.concatenate([f.log_ratios[name] for f in by_task]) for name in names if name != REFERENCE}
    tests = corrected_tests(ratios)
    return {name: (math.exp(costs[name]), tests.get(name)) for name in sorted(names, key=lambda name: costs[name])}
