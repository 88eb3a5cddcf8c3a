"""Methods on the real stack: which runs there are, with which flags, what they say, and what methods cost there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np

from benchmarks.arena.costs import mean_accuracy
from benchmarks.arena.folders import Result, Results
from benchmarks.arena.methods import METHODS, Method
from benchmarks.arena.statistics import Interval, cost_to, mean_interval
from benchmarks.arena.tables import TARGET_SHARE
from openrlhf_ada.core.advantages import is_spread
from openrlhf_ada.reporting.run_record import Row as Measurement
from openrlhf_ada.reporting.run_record import Run
from openrlhf_ada.simulation.coin_flips import simulate

REFERENCE = "uniform-4-e2"
"""Uniform sampling in two epochs. All are compared with it."""

STEP_ROLLOUTS = 128
"""Rollouts that a step of every method draws on average, so that at an equal budget all take as many steps. Methods
make as many updates of a step as RESULTS.md says: compare those that make the same number."""

MEASUREMENTS = 8
"""Evaluations within the budget, beside the one at the start."""

PASS_RATES = (1.0, 1.5)
"""Beta distribution of the prompts' pass rates in the middle of a run, for the mean number of draws of a prompt."""

SIMULATED_PROMPTS, SIMULATED_STEPS = 256, 8

METHODS_DEFAULT = (
    REFERENCE,
    "first-success-8",
    "raft-n1-e2",
    "raft-n4-e2",
    "spo-n2",
    "uniform-8",
    "uniform-4",
    "uniform-16",
    "balance",
    "pos",
    "est",
    "dapo-8",
)

Flags = dict[str, Any]
"""By name without dashes; True is a switch."""

MEASURED = ("by_step", "evaluations")
"""In a result, beside the fields of its cell: objects of lists."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What is the same for all runs of a folder. `budget`: rollouts of a run. `rate`: learning rate, constant.

    `prompts`: training prompts of a seed. `answers`: to each held-out prompt in an evaluation.
    """

    model: str
    budget: int
    rate: float
    prompts: int
    answers: int

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


def plan(methods: Sequence[str], seeds: int) -> list[Cell]:
    """A seed with all methods, then the next: partial results are of whole seeds as far as possible."""
    names = list(dict.fromkeys([REFERENCE, *methods]))
    return [Cell(method, seed) for seed in range(seeds) for method in names]


# -- command lines ----------------------------------------------------------------------------------------------------


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
    """As many as make a step of about STEP_ROLLOUTS, and whose trained rollouts make equal updates."""
    updates = METHODS[method].updates
    whole = updates // math.gcd(updates, METHODS[method].n)
    return whole * max(1, round(STEP_ROLLOUTS / rollouts_per_prompt(method) / whole))


