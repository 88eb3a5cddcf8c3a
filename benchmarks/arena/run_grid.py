"""Methods of equal epochs and updates on tasks with luck and many right ways; see PROTOCOL.md.

Rates are tried on one world, then the best counts on others. The same call with the same --out goes on.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.arena import grid, orderings
from benchmarks.arena.arguments import check_names, fill_in, names
from benchmarks.arena.grid_kept import KEPT, begin_with
from benchmarks.arena.grid_page import Compared
from benchmarks.arena.methods import METHODS
from benchmarks.arena.progress_line import progress_line
from benchmarks.arena.tasks import LUCKY, TASKS
from benchmarks.arena.trainings import alone

GRID = [name for name in METHODS if "/" in name]

QUICK: dict[str, Any] = {
    "methods": ["n8/1", "right-1/2", "lambda-1-wrong-once/2", "balance/1"],
    "tasks": ["luck4"],
    "budget": 1,
    "seeds": 2,
}
"""A few minutes on two cores."""

FULL: dict[str, Any] = {"methods": GRID, "tasks": list(LUCKY), "budget": 4, "seeds": grid.SEEDS}


def main(prog: str, argv: Sequence[str]) -> None:
    """Raises ValueError for bad input."""
    args = build_parser(prog).parse_args(argv)
    fill_in(args, QUICK, FULL)
    check(args)
    methods = list(dict.fromkeys([*grid.UNIFORM, *args.methods]))
    if args.kept:
        begin_with(KEPT, args.out)
    grid.check_folder(args.out, args.tasks, methods)
    with alone(args.out):
        trials = grid.Trials(args.out)
        run("rates", grid.tuning_cells(args.tasks, methods, args.budget), trials, args.processes)
        finals = grid.final_cells(trials, args.tasks, methods, args.seeds, args.budget)
        run("comparing", finals, trials, args.processes)
        if args.equal_steps:
            alike = [name for name in orderings.AT_STEPS if name in methods]
            cells = orderings.step_cells(trials, args.tasks, alike, args.seeds)
            run("equal steps", cells, trials, args.processes)
    costs = {task: rounded(Compared(trials, task, args.budget).beside_best) for task in args.tasks}
    verdicts = orderings.found(orderings.View(trials, args.seeds))
    print(json.dumps({"cost_to_target": costs, "orderings": orderings.summary(verdicts)}))


def rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in values.items()}


def build_parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="five methods on one task: a few minutes")
    add("--methods", type=names, metavar="NAME,...", help=f"of {', '.join(GRID)} (default: all)")
    tasks = f"of {', '.join(TASKS)} (default: {', '.join(LUCKY)})"
    add("--tasks", type=names, metavar="NAME,...", help=tasks)
    add("--budget", type=int, choices=grid.BUDGETS, help="1: what n8 takes for 8,000 rollouts (default 4)")
    add("--seeds", type=int, metavar="N", help=f"worlds that count (default {grid.SEEDS})")
    add("--equal_steps", action="store_true", help="also run steps of equal prompts, for the published orderings")
    add("--kept", action="store_true", help="begin with the trials that this repository holds")
    add("--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="trials side by side (default: cores)")
    add("--out", type=Path, default=Path("runs/grid"), metavar="DIR")
    return parser


def check(args: argparse.Namespace) -> None:
    """Raises ValueError."""
    check_names("--methods", args.methods, GRID)
    check_names("--tasks", args.tasks, TASKS)
    for name in ("seeds", "processes"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} {getattr(args, name)}: at least 1 is needed")


def run(what: str, cells: Sequence[grid.Cell], trials: grid.Trials, processes: int) -> None:
    done = len(cells) - len(trials.missing(cells))
    with progress_line() as tell:
        for _ in trials.run(cells, grid.run_cell, processes):
            done += 1
            tell(f"{what}: {done} of {len(cells)} trials")
