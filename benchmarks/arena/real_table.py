"""What methods cost on the real stack, and how good they get, from the runs that have ended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from benchmarks.arena.costs import mean_accuracy
from benchmarks.arena.folders import Result, Results
from benchmarks.arena.real import Cell, Conditions, sizes
from benchmarks.arena.statistics import Interval, cost_to, mean_interval
from benchmarks.arena.tables import TARGET_SHARE

COSTS = ("rollouts", "tokens", "seconds")
"""To the target, that are shown. Seconds are measured on the machine that ran."""

SPENT = ("tokens", "trained_tokens", "sampling_seconds", "training_seconds")

MEASURES = ("working_right", "pass", "length")
"""Of evaluations, where there is a working."""

BySeed = Mapping[int, Result]


@dataclass(frozen=True, slots=True)
class Row:
    """One method at its best rate: that of the highest mean accuracy at the budget, of those with the most seeds.

    `rate`: that one; `rates`: how many have ended runs. `seeds`: runs that have ended. What follows are means over
    them. `start`, `final`: accuracy before training and at the budget, `half_width`: of `final`, from the evaluations.
    `gain`: mean accuracy over the budget less the reference's. `cost`: by name, cost to the target over the
    reference's (geometric mean), which counts with the whole budget in the `missed` seeds without it. The last two are
    of the seeds that the reference has as well, and None without such. `spent`: totals of a run up to its last
    evaluation. `measures`: at the budget, by name, and "surprisal" over the last quarter of steps; empty where there
    is no working.
    """

    method: str
    rate: float
    rates: int
    seeds: int
    prompts: int
    updates: int
    start: float
    final: float
    half_width: float
    gain: Interval | None
    cost: Mapping[str, Interval] | None
    missed: int
    spent: Mapping[str, float]
    measures: Mapping[str, float]


def table(results: Results[Cell], methods: Sequence[str], conditions: Conditions) -> list[Row]:
    """The reference first, then by mean accuracy over the budget. Methods without a finished run are left out."""
    reference = conditions.kind.reference
    target = target_of(results, conditions)
    _, beside = best_runs(results, reference, conditions)
    found = {name: best_runs(results, name, conditions) for name in dict.fromkeys([reference, *methods])}
    rows = [
        _row(name, rate, len(rates_of(results, name)), runs, beside, conditions, target)
        for name, (rate, runs) in found.items()
        if runs
    ]
    return sorted(rows, key=lambda row: (row.method != reference, -row.gain.mean if row.gain else 0.0))


def rates_of(results: Results[Cell], method: str) -> dict[float, dict[int, Result]]:
    """Runs that have ended, by rate and seed."""
    found: dict[float, dict[int, Result]] = {}
    for cell in sorted(results.by_cell, key=lambda cell: (cell.rate, cell.seed)):
        if cell.method == method:
            found.setdefault(cell.rate, {})[cell.seed] = results.by_cell[cell]
    return found


def best_runs(results: Results[Cell], method: str, conditions: Conditions) -> tuple[float, BySeed]:
    """(rate, runs by seed); no runs where none has ended."""

    def good(item: tuple[float, BySeed]) -> tuple[int, float]:
        runs = item[1].values()
        return len(runs), float(np.mean([at_budget(run, "accuracy", conditions) for run in runs]))

    return max(rates_of(results, method).items(), key=good, default=(math.nan, {}))


def target_of(results: Results[Cell], conditions: Conditions) -> float | None:
    """The accuracy to reach: a share of the reference's mean gain over the budget. None without a run of it."""
    _, runs = best_runs(results, conditions.kind.reference, conditions)
    if not runs:
        return None
    ends = [(run["evaluations"]["accuracy"][0], at_budget(run, "accuracy", conditions)) for run in runs.values()]
    first, last = np.mean(ends, axis=0).tolist()
    return first + TARGET_SHARE * (last - first)


def _row(
    name: str,
    rate: float,
    rates: int,
    runs: BySeed,
    reference: BySeed,
    conditions: Conditions,
    target: float | None,
) -> Row:
    pairs = [(runs[seed], reference[seed]) for seed in runs if seed in reference]
    missed, cost, gain = 0, None, None
    if target is not None and pairs:
        missed = sum(max(run["evaluations"]["accuracy"]) < target for run in runs.values())
        cost = {
            of: mean_interval(
                [math.log(_to_target(a, of, target) / _to_target(b, of, target)) for a, b in pairs], math.exp
            )
            for of in COSTS
        }
        gain = mean_interval([_area(ours, conditions) - _area(theirs, conditions) for ours, theirs in pairs])
    widths = [run["evaluations"]["half_width"][-1] for run in runs.values()]
    spent = {of: float(np.mean([sum(run["by_step"][of]) for run in runs.values()])) for of in SPENT}
    # A run's record has once what is trained in every epoch.
    prompts, epochs, updates = sizes(name, conditions)
    spent["trained_tokens"] *= epochs
    return Row(
        method=name,
        rate=rate,
        rates=rates,
        seeds=len(runs),
        prompts=prompts,
        updates=updates,
        start=float(np.mean([run["evaluations"]["accuracy"][0] for run in runs.values()])),
        final=_mean(runs, "accuracy", conditions),
        half_width=math.sqrt(sum(width**2 for width in widths)) / len(widths),
        gain=gain,
        cost=cost,
        missed=missed,
        spent=spent,
        measures=_measures(runs, conditions),
    )


def _measures(runs: BySeed, conditions: Conditions) -> dict[str, float]:
    if conditions.kind.is_published:
        return {name: _mean(runs, name, conditions) for name in ("pass", "length")}
    if not conditions.kind.like:
        return {}
    said = [run["by_step"]["surprisal"] for run in runs.values()]
    late = [value for of_run in said for value in of_run[-max(1, len(of_run) // 4) :] if value is not None]
    return {name: _mean(runs, name, conditions) for name in MEASURES} | {
        "surprisal": float(np.mean(late)) if late else math.nan
    }


def curve(result: Result, cost: str, measure: str = "accuracy") -> tuple[list[float], list[float]]:
    """(cost at each evaluation, what was measured there)."""
    spent = [0, *accumulate(result["by_step"][cost])]
    return [spent[step] for step in result["evaluations"]["step"]], result["evaluations"][measure]


def _mean(runs: BySeed, measure: str, conditions: Conditions) -> float:
    return float(np.mean([at_budget(run, measure, conditions) for run in runs.values()]))


def at_budget(run: Result, measure: str, conditions: Conditions) -> float:
    """Between two evaluations by a line."""
    return float(np.interp(conditions.budget, *curve(run, conditions.kind.counted, measure)))


def _area(run: Result, conditions: Conditions) -> float:
    return mean_accuracy(*curve(run, conditions.kind.counted), conditions.budget)


def _to_target(run: Result, cost: str, target: float) -> float:
    """Cost to the target, or the whole run's; at least that of one step, since the start may be above the target."""
    spent, accuracy = curve(run, cost)
    return max(cost_to(target, accuracy, spent)[0], run["by_step"][cost][0])
