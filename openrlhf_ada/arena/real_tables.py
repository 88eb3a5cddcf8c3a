"""What runs on the real stack say: each method beside the reference on the same seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from openrlhf_ada.arena.costs import mean_accuracy
from openrlhf_ada.arena.methods import METHODS
from openrlhf_ada.arena.real import REFERENCE, Result, Results, curve, prompts_per_step, total
from openrlhf_ada.arena.tables import TARGET_SHARE, cost_to
from openrlhf_ada.reporting.quantiles import t_quantile_975

COSTS = ("rollouts", "tokens", "seconds")
"""Costs to the target that are shown. Seconds are measured on this machine."""

SEEDS_FOR_INTERVAL = 3


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds, paired with the reference. `low`, `high`: its 95 % interval by Student's t; None with fewer
    than SEEDS_FOR_INTERVAL seeds."""

    mean: float
    low: float | None
    high: float | None

    def text(self, form: str) -> str:
        """`form`: of each number, as for `format`."""
        if self.low is None or self.high is None:
            return format(self.mean, form)
        return f"{self.mean:{form}} [{self.low:{form}}, {self.high:{form}}]"


@dataclass(frozen=True, slots=True)
class Row:
    """One method. `seeds`: runs that have ended. The other figures are means over them.

    `start`, `final`: accuracy before training and at the budget, `half_width`: of `final`, from the evaluations.
    `gain`: mean accuracy over the budget less the reference's. `cost`: by name, cost to the target over the
    reference's (geometric mean), which counts with the whole budget in the `missed` seeds without it. The last two are
    of the seeds that the reference has as well, and None without such. `spent`: totals of a run up to its last
    evaluation.
    """

    method: str
    seeds: int
    prompts: int
    start: float
    final: float
    half_width: float
    gain: Interval | None
    cost: Mapping[str, Interval] | None
    missed: int
    spent: Mapping[str, float]


SPENT = ("rollouts", "tokens", "trained_tokens", "sampling_seconds", "training_seconds", "seconds")


def table(results: Results, methods: Sequence[str], seeds: int) -> list[Row]:
    """The reference first, then by mean accuracy over the budget. Methods without a finished run are left out."""
    runs = {name: results.of(name, seeds) for name in dict.fromkeys([REFERENCE, *methods])}
    budget = float(results.conditions.budget)
    target = target_of(results, seeds)
    rows = [_row(name, of_method, runs[REFERENCE], budget, target) for name, of_method in runs.items() if of_method]
    return sorted(rows, key=lambda row: (row.method != REFERENCE, -row.gain.mean if row.gain else 0.0))


def target_of(results: Results, seeds: int) -> float | None:
    """The accuracy to reach: a share of the reference's mean gain over the budget. None without a run of it."""
    runs = results.of(REFERENCE, seeds).values()
    if not runs:
        return None
    ends = [(run["evaluations"]["accuracy"][0], _accuracy_at(run, results.conditions.budget)) for run in runs]
    first, last = np.mean(ends, axis=0).tolist()
    return first + TARGET_SHARE * (last - first)


def _row(
    name: str, runs: Mapping[int, Result], reference: Mapping[int, Result], budget: float, target: float | None
) -> Row:
    pairs = [(runs[seed], reference[seed]) for seed in runs if seed in reference]
    missed, cost = 0, None
    if target is not None and pairs:
        missed = sum(not _reaches(run, target) for run in runs.values())
        cost = {of: _ratio([(_to_target(a, of, target), _to_target(b, of, target)) for a, b in pairs]) for of in COSTS}
    widths = [run["evaluations"]["half_width"][-1] for run in runs.values()]
    return Row(
        method=name,
        seeds=len(runs),
        prompts=prompts_per_step(name),
        start=float(np.mean([run["evaluations"]["accuracy"][0] for run in runs.values()])),
        final=float(np.mean([_accuracy_at(run, budget) for run in runs.values()])),
        half_width=math.sqrt(sum(width**2 for width in widths)) / len(widths),
        gain=interval([area(ours, budget) - area(theirs, budget) for ours, theirs in pairs]) if pairs else None,
        cost=cost,
        missed=missed,
        spent={of: float(np.mean([total(run, of) for run in runs.values()])) * times(name, of) for of in SPENT},
    )


def times(method: str, cost: str) -> int:
    """How often a method spends what a run's record has once: it trains its tokens in every pass."""
    return METHODS[method].passes if cost == "trained_tokens" and method in METHODS else 1


def _accuracy_at(run: Result, budget: float) -> float:
    """Between two evaluations by a line."""
    spent, accuracy = curve(run, "rollouts")
    return float(np.interp(budget, spent, accuracy))


def area(run: Result, budget: float) -> float:
    return mean_accuracy(*curve(run, "rollouts"), budget)


def _reaches(run: Result, target: float) -> bool:
    return max(run["evaluations"]["accuracy"]) >= target


def _to_target(run: Result, cost: str, target: float) -> float:
    """Cost to the target, or the whole run's; at least that of one step, since the start may be above the target."""
    spent, accuracy = curve(run, cost)
    return max(cost_to(target, accuracy, spent)[0], run["by_step"][cost][0])


def _ratio(pairs: Sequence[tuple[float, float]]) -> Interval:
    return interval([math.log(ours / theirs) for ours, theirs in pairs], math.exp)


def interval(differences: Sequence[float], show: Callable[[float], float] = lambda value: value) -> Interval:
    mean = float(np.mean(differences))
    count = len(differences)
    if count < SEEDS_FOR_INTERVAL:
        return Interval(show(mean), None, None)
    half = t_quantile_975(count - 1) * float(np.std(differences, ddof=1)) / math.sqrt(count)
    return Interval(show(mean), show(mean - half), show(mean + half))
