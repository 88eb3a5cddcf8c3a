"""The same trial in one process and on the real stack: what makes the two equal, and whether they agree.

Both start from one checkpoint, have the same prompts, method, loss and optimiser, and are measured by one function:
the exact probability of the right answer to each held-out prompt, from the weights. Their random numbers differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch

import benchmarks.arena.exact_answer as reward_file
from benchmarks.arena.folders import Result
from benchmarks.arena.language_model import load_model
from benchmarks.arena.learner import CLIP, MAX_NORM, Learner, pass_rates
from benchmarks.arena.methods import METHODS, Method
from benchmarks.arena.real import Flags, method_flags
from benchmarks.arena.statistics import Interval, mean_interval
from benchmarks.arena.tasks import TASKS, make_world
from benchmarks.arena.trial import Trial
from openrlhf_ada.reporting.run_record import Run

LEARNER, REAL = "learner", "real"
"""In one process; with Ray, DeepSpeed and vLLM."""

METHODS_DEFAULT = ("uniform-4", "first-success-8")
"""A fixed number of rollouts, all trained, in four updates; and waves of one until one is right, in eight."""

REPEATS = 4
"""Trials in one process for each on the real stack: with other samples, from the same start. They cost seconds."""

MARKS = 16
"""Measurements after the first, evenly over the steps."""

BETAS, EPSILON = (0.9, 0.999), 1e-8
"""Of AdamW, as torch has them, whose defaults the learner uses. OpenRLHF's second beta is 0.95."""

MEASURED = ("accuracy", "rollouts", "tokens")
"""In a result, beside the fields of its cell: lists with a number for each measurement, the last two of so far."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What is the same for all trials of a folder. `prompts`: of a step. `rate`: learning rate, constant."""

    task: str = "graded"
    steps: int = 32
    prompts: int = 32
    rate: float = 1e-3

    @property
    def steps_between(self) -> int:
        """Between two measurements."""
        return self.steps // MARKS

    @property
    def episodes(self) -> int:
        """Epochs over the training prompts. Raises ValueError for steps that are no whole ones."""
        whole = TASKS[self.task].num_train // self.prompts
        if self.steps < whole or self.steps % whole:
            raise ValueError(
                f"--steps {self.steps}: expected whole epochs over the prompts, of {whole} steps each. Try {2 * whole}"
            )
        return self.steps // whole


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One trial. `seed`: of the world and its starting model. `repeat`: of several with other samples."""

    method: str
    seed: int
    stack: str
    repeat: int = 0

    @property
    def name(self) -> str:
        return f"{self.method}-seed{self.seed}"


def plan(methods: Sequence[str], seeds: int, stack: str) -> list[Cell]:
    """Whole seeds first."""
    repeats = REPEATS if stack == LEARNER else 1
    return [Cell(method, s, stack, r) for s in range(seeds) for r in range(repeats) for method in methods]


def settings_of(conditions: Conditions, methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The flags of each method. Where this repository is makes no difference."""
    reward = {"reward.remote_url": Path(reward_file.__file__).name}
    return {name: train_flags(METHODS[name], conditions) | reward for name in methods}


def learner_trial(cell: Cell, conditions: Conditions, start: Path) -> Result:
    """In a process of its own. `start`: the starting model's checkpoint."""
    torch.set_num_threads(1)
    model, seed = load_model(start), 1000 * cell.repeat + cell.seed
    learner = Learner(make_world(TASKS[conditions.task], cell.seed), model.state_dict(), conditions.rate, seed, model)
    trial = Trial(learner, METHODS[cell.method], conditions.prompts, seed)
    curve = trial.run(conditions.steps, "steps", MARKS)
    return _result(curve.accuracy, *([point[name] for point in curve.spent] for name in ("rollouts", "tokens")))


def train_flags(method: Method, conditions: Conditions) -> Flags:
    """What makes `openrlhf-ada train` the same trial, beside seed, model, prompts and folders."""
    trained = conditions.prompts * method.n
    return method_flags(method) | {
        "reward.remote_url": reward_file.__file__,
        "rollout.max_new_tokens": TASKS[conditions.task].max_tokens,
        "rollout.temperature": 1.0,
        "rollout.top_p": 1.0,
        "rollout.batch_size": conditions.prompts,
        "rollout.n_samples_per_prompt": method.n,
        "rollout.micro_batch_size": trained,
        "train.batch_size": trained // method.updates,
        "train.micro_batch_size": trained // method.updates,
        "train.max_epochs": method.epochs,
        "train.num_episodes": conditions.episodes,
        "algo.advantage.estimator": method.estimator,
        "algo.kl.init_coef": 0,
        # A sample's loss is the sum over its tokens, and the batch's the mean over its samples.
        "ada_loss": "sequence-constant",
        "ada_loss_length": 1,
        "actor.adam.lr": conditions.rate,
        "actor.adam.betas": BETAS,
        "actor.adam.eps": EPSILON,
        "actor.adam.weight_decay": 0.0,
        "actor.max_norm": MAX_NORM,
        "actor.eps_clip_low_high": CLIP,
        "actor.lr_scheduler": "constant",
        # The weights are what is measured; a training of minutes is not resumed, but repeated.
        "ckpt.save_hf": True,
        "ckpt.disable_ds": True,
        "ckpt.save_steps": conditions.steps_between,
        "ckpt.best_metric_key": "none",
    }


