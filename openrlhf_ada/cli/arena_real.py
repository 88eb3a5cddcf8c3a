"""`openrlhf-ada arena --real`: one training after the other on the real stack, until all are done or time is up."""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from openrlhf_ada.arena.folders import SETTINGS, check_new
from openrlhf_ada.arena.real import (
    METHODS_DEFAULT,
    REFERENCE,
    Cell,
    Conditions,
    Flags,
    Results,
    cell_flags,
    check,
    is_finished,
    plan,
    read_conditions,
    rollouts_until,
)
from openrlhf_ada.arena.real_tables import COSTS, SEEDS_FOR_INTERVAL, Row, table, target_of
from openrlhf_ada.cli.demo import SMOLLM2, TOY, Recipe, flags_of_any_run, prepare_model, words, write_prompts
from openrlhf_ada.cli.progress_line import progress_line
from openrlhf_ada.config.visible import error_text
from openrlhf_ada.platforms.processes import kill_rest
from openrlhf_ada.reporting.run_log import CONFIG_FILE, METRICS_FILE
from openrlhf_ada.reporting.run_record import Run, read_run
from openrlhf_ada.trainer.checkpoints import has_checkpoint

PROG = "openrlhf-ada arena --real"
RECIPES: dict[str, Recipe] = {"smollm2": replace(SMOLLM2, eval_samples=2), "toy": TOY}
"""The demo evaluates twice, these runs nine times: with 4 answers a prompt that would take as long as 18 steps."""

DEFAULTS: dict[str, Any] = {
    "methods": list(METHODS_DEFAULT),
    "seeds": 3,
    "budget": 6144,
    "out": Path("runs/arena-real"),
}
ONLY_REAL = ("model", "rate", "minutes", "resume")
NOT_REAL = ("quick", "tasks", "cost", "processes", "steps")
EXIT_FAILED = 1

LOG = "train.log"
POLL_S = 1.0

END_S = 120.0
"""Seconds in which a run that was told to end has ended its Ray."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that only --real has."""
    group = parser.add_argument_group(
        "with --real",
        f"Defaults: --methods {','.join(METHODS_DEFAULT)} --seeds {DEFAULTS['seeds']} --budget {DEFAULTS['budget']} "
        f"--out {DEFAULTS['out']}.",
    )
    add = group.add_argument
    add("--real", action="store_true", help="train a language model with Ray, DeepSpeed and vLLM instead")
    add("--model", choices=tuple(RECIPES), help="what is trained (default smollm2)")
    add("--rate", type=float, metavar="R", help="learning rate, constant (default: that of the model's demo)")
    add(
        "--minutes", type=float, metavar="M", help="stop after so many minutes; the same call goes on (default: never)"
    )
    add("--resume", type=Path, metavar="DIR", help="go on with this folder, with its model, budget and rate")


def check_absent(args: argparse.Namespace) -> None:
    """Raises ValueError for a flag that needs --real."""
    for name in ONLY_REAL:
        if getattr(args, name) is not None:
            also = " or --agreement" if name == "minutes" else ""
            raise ValueError(f"--{name} goes with --real{also} only. Add that, or leave it out")


def main(parser: argparse.ArgumentParser, argv: Sequence[str]) -> int:
    """Entry point; returns the exit status (1: a training failed, 2: bad input, 130: interrupted)."""
    parser.set_defaults(**DEFAULTS | {"budget": None})
    args = parser.parse_args(argv)
    folder: Path = args.resume or args.out
    try:
        results = _results(parser, args, folder)
        with alone(folder) as lock, sigterm_as_interrupt():
            Campaign(args, results, lock).run()
    except (ValueError, OSError) as error:
        print(f"{PROG}: error: {error_text(error)}", file=sys.stderr)
        return 2
    except UnfinishedTrainingError as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print(f"\n{PROG}: interrupted; --resume {folder} goes on", file=sys.stderr)
        return 130
    _show(args, results)
    return 0


