"""Methods of equal epochs and updates on tasks with luck and many right ways, over three budgets; see PROTOCOL.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.arena.campaign import settings_of, starting_point
from benchmarks.arena.costs import COSTS, Point, budget_of
from benchmarks.arena.folders import Result, Results, keep_settings
from benchmarks.arena.learner import Learner
from benchmarks.arena.measures import on_hardest
from benchmarks.arena.methods import METHODS
from benchmarks.arena.real import rollouts_per_prompt
from benchmarks.arena.statistics import cost_to
from benchmarks.arena.tasks import TASKS, Floats
from benchmarks.arena.trial import Curve, Trial

UNIT_ROLLOUTS = 8_000
"""A budget of 1 is the estimated seconds that `n8` takes for so many."""

BUDGETS = (1, 4, 16)

COST = "seconds"

KEPT_COSTS = ("rollouts", "tokens", "seconds-7b")
"""Beside COST: at each point of a curve."""

STEP_ROLLOUTS = 512
"""That a step of every method draws on average, if pass rates are as `real.PASS_RATES` says."""

RATES = (3e-4, 6e-4, 1e-3)

TUNING_SEED, SEEDS = 1000, 5
"""Of the world on which rates are tried, and worlds that count: 0, 1, ..."""

STEPS, STEP_PROMPTS = 96, 64
"""Of trials that are compared at equal steps."""

TUNED_UP_TO = 4
"""Rates of a larger budget are those of this one."""

MARKS_OF_DOUBLING = 2

FIRST_MARK = 1 / 8

UNIFORM = ("n4/1", "n8/1")
"""Uniform sampling, whose best pass@8 a setting must not fall below by more than PASS8_LOSS."""

PASS8_LOSS = 0.01

VERSION = 1
"""Raised when a change of code changes what the same trial gives."""


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One trial. `budget`: of BUDGETS. `steps`: so many, of STEP_PROMPTS each, in the place of a budget."""

    task: str
    method: str
    rate: float
    seed: int
    budget: int
    steps: int = 0


class Trials(Results[Cell]):
    """Results have a curve, `at` (budgets of its points), `spent` (by cost, a list each), and `measures` by budget, as
    text."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Cell, ("at", "spent", "accuracy", "measures"))


def marks(budget: int) -> list[float]:
    """Budgets at which accuracy is measured: 0, and MARKS_OF_DOUBLING in each doubling from FIRST_MARK on."""
    found, at = [0.0], FIRST_MARK
    while at <= budget * 1.0001:
        found.append(at)
        at *= 2.0 ** (1.0 / MARKS_OF_DOUBLING)
    return found


def prompts_of_step(method: str) -> int:
    """At least as many as there are updates of an epoch."""
    return max(round(STEP_ROLLOUTS / rollouts_per_prompt(method)), METHODS[method].updates)


def run_cell(cell: Cell, folder: Path) -> Result:
    """In a process of its own. `folder`: of starting models."""
    torch.set_num_threads(1)
    world, weights = starting_point(cell.task, cell.seed, folder)
    learner = Learner(world, weights, cell.rate, cell.seed)
    prompts = STEP_PROMPTS if cell.steps else prompts_of_step(cell.method)
    trial = Trial(learner, METHODS[cell.method], prompts, cell.seed)
    unit, cost = (1, "steps") if cell.steps else (budget_of(UNIT_ROLLOUTS, COST), COST)
    points = [0.0, float(cell.steps)] if cell.steps else marks(cell.budget)
    curve, measures, before = Curve(), {}, np.empty(0, dtype=np.int64)
    for point in points:
        trial.spend(point * unit, cost)
        curve.add(trial.spent, trial.accuracy())
        if any(abs(point - budget) < 1e-6 for budget in (0, *BUDGETS, cell.steps)):
            found, counts = trial.measured()
            before = before if point else counts
            found |= on_hardest(before, counts)
            measures[str(round(point))] = {name: round(value, 5) for name, value in found.items()}
    accuracy = [round(value, 5) for value in curve.accuracy]
    return {
        "at": [round(point, 4) for point in points],
        "spent": spent_on(cell.method, curve.spent),
        "accuracy": accuracy,
        "measures": measures,
    }


def spent_on(method: str, points: Sequence[Point]) -> dict[str, list[int]]:
    """KEPT_COSTS and updates at each measurement."""
    updates = METHODS[method].epochs * METHODS[method].updates
    costs = {name: [round(value) for value in COSTS[name](points)] for name in KEPT_COSTS}
    return costs | {"updates": [point["steps"] * updates for point in points]}


def tuning_cells(tasks: Sequence[str], methods: Sequence[str], budget: int) -> list[Cell]:
    """The rate of the largest budget is that of TUNED_UP_TO."""
    tried = min(budget, TUNED_UP_TO)
    return [Cell(task, m, rate, TUNING_SEED, tried) for task in tasks for m in methods for rate in RATES]


@dataclass(frozen=True, slots=True)
class Tuned:
    """A rate, and whether its pass@8 was not below uniform sampling's."""

    rate: float
    keeps_pass8: bool


