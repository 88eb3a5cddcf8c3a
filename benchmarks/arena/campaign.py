"""Many trials: learning rate and prompts of a step tuned for every method by one rule, then the seeds that count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from benchmarks.arena.costs import COSTS, budget_of, mean_accuracy, unit_of
from benchmarks.arena.folders import Result, Results, keep_settings
from benchmarks.arena.learner import Learner, warm_start
from benchmarks.arena.methods import METHODS, Method
from benchmarks.arena.tasks import TASKS, World, make_world
from benchmarks.arena.trial import MARKS, REFILL_LIMIT, Trial
from benchmarks.arena.weights import fingerprint

RATES = (1e-4, 3e-4, 1e-3, 3e-3)
PROMPTS = (8, 16, 32, 64, 128, 256, 512, 1024)
"""Learning rates, and prompts of a step, that every method is tried with: all pairs."""

TUNING_MARKS = 12
"""Measurements of a trial that tunes: only its mean accuracy counts."""

TRIAL_VERSION = 4
"""Raised when a change of code changes what the same trial gives: results of other versions are refused."""

LEAST_STEPS = 3
"""Of a trial."""

Setting = tuple[float, int]
"""Learning rate, prompts of a step."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One round of tuning: `tried` settings on the world `seed`, with 1/`part` of the budget."""

    seed: int
    part: int
    tried: int


RUNGS = (Rung(1000, 3, len(RATES) * len(PROMPTS)), Rung(1001, 1, 8), Rung(1002, 1, 3))
"""Successive halving (Jamieson and Talwalkar, 2016), the same for every method, on other worlds than those that count:
in each rung the best settings of the one before. Costs 22 budgets, where all settings on three worlds cost 96."""


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One trial. `prompts`: of a step. `budget`: of the cost `unit`."""

    task: str
    method: str
    rate: float
    prompts: int
    seed: int
    budget: int
    unit: str = "rollouts"


class Trials(Results[Cell]):
    """Results have `spent` (a list of objects) and `accuracy` (a list)."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Cell, ("spent", "accuracy"))

    def total(self, cell: Cell, cost: str) -> float:
        """What the trial spent in all."""
        return COSTS[cost](self.by_cell[cell]["spent"])[-1]

    def area(self, cell: Cell, cost: str, limit: float) -> float:
        """Mean accuracy over the cost from 0 to `limit`."""
        result = self.by_cell[cell]
        return mean_accuracy(COSTS[cost](result["spent"]), result["accuracy"], limit)


def run_cell(cell: Cell, folder: Path) -> Result:
    """In a process of its own. `folder`: of starting models."""

    torch.set_num_threads(1)
    world, weights = starting_point(cell.task, cell.seed, folder)
    learner = Learner(world, weights, cell.rate, cell.seed)
    marks = TUNING_MARKS if cell.seed in [rung.seed for rung in RUNGS] else MARKS
    curve = Trial(learner, METHODS[cell.method], cell.prompts, cell.seed).run(cell.budget, cell.unit, marks)
    return {"spent": curve.spent, "accuracy": [round(value, 6) for value in curve.accuracy]}


def starting_point(task: str, seed: int, folder: Path) -> tuple[World, dict[str, Tensor]]:
    """The world, and its starting model: made once, by whichever process comes first."""

    world, kept = make_world(TASKS[task], seed), folder / "starts" / f"{task}-{seed}.pt"
    kept.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(kept.with_suffix(".lock")):
        if not kept.exists():
            unfinished = kept.with_suffix(".new")
            torch.save(warm_start(world, seed), unfinished)
            unfinished.rename(kept)
    return world, torch.load(kept, weights_only=True)


def least_budget(method: str) -> int:
    """With it, the shortest trial has LEAST_STEPS of the smallest steps, even if each draws the most it may."""
    settings = METHODS[method].settings(PROMPTS[0])
    of_prompt = settings.budget if settings.mode == "est" else settings.max_samples
    if METHODS[method].refill:
        of_prompt *= REFILL_LIMIT
    return math.ceil(LEAST_STEPS * PROMPTS[0] * of_prompt * max(rung.part for rung in RUNGS))


