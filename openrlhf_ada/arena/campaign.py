"""Many trials: learning rate and prompts of a step tuned for every method by one rule, then the seeds that count."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from openrlhf_ada.arena.tasks import World

RATES = (3e-4, 1e-3, 3e-3)
PROMPTS = (8, 16, 32, 64)
"""Learning rates, and prompts of a step, that every method is tried with: all pairs."""

TUNING_SEEDS = (1000, 1001, 1002)
"""Other worlds than those that count."""


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One trial. `prompts`: of a step. `budget`: rollouts."""

    task: str
    method: str
    rate: float
    prompts: int
    seed: int
    budget: int


Result = dict[str, Any]
"""A cell's fields, with `spent` (a list of objects) and `accuracy` (a list)."""


class Results:
    """A file of JSON lines, one for each trial that has ended. Raises ValueError for a line that is none."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.folder = file.parent
        self.by_cell: dict[Cell, Result] = {}
        if file.exists():
            for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
                try:
                    result: Result = json.loads(line)
                    self.by_cell[Cell(**{field.name: result[field.name] for field in fields(Cell)})] = result
                except (ValueError, KeyError, TypeError) as error:
                    raise ValueError(f"{file}, line {number} is no result of a trial ({error!r})") from error

    def add(self, cell: Cell, curve: Result) -> None:
        """Keep it, in memory and on disk."""
        self.by_cell[cell] = asdict(cell) | curve
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self.by_cell[cell]) + "\n")

    def area(self, cell: Cell) -> float:
        """Mean accuracy over the budget."""
        return sum(self.by_cell[cell]["accuracy"]) / len(self.by_cell[cell]["accuracy"])


def run_cells(cells: Iterable[Cell], results: Results, processes: int) -> Iterator[Cell]:
    """Run what is missing, side by side; yields each cell that has ended. Starting models are kept as well."""
    missing = [cell for cell in cells if cell not in results.by_cell]
    if not missing:
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawn) as pool:
        cell_of = {pool.submit(run_cell, cell, results.folder): cell for cell in missing}
        for future in as_completed(cell_of):
            results.add(cell_of[future], future.result())
            yield cell_of[future]


def run_cell(cell: Cell, folder: Path) -> Result:
    """In a process of its own. `folder`: of starting models."""
    import torch

    from openrlhf_ada.arena.learner import Learner
    from openrlhf_ada.arena.methods import METHODS
    from openrlhf_ada.arena.trial import Trial

    torch.set_num_threads(1)
    world, weights = _start(cell.task, cell.seed, folder)
    learner = Learner(world, weights, cell.rate, cell.seed)
    curve = Trial(learner, METHODS[cell.method], cell.prompts, cell.seed).run(cell.budget)
    return {"spent": curve.spent, "accuracy": [round(value, 6) for value in curve.accuracy]}


def _start(task: str, seed: int, folder: Path) -> tuple[World, dict[str, Tensor]]:
    """The world, and its starting model: made once, by whichever process comes first."""
    import torch
    from filelock import FileLock

    from openrlhf_ada.arena.learner import warm_start
    from openrlhf_ada.arena.tasks import TASKS, make_world

    world, kept = make_world(TASKS[task], seed), folder / "starts" / f"{task}-{seed}.pt"
    kept.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(kept.with_suffix(".lock")):
        if not kept.exists():
            unfinished = kept.with_suffix(".new")
            torch.save(warm_start(world, seed), unfinished)
            unfinished.rename(kept)
    return world, torch.load(kept, weights_only=True)


def tuning_cells(tasks: Sequence[str], methods: Sequence[str], budget: int) -> list[Cell]:
    """Ordered so that a process meets the same world again and again."""
    return [
        Cell(task, method, rate, prompts, seed, budget)
        for task in tasks
        for seed in TUNING_SEEDS
        for method in methods
        for rate, prompts in product(RATES, PROMPTS)
    ]


def tuned(results: Results, task: str, method: str, budget: int) -> tuple[float, int]:
    """(rate, prompts of a step) of most mean accuracy over the budget, averaged over the tuning seeds."""

    def area(setting: tuple[float, int]) -> float:
        return sum(results.area(Cell(task, method, *setting, seed, budget)) for seed in TUNING_SEEDS)

    return max(product(RATES, PROMPTS), key=area)


def final_cells(results: Results, tasks: Sequence[str], methods: Sequence[str], seeds: int, budget: int) -> list[Cell]:
    """With each method's own rate and number of prompts."""
    settings = {(task, method): tuned(results, task, method, budget) for task in tasks for method in methods}
    return [
        Cell(task, method, *settings[task, method], seed, budget)
        for task in tasks
        for seed in range(seeds)
        for method in methods
    ]