def tuned(trials: Trials, task: str, method: str, budget: int) -> Tuned:
    """The rate with the most right answers at this budget, of those that keep pass@8; of all if none does.

    Raises LookupError where none was tried.
    """
    tried = _tried(trials, task, method, budget)
    if not all((tried, *(_tried(trials, task, name, budget) for name in UNIFORM))):
        raise LookupError(f"no rate was tried for {method} on {task} at a budget of {budget}")
    floor = max(_most_right(_tried(trials, task, name, budget))[1]["pass8"] for name in UNIFORM) - PASS8_LOSS
    keeping = {rate: found for rate, found in tried.items() if found["pass8"] >= floor}
    return Tuned(_most_right(keeping or tried)[0], bool(keeping))


Measures = dict[str, float]


def _most_right(tried: Mapping[float, Measures]) -> tuple[float, Measures]:
    return max(tried.items(), key=lambda item: item[1]["right"])


def _tried(trials: Trials, task: str, method: str, budget: int) -> dict[float, Measures]:
    """Measures at this budget by rate."""
    at = min(budget, TUNED_UP_TO)
    by_rate: dict[float, Measures] = {}
    for cell, result in trials.by_cell.items():
        if (cell.task, cell.method, cell.seed) == (task, method, TUNING_SEED) and str(at) in result["measures"]:
            by_rate[cell.rate] = result["measures"][str(at)]
    return by_rate


def final_cells(trials: Trials, tasks: Sequence[str], methods: Sequence[str], seeds: int, budget: int) -> list[Cell]:
    """World by world. A rate that is best at a smaller budget alone is run up to that."""
    of_rate: dict[tuple[str, str, float], int] = {}
    for task in tasks:
        for method in methods:
            for at in (b for b in BUDGETS if b <= budget):
                of_rate[task, method, tuned(trials, task, method, at).rate] = at
    return [Cell(*key, seed, at) for seed in range(seeds) for key, at in of_rate.items()]


def result_at(trials: Trials, task: str, method: str, seed: int, budget: int) -> Result | None:
    """That of the rate tuned for this budget; None where it has not been run."""
    rate = tuned(trials, task, method, budget).rate
    found = (trials.by_cell.get(Cell(task, method, rate, seed, b)) for b in BUDGETS if b >= budget)
    return next((result for result in found if result is not None), None)


def costs_by_world(
    trials: Trials, task: str, methods: Sequence[str], seeds: int, budget: int, share: float = 0.9
) -> dict[str, Floats]:
    """By method, at least FIRST_MARK; shapes (worlds,)."""
    runs = {m: [result_at(trials, task, m, seed, budget) for seed in range(seeds)] for m in methods}
    return {m: _costs_of(runs, m, budget, share) for m in methods}


Runs = Mapping[str, Sequence[Result | None]]


def _costs_of(runs: Runs, method: str, budget: int, share: float) -> Floats:
    """Budget at which each world's run first has this share of what the best method gains there."""
    final = {m: [r["measures"][str(budget)]["right"] for r in of if r is not None] for m, of in runs.items()}
    best = max(final, key=lambda m: float(np.mean(final[m])))
    spent: list[float] = []
    for world, result in enumerate(runs[method]):
        if result is None:
            raise ValueError(f"{method} has not been run on world {world} up to a budget of {budget}")
        start = result["measures"]["0"]["right"]
        target = start + share * (final[best][world] - start)
        inside = [(at, value) for at, value in zip(result["at"], result["accuracy"], strict=True) if at <= budget]
        spent.append(cost_to(target, [value for _, value in inside], [at for at, _ in inside])[0])
    return np.maximum(spent, FIRST_MARK)


def check_folder(folder: Path, tasks: Sequence[str], methods: Sequence[str]) -> None:
    """Note there how trials are made, or compare. Raises ValueError where the folder's trials were made otherwise."""
    ours = {
        "trials": {
            "version": VERSION,
            "unit": UNIT_ROLLOUTS,
            "step": STEP_ROLLOUTS,
            "rates": RATES,
            "tuning seed": TUNING_SEED,
        },
        **{f"task {name}": asdict(TASKS[name]) for name in tasks},
        **{f"method {name}": asdict(METHODS[name]) | {"summary": ""} for name in methods},
        **{f"settings of {name}": settings_of(METHODS[name]) for name in methods},
    }
    keep_settings(folder, ours, ("trials",))
