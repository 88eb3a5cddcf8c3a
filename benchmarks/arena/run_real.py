"""Train a language model with each method, with Ray, DeepSpeed and vLLM: one training after the other.

Ends when all are done or time is up; the same call with the same --out goes on, from checkpoints. A new folder is of
SmolLM2-135M with the demo's arithmetic prompts, unless --model says otherwise. `totals-10` and `totals-4`: the same
model, taught to write a working before a short answer that alone is rewarded; luck is 1 in 10, or 4. `math-1.5b`:
published settings on GPUs, at equal seconds; `math-toy` rehearses it on a CPU. --out then has a name of its own.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from benchmarks.arena import published, running_totals
from benchmarks.arena.arguments import check_names, names
from benchmarks.arena.folders import Results, keep_settings, read_settings
from benchmarks.arena.methods import check_on_real_stack
from benchmarks.arena.page import language_model
from benchmarks.arena.real import (
    KINDS,
    MEASURED,
    SEEDS,
    STEP_ROLLOUTS,
    Cell,
    Conditions,
    Flags,
    Kind,
    is_finished,
    plan,
    result_of,
    run_flags,
    spent_until,
)
from benchmarks.arena.real_table import table
from benchmarks.arena.supervised_start import MAX_NEW_TOKENS, prepare_start
from benchmarks.arena.trainings import UnfinishedTrainingError, alone, deadline, run_training
from openrlhf_ada.cli.demo import SMOLLM2, TOY, Recipe, flags_of_any_run, prepare_model, words, write_prompts
from openrlhf_ada.config import presets
from openrlhf_ada.reporting.run_log import CONFIG_FILE, METRICS_FILE
from openrlhf_ada.reporting.run_record import Run, read_run
from openrlhf_ada.trainer.checkpoints import has_checkpoint


@dataclass(frozen=True, slots=True)
class Subject:
    """How what is trained is made. `build`: the model, in a cache folder; `write`: prompts, as `write_prompts`.
    `flags`: beside those of any run."""

    recipe: Recipe
    build: Callable[[Path], Path]
    write: Callable[..., Any]
    flags: Flags

    def flags_of(self, cell: Cell, conditions: Conditions, folder: Path, run_dir: Path) -> Flags:
        """Of a run; makes model and prompts where they are not there. `folder`: of the results."""
        data = folder / "prompts" / f"seed{cell.seed}"
        self.write(data, num_train=conditions.prompts, num_heldout=self.recipe.num_heldout, seed=cell.seed)
        common = flags_of_any_run(self.recipe, self.build(Path(".cache")), data, run_dir)
        return common | self.flags | run_flags(cell.method, conditions)


def _totals(classes: int) -> Subject:
    recipe = replace(SMOLLM2, num_heldout=96, max_new_tokens=MAX_NEW_TOKENS)
    flags = {"reward.remote_url": running_totals.__file__, "ada_positive_threshold": 0.5}
    write = partial(running_totals.write_prompts, classes=classes)
    return Subject(recipe, partial(prepare_start, classes), write, flags)


SUBJECTS = {
    "smollm2": Subject(SMOLLM2, partial(prepare_model, False), partial(write_prompts, False), {}),
    "toy": Subject(TOY, partial(prepare_model, True), partial(write_prompts, True), {}),
    **{f"totals-{classes}": _totals(classes) for classes in running_totals.CLASSES},
}
"""By --model."""

OF_PUBLISHED = ("weights", "data", "gpus", "machine")
"""Flags of math-1.5b."""

STEPS_LEAST = 3
"""A start, a middle and an end."""


def main(prog: str, argv: Sequence[str]) -> None:
    """Raises ValueError for bad input, UnfinishedTrainingError."""
    args = build_parser(prog).parse_args(argv)
    until = deadline(args.minutes)
    conditions = conditions_of(args)
    methods = methods_of(args, conditions.kind)
    named = dict.fromkeys([conditions.kind.reference, *methods])
    cells = plan(conditions, methods, args.seeds)
    if conditions.kind.is_published:
        print(published.size(conditions, len(cells))[1], file=sys.stderr)
    if args.dry_run:
        for name in named:
            print(f"{name}: openrlhf-ada train {shlex.join(words(run_flags(name, conditions)))}")
        return
    flags = {f"flags of {name}": run_flags(name, conditions) for name in named}
    keep_settings(args.out, {"conditions": asdict(conditions)} | flags, ("conditions",))
    with alone(args.out) as lock:
        results = Results(args.out, Cell, MEASURED)
        if conditions.kind.is_published and results.missing(cells):
            published.prepare(conditions)
        Campaign(conditions, cells, results, lock, until).run()
    show(methods, cells, conditions, results)


def build_parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    add = parser.add_argument
    add("--methods", type=names, metavar="NAME,...", help="default: those of the model's plan")
    add("--seeds", type=int, default=SEEDS, metavar="N", help=f"at least 3 for intervals (default {SEEDS})")
    counted = ", ".join(f"{kind.budget:,} {kind.counted} of {name}" for name, kind in KINDS.items())
    add("--budget", type=int, metavar="N", help=f"of a run (default: the folder's, or {counted})")
    add("--model", choices=KINDS, help="what is trained (default: the folder's, or smollm2)")
    add("--rates", type=_rates, metavar="R,...", help="learning rates (default: the folder's, or the model's)")
    add("--dry-run", action="store_true", help="say what would run; of published settings, for how many GPU-hours")
    own = parser.add_argument_group("of --model math-1.5b").add_argument
    own("--weights", metavar="MODEL", help="another model: a folder or a hub id (default Qwen/Qwen2.5-Math-1.5B)")
    own("--data", type=Path, metavar="FILE", help="of prepare-data (default: the recipe's, prepared first)")
    own("--gpus", type=int, metavar="N", help="of this machine (default: those of --machine)")
    own("--machine", metavar="FILE", help="of tests/gpu/first_run.sh, for the size (default: 8 H100)")
    add("--minutes", type=float, metavar="M", help="stop after so many minutes (default: never)")
    add("--out", type=Path, default=Path("runs/arena-real"), metavar="DIR")
    return parser


def _rates(text: str) -> tuple[float, ...]:
    return tuple(map(float, names(text)))


def conditions_of(args: argparse.Namespace) -> Conditions:
    """What the flags say, else the folder, else the defaults. Raises ValueError for what cannot be run."""
    if args.seeds < 1:
        raise ValueError(f"--seeds {args.seeds}: at least 1 is needed, and 3 for an interval")
    kept: dict[str, Any] = read_settings(args.out, ("conditions",)).get("conditions", {})
    model = args.model or kept.get("model", "smollm2")
    kind = KINDS[model]
    if model != "math-1.5b" and (others := [name for name in OF_PUBLISHED if getattr(args, name) is not None]):
        raise ValueError(f"--{others[0]} is for --model math-1.5b alone, and this is {model}. Leave it out")
    budget = kept.get("budget", kind.budget) if args.budget is None else args.budget
    rates = kept.get("rates", kind.rates) if args.rates is None else args.rates
    if kind.is_published:
        return published_conditions(args, model, kept)
    least = STEPS_LEAST * STEP_ROLLOUTS * kind.per_rollout
    if budget < least:
        raise ValueError(
            f"--budget {budget}: a run needs at least {least} {kind.counted} for a start, a middle and an end, and "
            f"many more to learn. Try {kind.budget}"
        )
    if not rates or not all(0 < rate < 1 for rate in rates):
        raise ValueError(
            f"--rates {','.join(map(str, rates))}: a learning rate lies between 0 and 1. Leave it out for "
            f"{','.join(map(str, kind.rates))}"
        )
    return Conditions(model, budget, rates, kind.prompts, kind.answers)


def methods_of(args: argparse.Namespace, kind: Kind) -> Sequence[str]:
    """Raises ValueError for what the model cannot be trained with."""
    methods = kind.methods if args.methods is None else args.methods
    if kind.is_published:
        check_names("--methods", methods, presets.METHODS)
    else:
        check_on_real_stack(methods)
    return methods


def published_conditions(args: argparse.Namespace, model: str, kept: dict[str, Any]) -> Conditions:
    """As `conditions_of`. What `plan` says is kept for the folder: it says when to evaluate."""
    kind = KINDS[model]
    for name in ("budget", "gpus"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise ValueError(f"--{name} {value}: at least 1 is needed")
    rates, methods = kind.rates if args.rates is None else args.rates, methods_of(args, kind)
    if kind.budget:
        budget = args.budget or kept.get("budget", kind.budget)
        return Conditions(model, budget, rates, kind.prompts, kind.answers)
    machine = args.machine or "1.5b"
    gpus = args.gpus or kept.get("gpus") or published.gpus_of(machine)
    weights = args.weights or kept.get("weights", published.WEIGHTS)
    given = args.data or (Path(kept["data"]) if "data" in kept else None)
    data = published.data_of(given, args.out, is_kept=args.data is None)
    named = dict.fromkeys([kind.reference, *methods])
    seconds: dict[str, float] = dict(kept.get("step_seconds", {}))
    answer_s = kept.get("answer_seconds", 0.0)
    if missing := [name for name in named if name not in seconds]:
        rows = published.planned(machine, data, list(dict.fromkeys([kind.reference, *missing])), gpus)
        seconds = published.step_seconds(rows) | seconds
        answer_s = answer_s or published.answer_seconds(rows)
    budget = args.budget or kept.get("budget", round(published.STEPS * seconds[kind.reference]))
    return Conditions(model, budget, rates, kind.prompts, kind.answers, weights, str(data), gpus, seconds, answer_s)


class Campaign:
    """Runs the cells of a folder that are missing."""

    def __init__(
        self, conditions: Conditions, cells: Sequence[Cell], results: Results[Cell], lock: IO[bytes], until: float
    ) -> None:
        self._conditions, self._cells, self._results = conditions, cells, results
        self._lock, self._until = lock, until

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
            self._results.add(cell, result_of(read_run(run_dir), self._conditions.kind))
            shutil.rmtree(_checkpoints(run_dir), ignore_errors=True)

    def _has_spent_budget(self, run_dir: Path) -> bool:
        run = _read(run_dir)
        return run is not None and is_finished(run, self._conditions)

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
        is_published = self._conditions.kind.is_published
        make = published.flags_of_run if is_published else SUBJECTS[self._conditions.model].flags_of
        flags = make(cell, self._conditions, self._results.folder, run_dir) | {"actor.adam.lr": cell.rate}
        flags |= {"train.seed": 1000 + cell.seed, "ckpt.path": checkpoints}
        return flags | ({"ckpt.load_enable": True} if goes_on else {})

    def _progress(self, cell: Cell, run_dir: Path) -> str:
        done, run = len(self._cells) - len(self._results.missing(self._cells)), _read(run_dir)
        drawn = spent_until(run, run.steps[-1]["step"], self._conditions) if run and run.steps else 0
        budget, counted = self._conditions.budget, self._conditions.kind.counted
        return f"{done} of {len(self._cells)} runs; {cell.name}: {drawn:,.0f} of {budget:,} {counted}"


def _checkpoints(run_dir: Path) -> Path:
    return run_dir / "ckpt"


def _read(run_dir: Path) -> Run | None:
    """None before the run has a record."""
    is_there = (run_dir / CONFIG_FILE).exists() and (run_dir / METRICS_FILE).exists()
    return read_run(run_dir) if is_there else None


def show(methods: Sequence[str], cells: Sequence[Cell], conditions: Conditions, results: Results[Cell]) -> None:
    """What RESULTS.md has of such a folder; the last line is one JSON object."""
    rows = table(results, methods, conditions)
    left = [cell.name for cell in results.missing(cells)]
    print("\n\n".join(language_model(results, conditions)))
    if left:
        print(f"partial: {len(cells) - len(left)} of {len(cells)} runs have ended. Left: {', '.join(left)}")
        print("the same call goes on")
    summary = {
        "cost_to_target": {row.method: round(row.cost[conditions.kind.counted].mean, 3) for row in rows if row.cost},
        "final": {row.method: round(row.final, 4) for row in rows},
        "seeds": {row.method: row.seeds for row in rows},
        "runs": len(cells) - len(left),
        "planned": len(cells),
    }
    print(json.dumps(summary))
