"""Methods on the real stack: which runs there are, with which flags, and what their run directories say."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from openrlhf_ada.arena.folders import SETTINGS, Result, make, read_results, read_settings
from openrlhf_ada.arena.methods import METHODS, Method, check_flags
from openrlhf_ada.arena.names import check_names
from openrlhf_ada.core.advantages import is_spread
from openrlhf_ada.reporting.run_record import Row, Run
from openrlhf_ada.simulation.coin_flips import simulate

REFERENCE = "uniform-4-twice"
"""Uniform sampling with as many passes as ours make. All are compared with it."""

STEP_ROLLOUTS = 128
"""Rollouts that a step of every method draws on average, so that at an equal budget all take as many steps. Methods
make as many updates of a step as their names say: compare those that make the same number."""

MEASUREMENTS = 8
"""Evaluations within the budget, beside the one at the start."""

LEAST_BUDGET = 3 * STEP_ROLLOUTS
"""A start, a middle and an end."""

PASS_RATES = (1.0, 1.5)
"""Beta distribution of the prompts' pass rates in the middle of a run, for the mean number of draws of a prompt."""

SIMULATED_PROMPTS, SIMULATED_STEPS = 256, 8

METHODS_DEFAULT = (
    REFERENCE,
    "first-right",
    "raft-1-twice",
    "raft-twice",
    "counted",
    "uniform-8",
    "uniform-4",
    "uniform-16",
    "balance",
    "pos",
    "est",
    "dapo-8",
)

CELLS = "cells.jsonl"

Flags = dict[str, Any]
"""By name without dashes; True is a switch."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What is the same for all runs of a folder. `budget`: rollouts of a run. `rate`: learning rate, constant."""

    model: str
    budget: int
    rate: float
    prompts: int
    """Training prompts of a seed."""
    answers: int
    """To each held-out prompt in an evaluation."""

    @property
    def eval_steps(self) -> int:
        """Steps between two evaluations."""
        return max(1, round(self.budget / STEP_ROLLOUTS / MEASUREMENTS))


@dataclass(frozen=True, slots=True)
class Cell:
    """One run. `seed`: of the prompts, of their order and of all samples."""

    method: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.method}-seed{self.seed}"


MEASURED = ("flags", "by_step", "evaluations")
"""In a result, beside the fields of its cell: the last two are objects of lists."""


# -- plan -------------------------------------------------------------------------------------------------------------


def plan(methods: Sequence[str], seeds: int) -> list[Cell]:
    """A seed with all methods, then the next: partial results are of whole seeds as far as possible."""
    names = list(dict.fromkeys([REFERENCE, *methods]))
    return [Cell(method, seed) for seed in range(seeds) for method in names]


def check_minutes(minutes: float | None) -> None:
    """Raises ValueError."""
    if minutes is not None and not 0 < minutes < math.inf:
        raise ValueError(f"--minutes {minutes:g}: expected a number above 0. Leave it out for no limit")


def check(methods: Sequence[str], seeds: int, budget: int, rate: float, minutes: float | None) -> None:
    """Raises ValueError for what cannot be run."""
    check_names("--methods", methods, METHODS)
    check_flags(methods)
    if seeds < 1:
        raise ValueError(f"--seeds {seeds}: at least 1 is needed, and 3 for an interval")
    if budget < LEAST_BUDGET:
        raise ValueError(
            f"--budget {budget}: a run needs at least {LEAST_BUDGET} rollouts for a start, a middle and an end, and "
            f"several thousand to learn. Try 6144"
        )
    if not 0 < rate < 1:
        raise ValueError(f"--rate {rate:g}: a learning rate lies between 0 and 1. Leave it out for that of the demo")
    check_minutes(minutes)