def _results(parser: argparse.ArgumentParser, args: argparse.Namespace, folder: Path) -> Results:
    """Of a new folder or an existing one; writes its settings. Raises ValueError."""
    for name in NOT_REAL:
        if getattr(args, name) != parser.get_default(name):
            raise ValueError(f"--{name} does not go with --real. Leave it out")
    known = read_conditions(folder)
    if args.resume and known is None:
        raise ValueError(f"--resume {folder}: there is no {SETTINGS}. Start a new folder with --out")
    check_new(folder)
    kept = known if args.resume else None
    model = args.model or (kept.model if kept else "smollm2")
    budget = args.budget if args.budget is not None else (kept.budget if kept else DEFAULTS["budget"])
    recipe = RECIPES[model]
    rate = args.rate if args.rate is not None else (kept.rate if kept else recipe.learning_rate)
    check(args.methods, args.seeds, budget, rate, args.minutes)
    conditions = Conditions(model, budget, rate, recipe.max_prompts, recipe.eval_samples)
    results = Results(folder, conditions)
    results.start()
    return results


@contextmanager
def alone(folder: Path) -> Iterator[IO[bytes]]:
    """Raises ValueError while another call works in this folder, or a training that it has left behind."""
    with (folder / "lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder} is in use by another call. Wait for it, or take another --out") from None
        yield lock


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class UnfinishedTrainingError(RuntimeError):
    """A training ended with an error, or before its budget was spent."""


class Campaign:
    """Runs the cells of a folder that are missing."""

    def __init__(self, args: argparse.Namespace, results: Results, lock: IO[bytes]) -> None:
        self._results, self._lock = results, lock
        self._cells = plan(args.methods, args.seeds)
        self._deadline = math.inf if args.minutes is None else time.monotonic() + 60.0 * args.minutes
        self._toy = results.conditions.model == "toy"

    def run(self) -> None:
        """Until all cells have ended, or time is up. Raises UnfinishedTrainingError."""
        missing = [cell for cell in self._cells if cell not in self._results.by_cell]
        if not missing:
            return
        for cell in missing:
            run_dir = self._results.folder / "runs" / cell.name
            while not self._has_spent_budget(_read(run_dir)):
                if time.monotonic() >= self._deadline:
                    return
                self._train(cell, run_dir)
            self._results.add(cell, read_run(run_dir))
            shutil.rmtree(_checkpoints(run_dir), ignore_errors=True)

    def _has_spent_budget(self, run: Run | None) -> bool:
        return run is not None and is_finished(run, self._results.conditions.budget)

    def _train(self, cell: Cell, run_dir: Path) -> None:
        """Until the budget is spent, or time is up."""
        command = self._command(cell, run_dir)
        run_dir.mkdir(parents=True, exist_ok=True)
        with (run_dir / LOG).open("ab") as log:
            # In a session of its own: Ctrl-C is for this process, which then ends the training.
            process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, pass_fds=[self._lock.fileno()]
            )
        try:
            with progress_line() as show:
                while time.monotonic() < self._deadline:
                    status = process.poll()
                    run = _read(run_dir)
                    show(self._progress(cell, run))
                    if self._has_spent_budget(run):
                        return
                    if status is not None:
                        raise UnfinishedTrainingError(
                            f"the training of {cell.name} ended with status {status} before its budget was spent. See "
                            f"{run_dir / LOG}; --resume {self._results.folder} tries again"
                        )
                    time.sleep(POLL_S)
        finally:
            end_training(process)

    def _command(self, cell: Cell, run_dir: Path) -> list[str]:
        """Goes on from a checkpoint; without one, what there is of the run is removed."""
        checkpoints = _checkpoints(run_dir)
        goes_on = has_checkpoint(checkpoints)
        if not goes_on:
            shutil.rmtree(run_dir, ignore_errors=True)
        conditions, recipe = self._results.conditions, RECIPES[self._results.conditions.model]
        data = self._results.folder / "prompts" / f"seed{cell.seed}"
        write_prompts(self._toy, recipe, data, num_train=conditions.prompts, seed=cell.seed)
        model = prepare_model(self._toy, Path(".cache"))
        paths = flags_of_any_run(recipe, model, data, run_dir) | {"ckpt.path": checkpoints}
        flags: Flags = paths | cell_flags(cell, conditions) | ({"ckpt.load_enable": True} if goes_on else {})
        return [sys.executable, "-m", "openrlhf_ada.cli.main", "train", *words(flags)]

    def _progress(self, cell: Cell, run: Run | None) -> str:
        done = sum(known in self._results.by_cell for known in self._cells)
        drawn = rollouts_until(run, run.steps[-1]["step"]) if run and run.steps else 0
        budget = self._results.conditions.budget
        return f"{done} of {len(self._cells)} runs; {cell.name}: {drawn:,} of {budget:,} rollouts"


