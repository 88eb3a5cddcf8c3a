"""Compare methods at equal cost on tasks that a small model learns in seconds. Can be resumed."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from openrlhf_ada.arena.campaign import (
    RUNGS,
    TRIALS,
    Results,
    check_folder,
    final_cells,
    least_budget,
    run_cells,
    rung_cells,
)
from openrlhf_ada.arena.costs import COSTS
from openrlhf_ada.arena.methods import METHODS
from openrlhf_ada.arena.names import check_names
from openrlhf_ada.arena.sign_flips import SEEDS_FOR_TEST
from openrlhf_ada.arena.tables import REFERENCE, Row, finals_of, ranks, table
from openrlhf_ada.arena.tasks import TASKS
from openrlhf_ada.arena.weights import check_weights
from openrlhf_ada.cli import arena_agreement, arena_real
from openrlhf_ada.cli.progress_line import progress_line

PROG = "openrlhf-ada arena"

QUICK: dict[str, Any] = {
    "methods": ["uniform-8", "balance", "est", "first-right"],
    "tasks": ["graded"],
    "seeds": 3,
    "budget": 5000,
}
"""Four and a half minutes on two cores, and twice that with twice the budget."""


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit status (2: bad input)."""
    args = build_parser().parse_args(argv)
    if args.agreement:
        return arena_agreement.main(build_parser(), argv)
    if args.real:
        return arena_real.main(build_parser(), argv)
    try:
        if args.quick:
            _make_quick(argv, args)
        arena_real.check_absent(args)
        arena_agreement.check_absent(args)
        _check(args)
        methods = list(dict.fromkeys([REFERENCE, *args.methods]))
        check_folder(args.out, args.tasks, methods)
        with arena_real.alone(args.out), arena_real.sigterm_as_interrupt():
            results = Results(args.out / TRIALS)
            for cost in args.cost:
                _run(args, results, methods, cost)
    except ValueError as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\n{PROG}: interrupted; repeat the call with --out {args.out} to resume", file=sys.stderr)
        return 130
    _show(args, results, methods)
    return 0


def _run(args: argparse.Namespace, results: Results, methods: Sequence[str], cost: str) -> None:
    """Tune for this cost and run the trials that count; what the results hold is not repeated."""
    stages = [
        (
            f"tuning {rung + 1} of {len(RUNGS)}",
            partial(rung_cells, results, args.tasks, methods, args.budget, cost, rung),
        )
        for rung in range(len(RUNGS))
    ]
    finals = partial(final_cells, results, args.tasks, methods, args.seeds, args.budget, cost)
    for what, cells in [*stages, ("comparing", finals)]:
        planned = cells()
        done = sum(cell in results.by_cell for cell in planned)
        with progress_line() as show:
            for _ in run_cells(planned, results, args.processes):
                done += 1
                show(f"{cost}, {what}: {done} of {len(planned)} trials")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROG, description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="four methods, three seeds, one task: a few minutes")
    add(
        "--methods",
        type=_names,
        default=[name for name, method in METHODS.items() if method.weight_of is None],
        metavar="NAME,...",
        help=f"of {', '.join(METHODS)} (default: all but weighed-as-*)",
    )
    add("--tasks", type=_names, default=list(TASKS), metavar="NAME,...", help=f"of {', '.join(TASKS)} (default: all)")
    add("--seeds", type=int, default=10, metavar="N", help="worlds for each method and task, at least 3 (default 10)")
    add(
        "--budget",
        type=int,
        default=24_000,
        metavar="N",
        help="rollouts of a trial, or the seconds in which uniform-8 draws them (default 24000)",
    )
    add(
        "--cost",
        type=_names,
        default=["rollouts"],
        metavar="NAME,...",
        help=f"what methods are tuned for and compared by, of {', '.join(COSTS)} (default rollouts)",
    )
    add("--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="trials side by side (default: cores)")
    add("--out", type=Path, default=Path("runs/arena"), metavar="DIR", help="results; an existing folder is resumed")
    arena_real.add_flags(parser)
    arena_agreement.add_flags(parser)
    return parser


def _make_quick(argv: Sequence[str], args: argparse.Namespace) -> None:
    """Raises ValueError for flags that --quick sets, whatever their value."""
    parser = build_parser()
    parser.set_defaults(**dict.fromkeys(QUICK))
    given = parser.parse_args(argv)
    for name in QUICK:
        if getattr(given, name) is not None:
            raise ValueError(f"--{name} does not go with --quick, which sets it. Leave one of the two out")
    vars(args).update(QUICK)


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(name for name in text.split(",") if name))


def _check(args: argparse.Namespace) -> None:
    """Raises ValueError."""
    for flag, names, known in (
        ("--methods", args.methods, METHODS),
        ("--tasks", args.tasks, TASKS),
        ("--cost", args.cost, COSTS),
    ):
        check_names(flag, names, known)
    check_weights(args.methods, args.tasks)
    if args.seeds < 3:
        raise ValueError(f"--seeds {args.seeds}: an interval needs at least 3")
    if args.budget < 1000:
        raise ValueError(f"--budget {args.budget}: nothing is learned of so few rollouts. Try 24000")
    if args.processes < 1:
        raise ValueError(f"--processes {args.processes}: at least 1 is needed. Leave it out for one per core")
    most = max([REFERENCE, *args.methods], key=least_budget)
    if args.budget < least_budget(most):
        raise ValueError(
            f"--budget {args.budget}: {most} may draw so many rollouts in a step that some trials would have fewer "
            f"than three. Give {least_budget(most)} or more, or leave {most} out"
        )


def _show(args: argparse.Namespace, results: Results, methods: Sequence[str]) -> None:
    summary: dict[str, Any] = {}
    for cost in args.cost:
        by_task = [finals_of(results, task, methods, args.seeds, args.budget, cost) for task in args.tasks]
        ratios: dict[str, dict[str, float]] = {}
        for finals in by_task:
            rows = table(finals)
            print(f"\n{finals.task}: {TASKS[finals.task].summary}. Target {finals.target:.1%}")
            print(f"{'method':22}{'rate':>8}{'prompts':>9}  {f'{cost}, {REFERENCE} = 1':25}p  missed    area   final")
            for row in rows:
                print(_line(row))
            ratios[finals.task] = {row.method: round(row.cost, 3) for row in rows}
        if len(by_task) > 1:
            print(f"\nall tasks by {cost}: mean rank, geometric mean of the ratios, p")
            for rank in ranks(by_task):
                print(f"{rank.method:22}{rank.rank:8.1f}{rank.cost:9.2f}{_p(rank.p):>9}")
        summary[cost] = next(iter(ratios.values())) if len(ratios) == 1 else ratios
    if args.seeds < SEEDS_FOR_TEST:
        print(f"\np needs --seeds {SEEDS_FOR_TEST} or more")
    only = next(iter(summary.values())) if len(summary) == 1 else summary
    print(json.dumps({"cost_to_target": only}))


def _line(row: Row) -> str:
    return (
        f"{row.method:22}{row.rate:8.0e}{row.prompts:9}  {row.cost:8.2f} [{row.low:.2f}, {row.high:.2f}]"
        f"{_p(row.p):>12}{row.missed:8}  {row.area:6.1%}  {row.final:6.1%}"
    )


def _p(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
