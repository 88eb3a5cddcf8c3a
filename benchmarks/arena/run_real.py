"""Train a language model with each method, with Ray, DeepSpeed and vLLM: one training after the other.

Ends when all are done or time is up; the same call with the same --out goes on, from checkpoints. A new folder is of
SmolLM2-135M with the demo's arithmetic prompts, unless --model says otherwise.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from benchmarks.arena.folders import Results, keep_settings, read_settings
from benchmarks.arena.methods import check_on_real_stack, names
from benchmarks.arena.page import language_model
from benchmarks.arena.real import (
    MEASURED,
    METHODS_DEFAULT,
    REFERENCE,
    STEP_ROLLOUTS,
    Cell,
    Conditions,
    Flags,
    is_finished,
    plan,
    result_of,
    rollouts_until,
    run_flags,
    table,
)
from benchmarks.arena.trainings import UnfinishedTrainingError, alone, deadline, run_training
from openrlhf_ada.cli.demo import SMOLLM2, TOY, Recipe, flags_of_any_run, prepare_model, words, write_prompts
from openrlhf_ada.reporting.run_log import CONFIG_FILE, METRICS_FILE
from openrlhf_ada.reporting.run_record import Run, read_run
from openrlhf_ada.trainer.checkpoints import has_checkpoint

RECIPES: dict[str, Recipe] = {"smollm2": replace(SMOLLM2, eval_samples=2), "toy": TOY}
MOST_PROMPTS = {"smollm2": 1024, "toy": 256}
"""Training prompts that the tasks have next to the held-out ones."""
"""The demo evaluates twice, these runs nine times: with 4 answers a prompt that would take as long as 18 steps."""

BUDGET = 6144

LEAST_BUDGET = 3 * STEP_ROLLOUTS
"""A start, a middle and an end."""


def main(prog: str, argv: Sequence[str]) -> None:
    """Raises ValueError for bad input, UnfinishedTrainingError."""
    args = build_parser(prog).parse_args(argv)
    until = deadline(args.minutes)
    check_on_real_stack(args.methods)
    conditions = conditions_of(args)
    flags = {f"flags of {name}": run_flags(name, conditions) for name in dict.fromkeys([REFERENCE, *args.methods])}
    keep_settings(args.out, {"conditions": asdict(conditions)} | flags, ("conditions",))
    with alone(args.out) as lock:
        results = Results(args.out, Cell, MEASURED)
        Campaign(conditions, plan(args.methods, args.seeds), results, lock, until).run()
    show(args, conditions, results)


def build_parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    add = parser.add_argument
    add("--methods", type=names, default=list(METHODS_DEFAULT), metavar="NAME,...")
    add("--seeds", type=int, default=3, metavar="N", help="at least 3 for intervals (default 3)")
    add("--budget", type=int, metavar="N", help=f"rollouts of a run (default: the folder's, or {BUDGET})")
    add("--model", choices=RECIPES, help="what is trained (default: the folder's, or smollm2)")
    add("--rate", type=float, metavar="R", help="learning rate, constant (default: the folder's, or the demo's)")
    add("--minutes", type=float, metavar="M", help="stop after so many minutes (default: never)")
    add("--out", type=Path, default=Path("runs/arena-real"), metavar="DIR")
    return parser


def conditions_of(args: argparse.Namespace) -> Conditions:
    """What the flags say, else the folder, else the defaults. Raises ValueError for what cannot be run."""
    if args.seeds < 1:
        raise ValueError(f"--seeds {args.seeds}: at least 1 is needed, and 3 for an interval")
    kept: dict[str, Any] = read_settings(args.out, ("conditions",)).get("conditions", {})
    model = args.model or kept.get("model", "smollm2")
    recipe = RECIPES[model]
    budget = kept.get("budget", BUDGET) if args.budget is None else args.budget
    rate = kept.get("rate", recipe.learning_rate) if args.rate is None else args.rate
    if budget < LEAST_BUDGET:
        raise ValueError(
            f"--budget {budget}: a run needs at least {LEAST_BUDGET} rollouts for a start, a middle and an end, and "
            f"several thousand to learn. Try {BUDGET}"
        )
    if not 0 < rate < 1:
        raise ValueError(f"--rate {rate:g}: a learning rate lies between 0 and 1. Leave it out for that of the demo")
    return Conditions(model, budget, rate, MOST_PROMPTS[model], recipe.eval_samples)


class Campaign:
    """Runs the cells of a folder that are missing."""

    def __init__(
        self, conditions: Conditions, cells: Sequence[Cell], results: Results[Cell], lock: IO[bytes], until: float
    ) -> None:
        self._conditions, self._cells, self._results = conditions, cells, results
        self._lock, self._until = lock, until
        self._toy = conditions.model == "toy"

    def run(self) -> None:
        """Until all cells have ended, or time is up. Raises UnfinishedTrainingError."""
        missing = self._results.missing(self._cells)
        if not missing:
            return
        for cell in missing:
            run_dir = self._results.folder / "runs" / cell.name
            while not self._has_spent_budget(run_dir):
                if time.monotonic() >= self._until:
                    return
                self._train(cell, run_dir)
            self._results.add(cell, result_of(read_run(run_dir)))
            shutil.rmtree(_checkpoints(run_dir), ignore_errors=True)

    def _has_spent_budget(self, run_dir: Path) -> bool:
        run = _read(run_dir)
        return run is not None and is_finished(run, self._conditions.budget)

    def _is_over(self, run_dir: Path) -> bool:
        return time.monotonic() >= self._until or self._has_spent_budget(run_dir)

    def _train(self, cell: Cell, run_dir: Path) -> None:
        """Until the budget is spent, or time is up."""
        flags, is_over = self._flags(cell, run_dir), partial(self._is_over, run_dir)
        status = run_training(words(flags), run_dir, self._lock, lambda: self._progress(cell, run_dir), is_over)
        if status is not None and not is_over():
            raise UnfinishedTrainingError(
                f"the training of {cell.name} ended with status {status} before its budget was spent. See {run_dir}; "
                "the same call tries again"
            )

    def _flags(self, cell: Cell, run_dir: Path) -> Flags:
        """Goes on from a checkpoint; without one, what there is of the run is removed."""
        checkpoints = _checkpoints(run_dir)
        goes_on = has_checkpoint(checkpoints)
        if not goes_on:
            shutil.rmtree(run_dir, ignore_errors=True)
        recipe, data = RECIPES[self._conditions.model], self._results.folder / "prompts" / f"seed{cell.seed}"
        sizes = {"num_train": self._conditions.prompts, "num_heldout": recipe.num_heldout}
        write_prompts(self._toy, data, **sizes, seed=cell.seed)
        paths = flags_of_any_run(recipe, prepare_model(self._toy, Path(".cache")), data, run_dir)
        flags = paths | run_flags(cell.method, self._conditions) | {"train.seed": 1000 + cell.seed}
        return flags | {"ckpt.path": checkpoints} | ({"ckpt.load_enable": True} if goes_on else {})

    def _progress(self, cell: Cell, run_dir: Path) -> str:
        done, run = len(self._cells) - len(self._results.missing(self._cells)), _read(run_dir)
        drawn = rollouts_until(run, run.steps[-1]["step"]) if run and run.steps else 0
        budget = self._conditions.budget
        return f"{done} of {len(self._cells)} runs; {cell.name}: {drawn:,} of {budget:,} rollouts"


def _checkpoints(run_dir: Path) -> Path:
    return run_dir / "ckpt"


def _read(run_dir: Path) -> Run | None:
    """None before the run has a record."""
    is_there = (run_dir / CONFIG_FILE).exists() and (run_dir / METRICS_FILE).exists()
    return read_run(run_dir) if is_there else None


def show(args: argparse.Namespace, conditions: Conditions, results: Results[Cell]) -> None:
    """What RESULTS.md has of such a folder; the last line is one JSON object."""
    cells = plan(args.methods, args.seeds)
    rows = table(results, args.methods, conditions.budget)
    left = [cell.name for cell in results.missing(cells)]
    print("\n\n".join(language_model(results, conditions)))
    if left:
        print(f"partial: {len(cells) - len(left)} of {len(cells)} runs have ended. Left: {', '.join(left)}")
        print("the same call goes on")
    summary = {
        "cost_to_target": {row.method: round(row.cost["rollouts"].mean, 3) for row in rows if row.cost},
        "final": {row.method: round(row.final, 4) for row in rows},
        "seeds": {row.method: row.seeds for row in rows},
        "runs": len(cells) - len(left),
        "planned": len(cells),
    }
    print(json.dumps(summary))