def _checkpoints(run_dir: Path) -> Path:
    return run_dir / "ckpt"


def _read(run_dir: Path) -> Run | None:
    """None before the run has a record."""
    is_there = (run_dir / CONFIG_FILE).exists() and (run_dir / METRICS_FILE).exists()
    return read_run(run_dir) if is_there else None


def end_training(process: subprocess.Popen[bytes]) -> None:
    """Let a training end its Ray; kill what is left."""
    import psutil

    if process.poll() is not None:
        return
    started = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        kill_rest(started, 0.0)


# -- what is shown ----------------------------------------------------------------------------------------------------


def _show(args: argparse.Namespace, results: Results) -> None:
    conditions, cells = results.conditions, plan(args.methods, args.seeds)
    rows, target = table(results, args.methods, args.seeds), target_of(results, args.seeds)
    left = [cell.name for cell in cells if cell not in results.by_cell]
    print(f"{conditions.model} on the real stack, {conditions.budget:,} rollouts a run, {REFERENCE} = 1")
    if target is not None:
        print(f"target: {target:.1%} held-out accuracy")
    print(_HEAD)
    for row in rows:
        print(_line(row, args.seeds))
    if any(row.seeds < SEEDS_FOR_INTERVAL for row in rows):
        print(f"no intervals for methods with fewer than {SEEDS_FOR_INTERVAL} seeds")
    if left:
        print(f"partial: {len(cells) - len(left)} of {len(cells)} runs have ended. Left: {', '.join(left)}")
        print(f"--resume {results.folder} goes on")
    print(json.dumps(_summary(rows, done=len(cells) - len(left), planned=len(cells))))


_HEAD = (
    f"{'method':14}{'seeds':>6}{'prompts':>8}{'start':>7}{'final':>15}  {'mean accuracy - reference':27}"
    + "".join(f"{f'{cost} to target':24}" for cost in COSTS)
    + f"{'missed':>6}{'tokens':>9}{'trained':>9}{'sampling':>10}{'training':>10}"
)


def _line(row: Row, seeds: int) -> str:
    final = f"{row.final:.1%} ± {row.half_width:.1%}"
    costs = "".join(f"{row.cost[cost].text('.2f') if row.cost else '-':24}" for cost in COSTS)
    spent = row.spent
    return (
        f"{row.method:14}{f'{row.seeds}/{seeds}':>6}{row.prompts:8}{row.start:7.1%}{final:>15}  "
        f"{row.gain.text('+.1%') if row.gain else '-':27}{costs}{row.missed:6}{spent['tokens']:9,.0f}"
        f"{spent['trained_tokens']:9,.0f}{spent['sampling_seconds']:8,.0f} s{spent['training_seconds']:8,.0f} s"
    )


def _summary(rows: Sequence[Row], done: int, planned: int) -> dict[str, Any]:
    return {
        "cost_to_target": {row.method: round(row.cost["rollouts"].mean, 3) for row in rows if row.cost},
        "final": {row.method: round(row.final, 4) for row in rows},
        "seeds": {row.method: row.seeds for row in rows},
        "runs": done,
        "planned": planned,
    }
