"""Methods on the real stack: which runs there are, with which flags, and what is kept of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from benchmarks.arena import published
from benchmarks.arena.folders import Result
from benchmarks.arena.methods import METHODS, Method
from benchmarks.arena.running_totals import CLASSES, working_right
from openrlhf_ada.config import presets
from openrlhf_ada.core.advantages import is_spread
from openrlhf_ada.reporting.run_record import Row as Measurement
from openrlhf_ada.reporting.run_record import Run
from openrlhf_ada.simulation.coin_flips import simulate

STEP_ROLLOUTS = 128
"""Rollouts that a step of every method draws on average, so that at an equal budget all take as many steps. Methods
make as many updates of a step as RESULTS.md says: compare those that make the same number."""

PASS_RATES = (1.0, 1.5)
"""Beta distribution of the prompts' pass rates in the middle of a run, for the mean number of draws of a prompt."""

SIMULATED_PROMPTS, SIMULATED_STEPS = 256, 8

SEEDS = 3

METHODS_DEFAULT = (
    "uniform-4-e2",
    "uniform-4-e2-in-eight",
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

OF_TOTALS = ("n8", "n1", "lambda-1", "right-1", "balance")

MAIN_OF_TOTALS = ("n8/1", "lambda-1-wrong-once/2", "n8-wrong-once/2", "right-1/2", "n1/1", "balance/1")

METHODS_OF_TOTALS = tuple(
    dict.fromkeys([*MAIN_OF_TOTALS, *(f"{name}/{epochs}" for epochs in (2, 1) for name in OF_TOTALS)])
)
"""Each in four updates of an epoch."""

RATES_OF_TOTALS = (2e-5, 6e-6, 6e-5)
"""The middle one first: partial results are of all methods at one rate."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What is trained, on which prompts. `shown`: in a sentence. `counted`: what a budget is of, "rollouts", "tokens"
    or "seconds"; `per_rollout`: of it, roughly. `prompts`: training prompts of a seed. `answers`: to each held-out
    prompt in an evaluation. `measurements`: evaluations within the budget, beside the one at the start. `reference`:
    with which all methods are compared. `like`: the small model's task that it should order methods like, and with a
    working (running_totals.py); or empty. `is_published`: methods are values of --ada_method, with the sizes that were
    published for them; see published.py."""

    shown: str
    prompts: int
    answers: int
    rates: tuple[float, ...]
    budget: int
    methods: tuple[str, ...] = METHODS_DEFAULT
    reference: str = "uniform-4-e2"
    counted: str = "rollouts"
    per_rollout: int = 1
    measurements: int = 8
    like: str = ""
    is_published: bool = False


def _totals(classes: int) -> Kind:
    shown = f"SmolLM2-135M, taught to write running totals, then a class of {classes} that alone is rewarded"
    return Kind(
        shown,
        prompts=1024,
        answers=8,
        rates=RATES_OF_TOTALS,
        budget=100_000,
        methods=METHODS_OF_TOTALS,
        reference="n8/1",
        counted="tokens",
        per_rollout=34,
        # An evaluation has as many tokens as a quarter of a run.
        measurements=2,
        like="ways-luck10" if classes == 10 else "ways",
    )


def _published(shown: str, prompts: int, rate: float, budget: int) -> Kind:
    methods = published.METHODS
    return Kind(
        shown, prompts, 4, (rate,), budget, methods, reference=methods[0], counted="seconds", is_published=True
    )


KINDS = {
    # The demo evaluates twice, these runs nine times: with 4 answers a prompt that would take as long as 18 steps.
    "smollm2": Kind("SmolLM2-135M-Instruct, sums with a short answer", 1024, 2, (2e-5,), 6144),
    "toy": Kind("The demo's toy, sums with a short answer", 256, 8, (3e-4,), 6144),
    **{f"totals-{classes}": _totals(classes) for classes in CLASSES},
    # The budget follows from the machine.
    "math-1.5b": _published("Published settings, prompts of the hard band", 0, 1e-6, 0),
    "math-toy": _published("The demo's toy in their place: its figures say nothing", 256, 3e-4, 24),
}
"""By --model."""

Flags = dict[str, Any]
"""By name without dashes; True is a switch."""

MEASURED = ("by_step", "evaluations")
"""In a result, beside the fields of its cell: objects of lists."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What is the same for all runs of a folder. `model`: one of KINDS. `budget`: of a run, in what its kind counts.

    `rates`: learning rates, constant in a run. `prompts`, `answers`: see Kind. Of published settings: `weights`: the
    model, a folder or a hub id; `data`: a file of prepare-data; `step_seconds`: of each method, by `plan`;
    `answer_seconds`: of one answer on all engines.
    """

    model: str
    budget: int
    rates: Sequence[float]
    prompts: int
    answers: int
    weights: str | None = None
    data: str | None = None
    gpus: int | None = None
    step_seconds: Mapping[str, float] | None = None
    answer_seconds: float | None = None

    @property
    def is_toy(self) -> bool:
        """Of published settings: the toy in the place of a model."""
        return self.weights is None

    @property
    def kind(self) -> Kind:
        return KINDS[self.model]

    @property
    def eval_steps(self) -> int:
        """Steps between two evaluations."""
        return max(1, round(self.budget / self.kind.per_rollout / STEP_ROLLOUTS / self.kind.measurements))


@dataclass(frozen=True, slots=True)
class Cell:
    """One run. `rate`: learning rate. `seed`: of the prompts, of their order and of all samples."""

    method: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        """Also of its folder."""
        return f"{self.method.replace('/', '-e')}-rate{self.rate:g}-seed{self.seed}"


def plan(conditions: Conditions, methods: Sequence[str], seeds: int) -> list[Cell]:
    """A rate with all seeds, then the next, each seed with all methods: so partial results compare most."""
    names = list(dict.fromkeys([conditions.kind.reference, *methods]))
    return [Cell(method, rate, seed) for rate in conditions.rates for seed in range(seeds) for method in names]


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


def sizes(name: str, conditions: Conditions) -> tuple[int, int, int]:
    """(prompts, epochs, updates) of a step."""
    if not conditions.kind.is_published:
        method = METHODS[name]
        return prompts_per_step(name), method.epochs, method.epochs * method.updates
    flags = presets.METHODS[name].flags | run_flags(name, conditions)
    parts = ("rollout.batch_size", "train.max_epochs", "rollout.n_samples_per_prompt", "train.batch_size")
    prompts, epochs, n, update = (int(flags[part]) for part in parts)
    return prompts, epochs, epochs * prompts * n // update


def run_flags(name: str, conditions: Conditions) -> Flags:
    """What the command line of a method's run has beside seed, model, prompts and folders."""
    if conditions.kind.is_published:
        return published.flags_of_method(name, conditions)
    method, prompts = METHODS[name], prompts_per_step(name)
    trained = prompts * method.n
    update = trained // method.updates
    clip = {} if method.clip is None else {"actor.eps_clip_low_high": method.clip}
    return (method_flags(method) | clip) | {
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
    if method.least_noise:
        ours["baseline_factor"] = "least_noise"
    if method.wrong_epochs is not None:
        ours["wrong_epochs"] = method.wrong_epochs
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


def is_finished(run: Run, conditions: Conditions) -> bool:
    """Has it been evaluated at the start, and once its budget was spent?"""
    measured = [row["step"] for row in run.evaluations]
    return bool(measured) and measured[0] == 0 and spent_until(run, measured[-1], conditions) >= conditions.budget


def spent_until(run: Run, step: int, conditions: Conditions) -> float:
    """Of what the budget counts, drawn in steps up to this one, waste included."""
    of = _BY_STEP[conditions.kind.counted]
    return sum(of(row) for row in run.steps if row["step"] <= step)


def result_of(run: Run, kind: Kind) -> Result:
    """Costs of every step up to the last evaluation, and the evaluations. Seconds are of this machine."""
    last = run.evaluations[-1]["step"]
    steps = [row for row in run.steps if row["step"] <= last]
    by_step = _BY_STEP | (_BY_STEP_WITH_WORKING if kind.like else {})
    measures = _MEASURES | (_measures_with_working(kind.answers) if kind.like else {})
    if kind.is_published:
        measures |= _pass_and_length(kind.answers)
    return {
        "by_step": {name: [_rounded(of(row)) for row in steps] for name, of in by_step.items()},
        "evaluations": {"step": [row["step"] for row in run.evaluations]}
        | {name: [round(of(row), 5) for row in run.evaluations] for name, of in measures.items()},
    }


_MEASURES = {"accuracy": lambda row: row["eval/accuracy"], "half_width": lambda row: row["eval/ci95"]}


def _measures_with_working(answers: int) -> dict[str, Callable[[Measurement], float]]:
    right = {"working_right": lambda row: working_right(row["eval/accuracy"], row["eval/score"])}
    return right | _pass_and_length(answers)


def _pass_and_length(answers: int) -> dict[str, Callable[[Measurement], float]]:
    return {"pass": lambda row: row[f"eval/pass@{answers}"], "length": lambda row: row["eval/tokens"]}


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

_BY_STEP_WITH_WORKING = {"surprisal": lambda row: row.get("ada/surprisal")}
"""None where nothing was trained."""


def _rounded(value: float | None) -> float | None:
    return value if value is None or isinstance(value, int) else round(value, 3)
