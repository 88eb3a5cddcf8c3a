"""Train one small language model in one process and on the real stack, and say whether the two agree.

No GPU may be seen: both sides compute in float32, which OpenRLHF does on a CPU only. The same call with the same --out
goes on.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import torch

from benchmarks.arena.agreement import (
    LEARNER,
    MEASURED,
    METHODS_DEFAULT,
    QUANTITIES,
    REAL,
    Cell,
    Conditions,
    Row,
    learner_trial,
    plan,
    real_result,
    settings_of,
    table,
    train_flags,
)
from benchmarks.arena.arguments import names
from benchmarks.arena.folders import Results, keep_settings
from benchmarks.arena.language_model import rows_of, save_start
from benchmarks.arena.methods import METHODS, check_on_real_stack
from benchmarks.arena.page import agreement_of
from benchmarks.arena.progress_line import progress_line
from benchmarks.arena.real import Flags
from benchmarks.arena.tasks import TASKS, make_world
from benchmarks.arena.trainings import UnfinishedTrainingError, alone, deadline, run_training
from openrlhf_ada.cli.demo import TOY, flags_of_any_run, words
from openrlhf_ada.demo.artifacts import build_directory, write_jsonl
from openrlhf_ada.platforms import without_gpu
from openrlhf_ada.platforms.without_gpu import DTYPE_VARIABLE
from openrlhf_ada.reporting.run_record import read_run

START_VERSION = 1
"""Raised when the same seed gives another starting model."""


def main(prog: str, argv: Sequence[str]) -> None:
    """Raises ValueError for bad input, UnfinishedTrainingError."""
    args = build_parser(prog).parse_args(argv)
    until, conditions = deadline(args.minutes), Conditions(args.task, args.steps)
    check(args.methods, args.seeds, conditions)
    settings = {"conditions": asdict(conditions)} | settings_of(conditions, args.methods)
    keep_settings(args.out, settings, ("conditions",))
    with alone(args.out) as lock:
        results = Results(args.out, Cell, MEASURED)
        Comparison(args, conditions, results, lock, until).run()
    show(args, conditions, results)


def build_parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    add = parser.add_argument
    add("--methods", type=names, default=list(METHODS_DEFAULT), metavar="NAME,...")
    add("--task", choices=TASKS, default="graded")
    add("--seeds", type=int, default=5, metavar="N", help="at least 3 for intervals (default 5)")
    add("--steps", type=int, default=Conditions().steps, metavar="N", help="of a trial, in whole epochs (default 32)")
    add("--minutes", type=float, metavar="M", help="start no training after so many (default: no limit)")
    add("--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="side by side (default: cores)")
    add("--out", type=Path, default=Path("runs/arena-agreement"), metavar="DIR")
    return parser


def check(methods: Sequence[str], seeds: int, conditions: Conditions) -> None:
    """Raises ValueError for what cannot be compared."""
    check_on_real_stack(methods)
    if refill := [name for name in methods if METHODS[name].refill]:
        raise ValueError(
            f"--methods {','.join(refill)}: methods that replace prompts are not compared. Try "
            f"{','.join(METHODS_DEFAULT)}"
        )
    if seeds < 1:
        raise ValueError(f"--seeds {seeds}: at least 1 is needed, and 3 for an interval")
    # Raises for steps that are no whole epochs.
    _ = conditions.episodes
    if not without_gpu.is_needed():
        raise ValueError("both sides compute in float32, which OpenRLHF does on a CPU only. Hide the GPUs")


class Comparison:
    """Runs the trials of a folder that are missing."""

    def __init__(
        self, args: argparse.Namespace, conditions: Conditions, results: Results[Cell], lock: IO[bytes], until: float
    ) -> None:
        self._args, self._conditions, self._results = args, conditions, results
        self._lock, self._until = lock, until
        self._folder: Path = args.out

    def run(self) -> None:
        """Until all have ended, or time is up. Raises UnfinishedTrainingError."""
        # Processes that import transformers, which imports DeepSpeed, inherit what this sets.
        without_gpu.activate()
        with ProcessPoolExecutor(self._args.processes, multiprocessing.get_context("spawn")) as pool:
            self._make_starts(pool)
            self._run_learner(pool)
        missing = self._results.missing(plan(self._args.methods, self._args.seeds, REAL))
        if not missing:
            return
        for cell in missing:
            if time.monotonic() >= self._until:
                return
            self._run_real(cell)

    def _make_starts(self, pool: ProcessPoolExecutor) -> None:
        """Starting models and prompts of all seeds."""
        task, seeds = self._conditions.task, range(self._args.seeds)
        made = [pool.submit(make_start, task, seed, self._start(seed), self._data(seed)) for seed in seeds]
        with progress_line() as tell:
            for number, future in enumerate(as_completed(made), start=1):
                future.result()
                tell(f"starting models: {number} of {len(made)}")

    def _run_learner(self, pool: ProcessPoolExecutor) -> None:
        cells = plan(self._args.methods, self._args.seeds, LEARNER)
        missing = self._results.missing(cells)
        running = {
            pool.submit(learner_trial, cell, self._conditions, self._start(cell.seed)): cell for cell in missing
        }
        with progress_line() as tell:
            for number, future in enumerate(as_completed(running), start=len(cells) - len(missing) + 1):
                self._results.add(running[future], future.result())
                tell(f"in one process: {number} of {len(cells)} trials")

    def _run_real(self, cell: Cell) -> None:
        """One training from its start to its end, and the accuracy of the weights that it has saved."""
        run_dir = self._folder / "runs" / cell.name
        shutil.rmtree(run_dir, ignore_errors=True)
        flags, env = words(self._flags(cell, run_dir)), {DTYPE_VARIABLE: "float32"}
        status = run_training(flags, run_dir, self._lock, lambda: self._progress(cell, run_dir), env=env)
        if status:
            raise UnfinishedTrainingError(
                f"the training of {cell.name} ended with status {status}. See {run_dir}; the same call tries again"
            )
        checkpoints = [self._start(cell.seed), *(self._export(run_dir, step) for step in self._measured)]
        self._results.add(cell, real_result(cell, self._conditions, read_run(run_dir), checkpoints))
        shutil.rmtree(run_dir / "ckpt")

    def _flags(self, cell: Cell, run_dir: Path) -> Flags:
        paths = flags_of_any_run(TOY, self._start(cell.seed), self._data(cell.seed), run_dir)
        ours = train_flags(METHODS[cell.method], self._conditions)
        return paths | ours | {"train.seed": 1000 + cell.seed, "ckpt.path": run_dir / "ckpt"}

    @property
    def _measured(self) -> range:
        """Steps after which the weights are saved."""
        between = self._conditions.steps_between
        return range(between, self._conditions.steps + 1, between)

    def _export(self, run_dir: Path, step: int) -> Path:
        return run_dir / "ckpt" / f"global_step{step}_hf"

    def _progress(self, cell: Cell, run_dir: Path) -> str:
        cells = plan(self._args.methods, self._args.seeds, REAL)
        done = len(cells) - len(self._results.missing(cells))
        step = max((step for step in self._measured if self._export(run_dir, step).exists()), default=0)
        return f"on the real stack: {done} of {len(cells)}; {cell.name}: step {step} of {self._conditions.steps}"

    def _start(self, seed: int) -> Path:
        return self._folder / "starts" / f"seed{seed}"

    def _data(self, seed: int) -> Path:
        return self._folder / "prompts" / f"seed{seed}"


def make_start(task: str, seed: int, model: Path, data: Path) -> None:
    """Write a world's starting model and prompts, unless they are there; in a process of its own."""
    torch.set_num_threads(1)
    world = make_world(TASKS[task], seed)
    recipe = {"task": task, "seed": seed, "version": START_VERSION}
    build_directory(model, recipe, lambda folder: save_start(world, seed, folder))
    for name, prompts in (("train", world.train), ("heldout", world.held_out)):
        if not (data / f"{name}.jsonl").exists():
            write_jsonl(data / f"{name}.jsonl", rows_of(prompts))


def show(args: argparse.Namespace, conditions: Conditions, results: Results[Cell]) -> None:
    """What RESULTS.md has of such a folder; the last line is one JSON object."""
    rows = table(results.by_cell, args.methods)
    print("\n\n".join(agreement_of(conditions, results.by_cell)))
    left = results.missing(plan(args.methods, args.seeds, REAL))
    if left:
        print(f"partial: {len(left)} trainings are left. The same call goes on")
    print(json.dumps(summary(rows, left=len(left))))


def summary(rows: Sequence[Row], left: int) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        mean, low, high = (row.difference.mean, row.difference.low, row.difference.high)
        found.setdefault(row.method, {})[row.quantity.name] = {
            "difference": round(mean, 5),
            "ci95": None if low is None or high is None else [round(low, 5), round(high, 5)],
            "agrees": row.agrees,
        }
    return {"agreement": found, "seeds": {row.method: row.seeds for row in rows[:: len(QUANTITIES)]}, "left": left}
