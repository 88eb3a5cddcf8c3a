"""`openrlhf-ada arena --agreement`: the same trials in one process and on the real stack, side by side."""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import IO, Any

from openrlhf_ada.arena.agreement import (
    LEARNER,
    METHODS_DEFAULT,
    REAL,
    Cell,
    Conditions,
    Results,
    check,
    learner_trial,
    pack,
    plan,
    real_result,
    train_flags,
)
from openrlhf_ada.arena.agreement_tables import Row, contrast, table
from openrlhf_ada.arena.methods import METHODS
from openrlhf_ada.arena.real import Flags, check_minutes
from openrlhf_ada.arena.real_tables import SEEDS_FOR_INTERVAL
from openrlhf_ada.arena.tasks import TASKS, make_world
from openrlhf_ada.cli.arena_page import AGREEMENT
from openrlhf_ada.cli.arena_real import (
    EXIT_FAILED,
    LOG,
    POLL_S,
    UnfinishedTrainingError,
    alone,
    end_training,
    sigterm_as_interrupt,
)
from openrlhf_ada.cli.demo import TOY, flags_of_any_run, words
from openrlhf_ada.cli.progress_line import progress_line
from openrlhf_ada.config.visible import error_text
from openrlhf_ada.demo.artifacts import build_directory, write_jsonl
from openrlhf_ada.platforms import without_gpu
from openrlhf_ada.platforms.without_gpu import DTYPE_VARIABLE
from openrlhf_ada.reporting.run_record import read_run

PROG = "openrlhf-ada arena --agreement"
DEFAULTS: dict[str, Any] = {
    "methods": list(METHODS_DEFAULT),
    "tasks": ["graded"],
    "seeds": 5,
    "out": Path("runs/arena-agreement"),
}
FOREIGN = ("quick", "real", "budget", "cost", "model", "rate", "resume")

START_VERSION = 1
"""Raised when the same seed gives another starting model."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that only --agreement has."""
    group = parser.add_argument_group(
        "with --agreement",
        f"Defaults: --methods {','.join(METHODS_DEFAULT)} --tasks {DEFAULTS['tasks'][0]} --seeds {DEFAULTS['seeds']} "
        f"--out {DEFAULTS['out']}. --minutes: no training is started after so many.",
    )
    add = group.add_argument
    add(
        "--agreement",
        action="store_true",
        help="train one small language model in one process and on the real stack, and compare the two",
    )
    add("--steps", type=int, metavar="N", help=f"training steps of a trial (default {Conditions().steps})")


def check_absent(args: argparse.Namespace) -> None:
    """Raises ValueError for a flag that needs --agreement."""
    if args.steps is not None:
        raise ValueError("--steps goes with --agreement only. Add --agreement, or leave it out")


def main(parser: argparse.ArgumentParser, argv: Sequence[str]) -> int:
    """Entry point; returns the exit status (1: a training failed, 2: bad input, 130: interrupted)."""
    foreign = {name: parser.get_default(name) for name in FOREIGN}
    parser.set_defaults(**DEFAULTS)
    args = parser.parse_args(argv)
    try:
        results = _results(args, foreign)
        with alone(args.out) as lock, sigterm_as_interrupt():
            Comparison(args, results, lock).run()
    except (ValueError, OSError) as error:
        print(f"{PROG}: error: {error_text(error)}", file=sys.stderr)
        return 2
    except UnfinishedTrainingError as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print(f"\n{PROG}: interrupted; the same call goes on", file=sys.stderr)
        return 130
    _show(args, results)
    return 0


def _results(args: argparse.Namespace, foreign: dict[str, Any]) -> Results:
    """Of a new folder or an existing one; writes its settings. Raises ValueError."""
    for name, default in foreign.items():
        if getattr(args, name) != default:
            raise ValueError(f"--{name} does not go with --agreement. Leave it out")
    if len(args.tasks) != 1 or args.tasks[0] not in TASKS:
        raise ValueError(f"--tasks {','.join(args.tasks)}: expected one of {', '.join(TASKS)}")
    check_minutes(args.minutes)
    conditions = Conditions(args.tasks[0], **({} if args.steps is None else {"steps": args.steps}))
    check(args.methods, args.seeds, conditions)
    if not without_gpu.is_needed():
        raise ValueError(
            "--agreement: both sides compute in float32, which OpenRLHF does on a CPU only. Hide the GPUs"
        )
    results = Results(args.out, conditions, args.methods)
    results.start()
    return results