def rung_cells(
    trials: Trials, tasks: Sequence[str], methods: Sequence[str], budget: int, cost: str, rung: int
) -> list[Cell]:
    """Trials of RUNGS[rung]; those of the rungs before must be there."""
    return [
        cell
        for task in tasks
        for method in methods
        for cell in _rung_cells(task, method, budget, cost, rung, _settings(trials, task, method, budget, cost, rung))
    ]


def tuned(trials: Trials, task: str, method: str, budget: int, cost: str) -> Setting:
    """The setting that is best in the last rung."""
    return _settings(trials, task, method, budget, cost, len(RUNGS))[0]


def _rung_cells(task: str, method: str, budget: int, cost: str, rung: int, settings: Sequence[Setting]) -> list[Cell]:
    seed, limit = RUNGS[rung].seed, budget_of(budget // RUNGS[rung].part, cost)
    return [Cell(task, method, *setting, seed, limit, unit_of(cost)) for setting in settings]


def _settings(trials: Trials, task: str, method: str, budget: int, cost: str, rung: int) -> list[Setting]:
    """What is tried in RUNGS[rung], best first: the settings of most mean accuracy in the rung before.

    Rungs of one budget count together. The mean is over the range of `cost` that all trials of the rung cover.
    """
    if rung == 0:
        return list(product(RATES, PROMPTS))
    before = _settings(trials, task, method, budget, cost, rung - 1)
    alike = [at for at in range(rung) if RUNGS[at].part == RUNGS[rung - 1].part]
    areas = np.zeros(len(before))
    for at in alike:
        cells = _rung_cells(task, method, budget, cost, at, before)
        limit = min(trials.total(cell, cost) for cell in cells)
        areas += [trials.area(cell, cost, limit) for cell in cells]
    kept = RUNGS[rung].tried if rung < len(RUNGS) else 1
    return [before[i] for i in np.argsort(-areas, kind="stable")[:kept]]


def final_cells(
    trials: Trials, tasks: Sequence[str], methods: Sequence[str], seeds: int, budget: int, cost: str
) -> list[Cell]:
    """With each method's own rate and number of prompts. `budget`: rollouts, or what takes as long (`budget_of`)."""
    settings = {(task, method): tuned(trials, task, method, budget, cost) for task in tasks for method in methods}
    return [
        Cell(task, method, *settings[task, method], seed, budget_of(budget, cost), unit_of(cost))
        for task in tasks
        for seed in range(seeds)
        for method in methods
    ]


# -- how trials are made ----------------------------------------------------------------------------------------------


def check_folder(folder: Path, tasks: Sequence[str], methods: Sequence[str]) -> None:
    """Note there how trials are made, or compare. Raises ValueError where the folder's trials were made otherwise.

    A changed cost model is no reason: seconds are computed from what a result records.
    """
    ours = {
        "tuning grid": {"rates": RATES, "prompts": PROMPTS, "rungs": [astuple(rung) for rung in RUNGS]},
        "trials": {"version": TRIAL_VERSION, "marks": (MARKS, TUNING_MARKS), "refill limit": REFILL_LIMIT},
        **{f"task {name}": asdict(TASKS[name]) for name in tasks},
        **{f"method {name}": asdict(METHODS[name]) for name in methods},
        **{f"settings of {name}": settings_of(METHODS[name]) for name in methods},
        **{
            f"weight of {of} on {task}": {"fingerprint": fingerprint(of, task)}
            for name in methods
            if (of := METHODS[name].weight_of) is not None
            for task in tasks
        },
    }
    keep_settings(folder, ours, ("tuning grid", "trials"))


def settings_of(method: Method) -> dict[str, Any]:
    """All that its flags and this version's defaults come to, with steps of one size."""
    settings = asdict(method.settings(prompts=8))
    # Flags as they were given, where what became of them depends on others.
    return settings | {"scheduler": settings.pop("given")["scheduler"]}


def made_with(name: str, task: str) -> dict[str, Any]:
    """What a method's trials depend on, in short: numbers and names, as JSON has them, and an objective's name."""
    method = METHODS[name]
    settings = settings_of(method) | {field: getattr(method, field) for field in ("n", "refill", "epochs", "updates")}
    settings["objective"] = settings["target"]["name"]
    if method.weight_of is not None:
        settings["weight"] = fingerprint(method.weight_of, task)
    return {
        key: value for key, value in settings.items() if value is None or isinstance(value, bool | int | float | str)
    }
