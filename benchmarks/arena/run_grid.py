"""Methods of equal epochs and updates on tasks with luck and many right ways; see PROTOCOL.md.

Rates are tried on one world, then the best counts on others. The same call with the same --out goes on.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.arena import grid
from benchmarks.arena.methods import METHODS, check_names, names
from benchmarks.arena.progress_line import progress_line
from benchmarks.arena.tasks import LUCKY, TASKS
from benchmarks.arena.trainings import alone

GRID = [name for name in METHODS if "/" in name]


def main(prog: str, argv: Sequence[str]) -> None:
    """Raises ValueError for bad input."""
    args = build_parser(prog).parse_args(argv)
    check(args)
    methods = list(dict.fromkeys([*grid.UNIFORM, *args.methods]))
    grid.check_folder(args.out, args.tasks, methods)
    with alone(args.out):
        trials = grid.Trials(args.out)
        tuning = grid.tuning_cells(args.tasks, methods, args.budget)
        run("rates", tuning, trials, args.processes)
        finals = grid.final_cells(trials, args.tasks, methods, args.seeds, args.budget)
        run("comparing", finals, trials, args.processes)
    print(json.dumps({"cost_to_target": grid.costs(trials, args.tasks, methods, args.seeds, args.budget)}))


def build_parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    add = parser.add_argument
    add("--methods", type=names, default=GRID, metavar="NAME,...", help=f"of {', '.join(GRID)} (default: all)")
    add(
        "--tasks",
        type=names,
        default=list(LUCKY),
        metavar="NAME,...",
        help=f"of {', '.join(TASKS)} (default: {', '.join(LUCKY)})",
    )
    add(
        "--budget", type=int, default=4, choices=grid.BUDGETS, help="1 is what n8 takes for 8,000 rollouts (default 4)"
    )
    add("--seeds", type=int, default=grid.SEEDS, metavar="N", help="worlds that count (default %(default)s)")
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
        for _ in grid.run_cells(cells, trials, processes):
            done += 1
            tell(f"{what}: {done} of {len(cells)} trials")
