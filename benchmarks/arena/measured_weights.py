"""Measure in training which weight a method gives a prompt of pass rate p, where no formula says it: 10 minutes.

A split gives a prompt rollouts that depend on the other prompts of the batch, and a choice leaves prompts out. So
their effective weight (`core.objectives.effective_weight`) has no formula. Each method is trained on four tuning
worlds, with the setting that is tuned for seconds. Writes results/weights.json. Methods whose weight can be enumerated
are measured as a check: the last line of output is a JSON object with the ratio of both, at the least and at the most.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.arena.campaign import starting_point
from benchmarks.arena.learner import Learner, pass_rates
from benchmarks.arena.methods import METHODS
from benchmarks.arena.packed import PACKED, unpack
from benchmarks.arena.trial import THRESHOLD, Trial
from benchmarks.arena.weights import TABLES, effective_weight_of
from openrlhf_ada.core.objectives import TabulatedObjective
from openrlhf_ada.core.types import PromptPool, TrainingGroup

Floats = NDArray[np.float64]

EDGES = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.88, 0.92, 0.95, 0.97, 0.98, 0.99)
LEAST_OUTCOMES = 200
"""Ranges of pass rates in a table: between these, and with so many right and wrong answers that were trained."""


@dataclass(frozen=True, slots=True)
class Given:
    """Pass rates of all training prompts before each step, and what the step gave each, shapes (steps x R,).

    positive, negative: C+ and C- of `effective_weight`, over the number of rollouts that the step trained.
    right, wrong: rollouts of this prompt that were trained.
    """

    rates: Floats
    positive: Floats
    negative: Floats
    right: Floats
    wrong: Floats

    def weight(self, among: NDArray[np.bool_]) -> float:
        """Mean over these prompts, trained or not: E[C+] / E[p] + E[C-] / E[1 - p]."""
        right, wrong = self.rates[among].sum(), (1.0 - self.rates[among]).sum()
        return float(self.positive[among].sum() / right + self.negative[among].sum() / wrong)


def given(learner: Learner, trial: Trial, budget: int) -> Given:
    """By a training with `trial` until `budget` rollouts are drawn."""
    steps: list[Given] = []
    while trial.spent.rollouts < budget:
        rates = pass_rates(learner.model, learner.world.train)
        steps.append(_given(trial.step(), rates))
    return joined(steps)


def _given(groups: Iterable[tuple[PromptPool, TrainingGroup]], rates: Floats) -> Given:
    """By one step."""
    found = Given(rates, *(np.zeros(len(rates)) for _ in range(4)))
    for pool, group in groups:
        coefficients = np.array(group.coefficients)
        positive = pool.scores[np.array(group.indices)] > THRESHOLD
        found.positive[pool.row] += coefficients[positive].sum()
        found.negative[pool.row] -= coefficients[~positive].sum()
        found.right[pool.row] += positive.sum()
        found.wrong[pool.row] += (~positive).sum()
    trained = max(1.0, float(found.right.sum() + found.wrong.sum()))
    return Given(rates, found.positive / trained, found.negative / trained, found.right, found.wrong)


def joined(parts: Sequence[Given]) -> Given:
    """Of several steps or trainings."""
    return Given(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Given)))


def tabulated(name: str, seen: Given) -> TabulatedObjective:
    """f' by ranges of pass rates, 1 at p = 0.5.

    Raises ValueError where there are fewer than two ranges, and for a weight that is not above 0.
    """
    # Right answers say most of a weight at low rates, and come in proportion to p.
    rates = [float((seen.rates[among] ** 2).sum() / seen.rates[among].sum()) for among in _ranges(seen)]
    table = TabulatedObjective(name, tuple(rates), tuple(seen.weight(among) for among in _ranges(seen)))
    middle = table.weight(0.5)
    return TabulatedObjective(name, table.rates, tuple(weight / middle for weight in table.weights))


def _ranges(seen: Given) -> list[NDArray[np.bool_]]:
    """Neighbours of EDGES, joined from the lowest up until they hold LEAST_OUTCOMES; what is left joins the last one.

    Prompts that cannot be solved have no gradient, and are in none.
    """
    place = np.where(seen.rates > 0.0, np.searchsorted(EDGES, seen.rates), -1)
    ranges: list[NDArray[np.bool_]] = []
    among = np.zeros(len(place), dtype=np.bool_)
    for at in range(len(EDGES) + 1):
        among = among | (place == at)
        if min(seen.right[among].sum(), seen.wrong[among].sum()) >= LEAST_OUTCOMES:
            ranges.append(among)
            among = np.zeros(len(place), dtype=np.bool_)
    if len(ranges) < 2:
        raise ValueError(f"fewer than two ranges with {LEAST_OUTCOMES} right and wrong answers: train for longer")
    ranges[-1] |= among
    return ranges


# -- the command ------------------------------------------------------------------------------------------------------

TASKS = ("graded", "hard")
WORLDS = (1000, 1001, 1002, 1003)
BUDGET = 24_000

SPLITS = ("est", "knapsack", "hora", "sgpo", "dars", "vip", "cures", "gvm")
CHOICES = ("mopps", "vade", "mmr1", "greso", "prime-rl-pools")
CHECKS = ("pods", "maxrl", "speed")


def measure(starts: Path, task: str, method: str) -> TabulatedObjective:
    """In a process of its own. `starts`: folder of starting models."""
    torch.set_num_threads(1)
    rate, prompts = unpack(PACKED / f"{task}.jsonl.gz")["seconds"].settings[method]
    parts = []
    for seed in WORLDS:
        learner = Learner(*starting_point(task, seed, starts), rate, seed)
        parts.append(given(learner, Trial(learner, METHODS[method], prompts, seed), BUDGET))
    return tabulated(method, joined(parts))


def error(task: str, method: str, table: TabulatedObjective) -> list[float]:
    """The least and the most of measured over enumerated, both 1 at p = 0.5."""
    exact = effective_weight_of(method, task)
    ratios = [
        weight * exact.weight(0.5) / exact.weight(p) for p, weight in zip(table.rates, table.weights, strict=True)
    ]
    return [round(min(ratios), 3), round(max(ratios), 3)]


def main(prog: str, argv: Sequence[str]) -> None:
    argparse.ArgumentParser(prog=prog, description=__doc__).parse_args(argv)
    found: dict[str, dict[str, list[list[float]]]] = {task: {} for task in TASKS}
    checked: dict[str, list[float]] = {}
    planned = list(product(TASKS, (*SPLITS, *CHOICES, *CHECKS)))
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(os.cpu_count() or 1) as pool:
        tables = pool.map(partial(measure, Path(folder)), *zip(*planned, strict=True))
        for (task, method), table in zip(planned, tables, strict=True):
            print(task, method, *(f"{p:.3f}:{w:.2f}" for p, w in zip(table.rates, table.weights, strict=True)))
            if method in CHECKS:
                checked[f"{task}, {method}"] = error(task, method, table)
            else:
                found[task][method] = [[round(value, 4) for value in row] for row in (table.rates, table.weights)]
    TABLES.write_text(json.dumps(found) + "\n", encoding="utf-8")
    print(json.dumps(checked))