def real_result(cell: Cell, conditions: Conditions, run: Run, checkpoints: Sequence[Path]) -> Result:
    """Of a training that has ended. `checkpoints`: the starting model, then one for each measurement."""
    held_out = make_world(TASKS[conditions.task], cell.seed).held_out
    accuracy = [float(pass_rates(load_model(folder), held_out).mean()) for folder in checkpoints]
    marks = range(0, conditions.steps + 1, conditions.steps_between)
    spent = [
        [[0, *accumulate(row[name] for row in run.steps)][step] for step in marks]
        for name in ("ada/drawn", "ada/drawn_tokens")
    ]
    return _result(accuracy, *spent)


def _result(accuracy: Sequence[float], rollouts: Sequence[int], tokens: Sequence[int]) -> Result:
    shown = [round(value, 5) for value in accuracy]
    return {"accuracy": shown, "rollouts": list(rollouts), "tokens": list(tokens)}


# -- do they agree? ---------------------------------------------------------------------------------------------------

Trials = Mapping[Cell, Result]


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number of a trial. `margin`: the two agree where the whole interval of their difference is within it.

    `relative`: a share of what the learner draws.
    """

    name: str
    margin: float
    of: Callable[[Result], float]
    relative: bool = False


def _mean_accuracy(result: Result) -> float:
    """Over the steps, between measurements by lines."""
    accuracy = result["accuracy"]
    return float(np.trapezoid(accuracy) / (len(accuracy) - 1))


QUANTITIES = (
    Quantity("mean accuracy", 0.02, _mean_accuracy),
    Quantity("final accuracy", 0.02, lambda result: result["accuracy"][-1]),
    Quantity("rollouts", 0.05, lambda result: result["rollouts"][-1], relative=True),
    Quantity("tokens", 0.05, lambda result: result["tokens"][-1], relative=True),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity of one method, over the seeds that both tracks have. `difference`: real less learner, by seed; a
    share of the learner's for costs. `spread`: its standard deviation over seeds. `by_chance`: what that would be if
    both tracks were one, from trials that were repeated in one process; nan with fewer than two of a seed."""

    method: str
    quantity: Quantity
    seeds: int
    learner: float
    real: float
    difference: Interval
    spread: float
    by_chance: float

    @property
    def agrees(self) -> bool | None:
        """None with too few seeds for an interval."""
        low, high = self.difference.low, self.difference.high
        if low is None or high is None:
            return None
        return -self.quantity.margin <= low and high <= self.quantity.margin

    @property
    def verdict(self) -> str:
        """A difference is seen where its interval has no 0, and small if it is within the margin."""
        low, high = self.difference.low, self.difference.high
        if low is None or high is None:
            return "too few seeds"
        if self.agrees:
            return "agree"
        return "differ" if low > 0.0 or high < 0.0 else "open"


def table(trials: Trials, methods: Sequence[str]) -> list[Row]:
    """Methods without a seed that both tracks have are left out."""
    return [
        _row(method, quantity, pairs)
        for method in methods
        for pairs in [_pairs(trials, method)]
        if pairs
        for quantity in QUANTITIES
    ]


def _pairs(trials: Trials, method: str) -> dict[int, tuple[list[Result], list[Result]]]:
    """By seed: (trials in one process, on the real stack)."""
    found: dict[int, tuple[list[Result], list[Result]]] = {}
    for cell, result in trials.items():
        if cell.method == method:
            found.setdefault(cell.seed, ([], []))[(LEARNER, REAL).index(cell.stack)].append(result)
    return {seed: both for seed, both in sorted(found.items()) if all(both)}


def _row(method: str, quantity: Quantity, pairs: Mapping[int, tuple[list[Result], list[Result]]]) -> Row:
    values = [
        [np.array([quantity.of(result) for result in side], dtype=float) for side in both] for both in pairs.values()
    ]
    means = np.array([[side.mean() for side in both] for both in values])
    scale = means[:, 0] if quantity.relative else np.ones(len(means))
    difference = (means[:, 1] - means[:, 0]) / scale
    learner, real = means.mean(axis=0).tolist()
    interval, spread = mean_interval(difference.tolist()), _deviation(difference)
    return Row(method, quantity, len(pairs), learner, real, interval, spread, _by_chance(values, scale))


def _by_chance(values: Sequence[Sequence[np.ndarray]], scale: np.ndarray) -> float:
    """A trial of either track varies as repeated trials of one process do."""
    variances = [
        (_deviation(one) / by) ** 2 * (1 / len(one) + 1 / len(real))
        for (one, real), by in zip(values, scale, strict=True)
    ]
    return float(np.sqrt(np.mean(variances)))


def _deviation(values: np.ndarray) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else float("nan")


def contrast(trials: Trials, methods: Sequence[str], stack: str) -> Interval | None:
    """Mean accuracy of the second method less the first's, on one track, over the seeds of `table`."""
    if len(methods) < 2:
        return None
    first, second = (_pairs(trials, method) for method in methods[:2])
    side = (LEARNER, REAL).index(stack)
    seeds = sorted(first.keys() & second.keys())
    means = [[np.mean([_mean_accuracy(r) for r in of[seed][side]]) for of in (first, second)] for seed in seeds]
    return mean_interval([float(b - a) for a, b in means]) if means else None