@cache
def rollouts_per_prompt(method: str) -> float:
    """Mean rollouts for a trained prompt, in simulation; prompts that are replaced count."""
    of, prompts = METHODS[method], SIMULATED_PROMPTS
    rng = np.random.default_rng(0)
    rates = rng.beta(*PASS_RATES, size=prompts)
    batches = (range(prompts) for _ in range(SIMULATED_STEPS))
    drawn = trained = 0
    for step in simulate(of.policy(prompts), batches, lambda _, rows: rates[rows], seed=0):
        drawn += sum(len(pool) for pool in step.pools)
        trained += sum(len(pool) >= of.n and is_spread(pool.scores) for pool in step.pools)
    return drawn / (trained if of.refill else prompts * SIMULATED_STEPS)


def prompts_per_step(method: str) -> int:
    """As many as make a step of about STEP_ROLLOUTS, and whose trained rollouts make equal parts, one an update."""
    parts = METHODS[method].parts
    whole = parts // math.gcd(parts, METHODS[method].n)
    return whole * max(1, round(STEP_ROLLOUTS / rollouts_per_prompt(method) / whole))


def cell_flags(cell: Cell, conditions: Conditions) -> Flags:
    """What a run's command line has beside the model, the prompts and the folders."""
    method, prompts = METHODS[cell.method], prompts_per_step(cell.method)
    trained = prompts * method.n
    update = trained // method.parts
    return method_flags(method) | {
        "ada_eval_ends": True,
        "algo.advantage.estimator": method.estimator,
        "rollout.batch_size": prompts,
        "rollout.n_samples_per_prompt": method.n,
        "rollout.micro_batch_size": trained,
        "train.batch_size": update,
        "train.micro_batch_size": update,
        "train.max_epochs": method.passes,
        # Enough even if a prompt had one rollout: the run is ended when its budget is spent.
        "train.num_episodes": -(-conditions.budget // conditions.prompts) + 1,
        "train.seed": 1000 + cell.seed,
        "actor.adam.lr": conditions.rate,
        # A schedule would depend on the number of steps, which differs and is not known before.
        "actor.lr_scheduler": "constant",
        "eval.steps": conditions.eval_steps,
        "eval.n_samples_per_prompt": conditions.answers,
        # Rarely where it is evaluated: a run interrupted between the two would go on without that evaluation.
        "ckpt.save_steps": conditions.eval_steps + 1,
        "ckpt.max_num": 1,
        "ckpt.best_metric_key": "none",
    }


def method_flags(method: Method) -> Flags:
    """Our flags, for `openrlhf-ada train`."""
    ours = dict(method.ada)
    if method.refill:
        ours["unresolved"] = "refill"
        if ours.get("select") == "all":
            # Refilling asks for a selection. Pools have n rollouts, so it keeps all.
            ours["select"] = "random"
    if ours["mode"] == "seq" and method.settings(SIMULATED_PROMPTS).waits:
        # Rollouts that the method has not asked for would count against it.
        ours["speculation"] = 0
    return {f"ada_{name}": value for name, value in ours.items()}


# -- a run's record ---------------------------------------------------------------------------------------------------


def is_finished(run: Run, budget: int) -> bool:
    """Has it been evaluated at the start, and once its budget was spent?"""
    measured = [row["step"] for row in run.evaluations]
    return bool(measured) and measured[0] == 0 and rollouts_until(run, measured[-1]) >= budget


def rollouts_until(run: Run, step: int) -> int:
    """Drawn in steps up to this one, waste included."""
    return sum(row["ada/drawn"] for row in run.steps if row["step"] <= step)


def result_of(cell: Cell, flags: Flags, run: Run) -> Result:
    """Costs of every step up to the last evaluation, and the evaluations. Seconds are of this machine."""
    last = run.evaluations[-1]["step"]
    steps = [row for row in run.steps if row["step"] <= last]
    return asdict(cell) | {
        "flags": flags,
        "by_step": {name: [_rounded(of(row)) for row in steps] for name, of in _BY_STEP.items()},
        "evaluations": {
            "step": [row["step"] for row in run.evaluations],
            "accuracy": [round(row["eval/accuracy"], 5) for row in run.evaluations],
            "half_width": [round(row["eval/ci95"], 5) for row in run.evaluations],
        },
    }


def _training_seconds(row: Row) -> float:
    """Log-probabilities and advantages, the policy's update, and a critic's if there is one."""
    return sum(row.get(f"timing/{part}", 0.0) for part in ("make_experience", "ppo_train", "critic_fit"))


_BY_STEP = {
    "rollouts": lambda row: row["ada/drawn"],
    "tokens": lambda row: row["ada/drawn_tokens"],
    "trained_tokens": lambda row: row["ada/kept_tokens"] - row.get("ada/skipped_tokens", 0),
    "sampling_seconds": lambda row: row["timing/generation"],
    "training_seconds": _training_seconds,
    "seconds": lambda row: row["ada/step_s"],
}
"""`trained_tokens`: what the policy computes. `seconds`: all of the step, weights to the engine included, without an
evaluation."""


def _rounded(value: float) -> float:
    return value if isinstance(value, int) else round(value, 2)


def curve(result: Result, cost: str) -> tuple[list[float], list[float]]:
    """(cost at each evaluation, accuracy there)."""
    spent = [0, *accumulate(result["by_step"][cost])]
    return [spent[step] for step in result["evaluations"]["step"]], result["evaluations"]["accuracy"]


def total(result: Result, cost: str) -> float:
    """Up to the last evaluation."""
    return sum(result["by_step"][cost])


# -- results on disk --------------------------------------------------------------------------------------------------


class Results:
    """A folder with settings.json and a JSON line for each run that has ended.

    Raises ValueError for a folder of other conditions, of runs with other flags, or with a line that is no result.
    `resumes`: False for results that are only shown, which may be of an earlier version with other flags.
    """

    def __init__(self, folder: Path, conditions: Conditions, *, resumes: bool = True) -> None:
        self.folder, self.conditions = folder, conditions
        self.by_cell: dict[Cell, Result] = {}
        known = read_conditions(folder)
        if known is not None:
            check_equal(folder / SETTINGS, asdict(known), asdict(conditions), "Take another --out")
        for number, cell, result in read_results(folder / CELLS, Cell, MEASURED):
            where = f"{folder / CELLS}, line {number} ({cell.name})"
            if resumes and cell.method in METHODS:
                check_equal(where, result["flags"], _as_json(cell_flags(cell, conditions)), "Remove this line")
            self.by_cell[cell] = result

    def start(self) -> None:
        """Write the settings, if this is a new folder."""
        make(self.folder)
        if read_conditions(self.folder) is None:
            text = json.dumps(asdict(self.conditions), indent=2) + "\n"
            (self.folder / SETTINGS).write_text(text, encoding="utf-8")

    def add(self, cell: Cell, run: Run) -> None:
        """Keep it, in memory and on disk."""
        self.by_cell[cell] = result_of(cell, _as_json(cell_flags(cell, self.conditions)), run)
        with (self.folder / CELLS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(self.by_cell[cell]) + "\n")

    def of(self, method: str, seeds: int) -> dict[int, Result]:
        """By seed, as far as they have ended."""
        cells = [Cell(method, seed) for seed in range(seeds)]
        return {cell.seed: self.by_cell[cell] for cell in cells if cell in self.by_cell}


def read_conditions(folder: Path) -> Conditions | None:
    """Of an existing folder; None without settings. Raises ValueError for a file that holds none."""
    names = [field.name for field in fields(Conditions)]
    found = read_settings(folder, names)
    return Conditions(**{name: found[name] for name in names}) if found else None


def check_equal(where: object, theirs: Mapping[str, Any], ours: Mapping[str, Any], remedy: str) -> None:
    """Raises ValueError where two settings differ."""
    for name in {**theirs, **ours}:
        if theirs.get(name) != ours.get(name):
            raise ValueError(
                f"{where} has other settings: {name} is {theirs.get(name)} there and {ours.get(name)} here. {remedy}"
            )


def _as_json(flags: Flags) -> Flags:
    return json.loads(json.dumps(flags))
