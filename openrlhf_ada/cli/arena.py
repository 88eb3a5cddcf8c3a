"""Compare methods at equal cost on tasks that a small model learns in seconds. Can be resumed."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from openrlhf_ada.arena.campaign import Results, final_cells, run_cells, tuning_cells
from openrlhf_ada.arena.methods import METHODS
from openrlhf_ada.arena.tables import COSTS, REFERENCE, Row, table, target_of
from openrlhf_ada.arena.tasks import TASKS

PROG = "openrlhf-ada arena"

QUICK_METHODS, QUICK_TASKS, QUICK_SEEDS, QUICK_BUDGET = (
    ("uniform-8", "balance", "est", "choose-4-share"),
    ("graded",),
    3,
    24_000,
)


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit status (2: bad input)."""
    args = build_parser().parse_args(argv)
    if args.quick:
        args.methods, args.tasks, args.seeds, args.budget = QUICK_METHODS, QUICK_TASKS, QUICK_SEEDS, QUICK_BUDGET
    try:
        _check(args)
        results = Results(args.out / "trials.jsonl")
        methods = list(dict.fromkeys([REFERENCE, *args.methods]))
        for what, cells in (
            ("tuning", lambda: tuning_cells(args.tasks, methods, args.budget)),
            ("comparing", lambda: final_cells(results, args.tasks, methods, args.seeds, args.budget)),
        ):
            planned = cells()
            done = sum(cell in results.by_cell for cell in planned)
            for _ in run_cells(planned, results, args.processes):
                done += 1
                print(f"\r{what}: {done} of {len(planned)} trials", end="", file=sys.stderr, flush=True)
            print(file=sys.stderr)
    except ValueError as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\n{PROG}: interrupted; repeat the call with --out {args.out} to resume", file=sys.stderr)
        return 130
    _show(args, results, methods)
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROG, description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="four methods, three seeds, one task: a few minutes")
    add("--methods", type=_names, default=list(METHODS), metavar="NAME,...", help=f"of {', '.join(METHODS)}")
    add("--tasks", type=_names, default=list(TASKS), metavar="NAME,...", help=f"of {', '.join(TASKS)}")
    add("--seeds", type=int, default=10, metavar="N", help="worlds for each method and task, at least 3 (default 10)")
    add("--budget", type=int, default=64_000, metavar="N", help="rollouts of a trial (default 64000)")
    add("--cost", choices=COSTS, default="rollouts", help="what the target is to be reached with (default rollouts)")
    add("--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="trials side by side (default: cores)")
    add("--out", type=Path, default=Path("runs/arena"), metavar="DIR", help="results; an existing folder is resumed")
    return parser


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _check(args: argparse.Namespace) -> None:
    """Raises ValueError."""
    for flag, names, known in (("--methods", args.methods, METHODS), ("--tasks", args.tasks, TASKS)):
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ValueError(f"{flag} {','.join(unknown)}: there is no such name. Known are {', '.join(known)}")
    if args.seeds < 3:
        raise ValueError(f"--seeds {args.seeds}: an interval needs at least 3")
    if args.budget < 1000:
        raise ValueError(f"--budget {args.budget}: nothing is learned of so few rollouts. Try 24000")


def _show(args: argparse.Namespace, results: Results, methods: Sequence[str]) -> None:
    summary: dict[str, dict[str, float]] = {}
    for task in args.tasks:
        rows = table(results, task, methods, args.seeds, args.budget, args.cost)
        print(f"\n{task}: {TASKS[task].summary}. Target {target_of(results, task, args.seeds, args.budget):.1%}")
        print(f"{'method':22}{'rate':>8}{'prompts':>9}  {args.cost} to target, {REFERENCE} = 1  missed   final")
        for row in rows:
            print(_line(row))
        summary[task] = {row.method: round(row.cost, 3) for row in rows}
    only = next(iter(summary.values())) if len(summary) == 1 else summary
    print(json.dumps({"cost_to_target": only}))


def _line(row: Row) -> str:
    return (
        f"{row.method:22}{row.rate:8.0e}{row.prompts:9}  {row.cost:8.2f} [{row.low:.2f}, {row.high:.2f}]"
        f"{row.missed:18}   {row.final:6.1%}"
    )
