"""Compare methods at equal cost on tasks that a small model learns in seconds.

Learning rate and prompts of a step are tuned for every method by one rule. The same call with the same --out goes on.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.arena.arguments import check_names, fill_in, names
from benchmarks.arena.campaign import RUNGS, Trials, check_folder, final_cells, least_budget, run_cell, rung_cells
from benchmarks.arena.costs import COSTS
from benchmarks.arena.methods import METHODS
from benchmarks.arena.page import at_equal
from benchmarks.arena.progress_line import progress_line
from benchmarks.arena.statistics import SEEDS_FOR_INTERVAL, SEEDS_FOR_TEST
from benchmarks.arena.tables import REFERENCE, finals_of
from benchmarks.arena.tasks import TASKS, WHOLE
from benchmarks.arena.trainings import alone
from benchmarks.arena.weights import check_weights

QUICK: dict[str, Any] = {
    "methods": ["uniform-8", "balance", "est", "first-success-8"],
    "tasks": ["graded"],
    "seeds": 3,
    "budget": 5000,
}
"""Four and a half minutes on two cores, and twice that with twice the budget."""

FULL: dict[str, Any] = {
    "methods": [name for name, method in METHODS.items() if method.weight_of is None and "/" not in name],
    "tasks": list(WHOLE),
    "seeds": 10,
    "budget": 24_000,
}


def main(prog: str, argv: Sequence[str]) -> None:
    """Raises ValueError for bad input."""
    args = build_parser(prog).parse_args(argv)
    fill_in(args, QUICK, FULL)
    check(args)
    methods = list(dict.fromkeys([REFERENCE, *args.methods]))
    check_folder(args.out, args.tasks, methods)
    with alone(args.out):
        trials = Trials(args.out)
        for cost in args.cost:
            run(args, trials, methods, cost)
    show(args, trials, methods)


def build_parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="four methods, three seeds, one task: a few minutes")
    add(
        "--methods",
        type=names,
        metavar="NAME,...",
        help=f"of {', '.join(FULL['methods'])}; weighed-as-NAME is uniform-8 with another method's weight "
        "(default: all but these)",
    )
    add("--tasks", type=names, metavar="NAME,...", help=f"of {', '.join(TASKS)} (default: {', '.join(WHOLE)})")
    add("--seeds", type=int, metavar="N", help=f"worlds for each method and task (default {FULL['seeds']})")
    add("--budget", type=int, metavar="N", help="rollouts of a trial, or uniform-8's seconds for them (default 24000)")
    add(
        "--cost",
        type=names,
        default=["rollouts"],
        metavar="NAME,...",
        help=f"what methods are tuned for and compared by, of {', '.join(COSTS)} (default rollouts)",
    )
    add("--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="trials side by side (default: cores)")
    add("--out", type=Path, default=Path("runs/arena"), metavar="DIR")
    return parser


def check(args: argparse.Namespace) -> None:
    """Raises ValueError."""
    check_names("--methods", args.methods, METHODS)
    check_names("--tasks", args.tasks, TASKS)
    check_names("--cost", args.cost, COSTS)
    check_weights(args.methods, args.tasks)
    if args.seeds < SEEDS_FOR_INTERVAL:
        raise ValueError(f"--seeds {args.seeds}: an interval needs at least {SEEDS_FOR_INTERVAL}")
    if args.processes < 1:
        raise ValueError(f"--processes {args.processes}: at least 1 is needed. Leave it out for one per core")
    most = max([REFERENCE, *args.methods], key=least_budget)
    if args.budget < least_budget(most):
        raise ValueError(
            f"--budget {args.budget}: {most} may draw so many rollouts in a step that some trials would have fewer "
            f"than three. Give {least_budget(most)} or more, or leave {most} out"
        )


def run(args: argparse.Namespace, trials: Trials, methods: Sequence[str], cost: str) -> None:
    """Tune for this cost and run the trials that count; what the results hold is not repeated."""
    stages = [
        (f"tuning {at + 1} of {len(RUNGS)}", partial(rung_cells, trials, args.tasks, methods, args.budget, cost, at))
        for at in range(len(RUNGS))
    ]
    finals = partial(final_cells, trials, args.tasks, methods, args.seeds, args.budget, cost)
    for what, cells in [*stages, ("comparing", finals)]:
        planned = cells()
        done = len(planned) - len(trials.missing(planned))
        with progress_line() as tell:
            for _ in trials.run(planned, run_cell, args.processes):
                done += 1
                tell(f"{cost}, {what}: {done} of {len(planned)} trials")


def show(args: argparse.Namespace, trials: Trials, methods: Sequence[str]) -> None:
    """What RESULTS.md has of a campaign; the last line is one JSON object: ratios by cost, task and method."""
    summary: dict[str, dict[str, dict[str, float]]] = {}
    for cost in args.cost:
        several = [finals_of(trials, task, methods, args.seeds, args.budget, cost) for task in args.tasks]
        print("\n\n".join(at_equal([{cost: finals} for finals in several], cost)))
        summary[cost] = {
            finals.task: {row.method: round(row.cost.mean, 3) for row in finals.rows.values()} for finals in several
        }
    if args.seeds < SEEDS_FOR_TEST:
        print(f"\np needs --seeds {SEEDS_FOR_TEST} or more")
    print(json.dumps({"cost_to_target": summary}))