def run_flags(name: str, conditions: Conditions) -> Flags:
    """What the command line of a method's run has beside seed, model, prompts and folders."""
    method, prompts = METHODS[name], prompts_per_step(name)
    trained = prompts * method.n
    update = trained // method.updates
    return method_flags(method) | {
        "ada_eval_ends": True,
        "algo.advantage.estimator": method.estimator,
        "rollout.batch_size": prompts,
        "rollout.n_samples_per_prompt": method.n,
        "rollout.micro_batch_size": trained,
        "train.batch_size": update,
        "train.micro_batch_size": update,
        "train.max_epochs": method.epochs,
        # Enough even if a prompt had one rollout: the run is ended when its budget is spent.
        "train.num_episodes": -(-conditions.budget // conditions.prompts) + 1,
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


def result_of(run: Run) -> Result:
    """Costs of every step up to the last evaluation, and the evaluations. Seconds are of this machine."""
    last = run.evaluations[-1]["step"]
    steps = [row for row in run.steps if row["step"] <= last]
    return {
        "by_step": {name: [_rounded(of(row)) for row in steps] for name, of in _BY_STEP.items()},
        "evaluations": {
            "step": [row["step"] for row in run.evaluations],
            "accuracy": [round(row["eval/accuracy"], 5) for row in run.evaluations],
            "half_width": [round(row["eval/ci95"], 5) for row in run.evaluations],
        },
    }


def _training_seconds(row: Measurement) -> float:
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


# -- costs beside the reference ---------------------------------------------------------------------------------------

COSTS = ("rollouts", "tokens", "seconds")
"""To the target, that are shown. Seconds are measured on the machine that ran."""

SPENT = ("tokens", "trained_tokens", "sampling_seconds", "training_seconds")


@dataclass(frozen=True, slots=True)
class Row:
    """One method. `seeds`: runs that have ended. The other figures are means over them.

    `start`, `final`: accuracy before training and at the budget, `half_width`: of `final`, from the evaluations.
    `gain`: mean accuracy over the budget less the reference's. `cost`: by name, cost to the target over the
    reference's (geometric mean), which counts with the whole budget in the `missed` seeds without it. The last two are
    of the seeds that the reference has as well, and None without such. `spent`: totals of a run up to its last
    evaluation.
    """

    method: str
    seeds: int
    prompts: int
    start: float
    final: float
    half_width: float
    gain: Interval | None
    cost: Mapping[str, Interval] | None
    missed: int
    spent: Mapping[str, float]


def by_seed(results: Results[Cell], method: str) -> dict[int, Result]:
    """As far as they have ended."""
    return {cell.seed: result for cell, result in sorted(results.by_cell.items(), key=_seed) if cell.method == method}


def _seed(item: tuple[Cell, Result]) -> int:
    return item[0].seed


def table(results: Results[Cell], methods: Sequence[str], budget: int) -> list[Row]:
    """The reference first, then by mean accuracy over the budget. Methods without a finished run are left out."""
    runs = {name: by_seed(results, name) for name in dict.fromkeys([REFERENCE, *methods])}
    target = target_of(results, budget)
    rows = [_row(name, of_method, runs[REFERENCE], budget, target) for name, of_method in runs.items() if of_method]
    return sorted(rows, key=lambda row: (row.method != REFERENCE, -row.gain.mean if row.gain else 0.0))


def target_of(results: Results[Cell], budget: int) -> float | None:
    """The accuracy to reach: a share of the reference's mean gain over the budget. None without a run of it."""
    runs = by_seed(results, REFERENCE).values()
    if not runs:
        return None
    ends = [(run["evaluations"]["accuracy"][0], _accuracy_at(run, budget)) for run in runs]
    first, last = np.mean(ends, axis=0).tolist()
    return first + TARGET_SHARE * (last - first)


def _row(
    name: str, runs: Mapping[int, Result], reference: Mapping[int, Result], budget: int, target: float | None
) -> Row:
    pairs = [(runs[seed], reference[seed]) for seed in runs if seed in reference]
    missed, cost, gain = 0, None, None
    if target is not None and pairs:
        missed = sum(max(run["evaluations"]["accuracy"]) < target for run in runs.values())
        cost = {
            of: mean_interval(
                [math.log(_to_target(a, of, target) / _to_target(b, of, target)) for a, b in pairs], math.exp
            )
            for of in COSTS
        }
        gain = mean_interval([_area(ours, budget) - _area(theirs, budget) for ours, theirs in pairs])
    widths = [run["evaluations"]["half_width"][-1] for run in runs.values()]
    spent = {of: float(np.mean([sum(run["by_step"][of]) for run in runs.values()])) for of in SPENT}
    # A run's record has once what is trained in every epoch.
    spent["trained_tokens"] *= METHODS[name].epochs
    return Row(
        method=name,
        seeds=len(runs),
        prompts=prompts_per_step(name),
        start=float(np.mean([run["evaluations"]["accuracy"][0] for run in runs.values()])),
        final=float(np.mean([_accuracy_at(run, budget) for run in runs.values()])),
        half_width=math.sqrt(sum(width**2 for width in widths)) / len(widths),
        gain=gain,
        cost=cost,
        missed=missed,
        spent=spent,
    )


def _accuracy_at(run: Result, budget: int) -> float:
    """Between two evaluations by a line."""
    return float(np.interp(budget, *curve(run, "rollouts")))


def _area(run: Result, budget: int) -> float:
    return mean_accuracy(*curve(run, "rollouts"), budget)


def _to_target(run: Result, cost: str, target: float) -> float:
    """Cost to the target, or the whole run's; at least that of one step, since the start may be above the target."""
    spent, accuracy = curve(run, cost)
    return max(cost_to(target, accuracy, spent)[0], run["by_step"][cost][0])