class Comparison:
    """Runs the trials of a folder that are missing."""

    def __init__(self, args: argparse.Namespace, results: Results, lock: IO[bytes]) -> None:
        self._args, self._results, self._lock = args, results, lock
        self._folder: Path = args.out
        self._conditions = results.conditions
        self._deadline = math.inf if args.minutes is None else time.monotonic() + 60.0 * args.minutes

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
            if time.monotonic() >= self._deadline:
                return
            self._run_real(cell)

    def _make_starts(self, pool: ProcessPoolExecutor) -> None:
        """Starting models and prompts of all seeds."""
        task, seeds = self._conditions.task, range(self._args.seeds)
        made = [pool.submit(make_start, task, seed, self._start(seed), self._data(seed)) for seed in seeds]
        with progress_line() as show:
            for number, future in enumerate(as_completed(made), start=1):
                future.result()
                show(f"starting models: {number} of {len(made)}")

    def _run_learner(self, pool: ProcessPoolExecutor) -> None:
        cells = plan(self._args.methods, self._args.seeds, LEARNER)
        missing = self._results.missing(cells)
        running = [pool.submit(learner_trial, cell, self._conditions, self._start(cell.seed)) for cell in missing]
        with progress_line() as show:
            for number, future in enumerate(as_completed(running), start=len(cells) - len(missing) + 1):
                self._results.add(future.result())
                show(f"in one process: {number} of {len(cells)} trials")

    def _run_real(self, cell: Cell) -> None:
        """One training from its start to its end, and the accuracy of the weights that it has saved."""
        run_dir = self._folder / "runs" / cell.name
        shutil.rmtree(run_dir, ignore_errors=True)
        run_dir.mkdir(parents=True)
        command = [sys.executable, "-m", "openrlhf_ada.cli.main", "train", *words(self._flags(cell, run_dir))]
        with (run_dir / LOG).open("wb") as log:
            # In a session of its own: Ctrl-C is for this process, which then ends the training.
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[self._lock.fileno()],
                env=os.environ | {DTYPE_VARIABLE: "float32"},
            )
        try:
            with progress_line() as show:
                while process.poll() is None:
                    show(f"on the real stack: {self._progress(cell, run_dir)}")
                    time.sleep(POLL_S)
        finally:
            end_training(process)
        if process.returncode:
            raise UnfinishedTrainingError(
                f"the training of {cell.name} ended with status {process.returncode}. See {run_dir / LOG}; the same "
                f"call tries again"
            )
        checkpoints = [self._start(cell.seed), *(self._export(run_dir, step) for step in self._measured)]
        self._results.add(real_result(cell, self._conditions, read_run(run_dir), checkpoints))
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
        return f"{done} of {len(cells)} trials; {cell.name}: step {step} of {self._conditions.steps}"

    def _start(self, seed: int) -> Path:
        return self._folder / "starts" / f"seed{seed}"

    def _data(self, seed: int) -> Path:
        return self._folder / "prompts" / f"seed{seed}"


def make_start(task: str, seed: int, model: Path, data: Path) -> None:
    """Write a world's starting model and prompts, unless they are there; in a process of its own."""
    import torch

    from openrlhf_ada.arena.language_model import rows_of, save_start

    torch.set_num_threads(1)
    world = make_world(TASKS[task], seed)
    recipe = {"task": task, "seed": seed, "version": START_VERSION}
    build_directory(model, recipe, lambda folder: save_start(world, seed, folder))
    for name, prompts in (("train", world.train), ("heldout", world.held_out)):
        if not (data / f"{name}.jsonl").exists():
            write_jsonl(data / f"{name}.jsonl", rows_of(prompts))


# -- what is shown ----------------------------------------------------------------------------------------------------


def _show(args: argparse.Namespace, results: Results) -> None:
    conditions = results.conditions
    rows = table(results.by_cell, args.methods)
    print(
        f"task {conditions.task}, {conditions.steps} steps of {conditions.prompts} prompts, learning rate "
        f"{conditions.rate:g}"
    )
    print(f"{'method':14}{'quantity':16}{'seeds':>6}{'one process':>13}{'real stack':>12}  real - one process (95 %)")
    for row in rows:
        print(_line(row))
    for stack, name in ((LEARNER, "in one process"), (REAL, "on the real stack")):
        gain = contrast(results.by_cell, args.methods, stack) if len(args.methods) > 1 else None
        if gain:
            print(f"mean accuracy of {args.methods[1]} - {args.methods[0]} {name}: {gain.text('+.2%')}")
    if any(row.seeds < SEEDS_FOR_INTERVAL for row in rows):
        print(f"no intervals with fewer than {SEEDS_FOR_INTERVAL} seeds")
    left = results.missing(plan(args.methods, args.seeds, REAL))
    if left:
        print(f"partial: {len(left)} trainings are left. The same call goes on")
    pack(results, results.folder / AGREEMENT)
    print(json.dumps(_summary(rows, left=len(left))))


def _line(row: Row) -> str:
    form = ",.0f" if row.quantity.relative else ".2%"
    means = f"{format(row.learner, form):>13}{format(row.real, form):>12}"
    return (
        f"{row.method:14}{row.quantity.name:16}{row.seeds:6}{means}  "
        f"{row.difference.text('+.2%'):28}{row.verdict} (margin {row.quantity.margin:.0%})"
    )


def _summary(rows: Sequence[Row], left: int) -> dict[str, Any]:
    agreement: dict[str, dict[str, Any]] = {}
    for row in rows:
        found = row.difference
        agreement.setdefault(row.method, {})[row.quantity.name] = {
            "difference": round(found.mean, 5),
            "ci95": None if found.low is None or found.high is None else [round(found.low, 5), round(found.high, 5)],
            "agrees": row.agrees,
        }
    return {"agreement": agreement, "seeds": {row.method: row.seeds for row in rows}, "left": left}
