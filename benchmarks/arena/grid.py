"""Methods of equal epochs and updates on tasks with luck and many right ways, over three budgets; see PROTOCOL.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import torch

from benchmarks.arena.campaign import starting_point
from benchmarks.arena.costs import budget_of
from benchmarks.arena.folders import Result, Results, keep_settings
from benchmarks.arena.learner import Learner
from benchmarks.arena.measures import measured
from benchmarks.arena.methods import METHODS
from benchmarks.arena.real import rollouts_per_prompt
from benchmarks.arena.tasks import TASKS
from benchmarks.arena.trial import Curve, Trial

UNIT_ROLLOUTS = 8_000
"""A budget of 1 is the estimated seconds that `n8` takes for so many."""

BUDGETS = (1, 4, 16)

COST = "seconds"

STEP_ROLLOUTS = 512
"""That a step of every method draws on average, if pass rates are as `real.PASS_RATES` says."""

RATES = (3e-4, 1e-3, 3e-3)

TUNING_SEED, SEEDS = 1000, 5
"""Of the world on which rates are tried, and worlds that count: 0, 1, ..."""

MARKS_OF_DOUBLING = 2

FIRST_MARK = 1 / 8

UNIFORM = ("n4", "n8")
"""Uniform sampling, whose best pass@8 a setting must not fall below by more than PASS8_LOSS."""

PASS8_LOSS = 0.01

VERSION = 1
"""Raised when a change of code changes what the same trial gives."""


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One trial. `budget`: of BUDGETS."""

    task: str
    method: str
    rate: float
    seed: int
    budget: int


class Trials(Results[Cell]):
    """Results have a curve, `at` (budgets of its points), and `measures` by budget, as text."""

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
    trial = Trial(
        Learner(world, weights, cell.rate, cell.seed), METHODS[cell.method], prompts_of_step(cell.method), cell.seed
    )
    unit, curve, measures = budget_of(UNIT_ROLLOUTS, COST), Curve(), {}
    points = marks(cell.budget)
    for point in points:
        trial.spend(point * unit, COST)
        curve.add(trial.spent, trial.accuracy())
        if any(abs(point - budget) < 1e-6 for budget in (0, *BUDGETS)):
            measures[str(round(point))] = {name: round(value, 5) for name, value in trial.measured().items()}
    accuracy = [round(value, 5) for value in curve.accuracy]
    return {"at": [round(point, 4) for point in points], "spent": curve.spent, "accuracy": accuracy, "measures": measures}


def run_cells(cells: Sequence[Cell], trials: Trials, processes: int) -> Iterator[Cell]:
    """Run what is missing, side by side; yields each cell that has ended."""
    missing = trials.missing(cells)
    if not missing:
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        cell_of = {pool.submit(run_cell, cell, trials.folder): cell for cell in missing}
        try:
            for future in as_completed(cell_of):
                trials.add(cell_of[future], future.result())
                yield cell_of[future]
        finally:
            # After an interruption: only trials that run now are waited for.
            pool.shutdown(cancel_futures=True)


def tuning_cells(tasks: Sequence[str], methods: Sequence[str], budget: int) -> list[Cell]:
    return [Cell(t, m, rate, TUNING_SEED, budget) for t in tasks for m in methods for rate in RATES]
