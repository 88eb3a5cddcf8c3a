"""Which weight do methods really give a prompt of pass rate p, where no formula says it?

python benchmarks/arena_weights.py      about 10 minutes on two cores

Each method is trained on four tuning worlds, with the setting that is tuned for seconds. Writes
openrlhf_ada/arena/results/weights.json. Methods whose weight can be enumerated are measured as a check: the last line
of output is a JSON object with the ratio of both, at the least and at the most.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path

import torch

from openrlhf_ada.arena.campaign import starting_point
from openrlhf_ada.arena.given_weights import given, joined, tabulated
from openrlhf_ada.arena.learner import Learner
from openrlhf_ada.arena.methods import METHODS
from openrlhf_ada.arena.page import PACKED, unpack
from openrlhf_ada.arena.trial import Trial
from openrlhf_ada.arena.weights import TABLES, effective_weight_of
from openrlhf_ada.core.objectives import TabulatedObjective

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


def main() -> None:
    found: dict[str, dict[str, list[list[float]]]] = {task: {} for task in TASKS}
    checked: dict[str, list[float]] = {}
    planned = list(product(TASKS, (*SPLITS, *CHOICES, *CHECKS)))
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(os.cpu_count() or 1) as pool:
        measured: Callable[[str, str], TabulatedObjective] = partial(measure, Path(folder))
        for (task, method), table in zip(planned, pool.map(measured, *zip(*planned, strict=True)), strict=True):
            print(task, method, *(f"{p:.3f}:{w:.2f}" for p, w in zip(table.rates, table.weights, strict=True)))
            if method in CHECKS:
                checked[f"{task}, {method}"] = error(task, method, table)
            else:
                found[task][method] = [[round(value, 4) for value in row] for row in (table.rates, table.weights)]
    TABLES.write_text(json.dumps(found) + "\n", encoding="utf-8")
    print(json.dumps(checked))


if __name__ == "__main__":
    main()
