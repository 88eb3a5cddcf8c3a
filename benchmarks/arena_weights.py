"""Which weight do published methods really give a prompt of pass rate p, where no formula says it?

python benchmarks/arena_weights.py      about 10 minutes on one core

Each method is trained on four tuning worlds, with the setting that is tuned for seconds. Writes
openrlhf_ada/arena/results/weights.json. Methods whose weight can be enumerated are measured as a check: the last line
of output is a JSON object with the ratio of both, at the least and at the most.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch

from openrlhf_ada.arena.campaign import starting_point
from openrlhf_ada.arena.learner import Learner
from openrlhf_ada.arena.methods import METHODS
from openrlhf_ada.arena.page import PACKED, unpack
from openrlhf_ada.arena.trial import Trial
from openrlhf_ada.arena.weights import MEASURED, joined, tabulated, visits
from openrlhf_ada.config.schema import MATCHED
from openrlhf_ada.config.settings import matched
from openrlhf_ada.core.objectives import TabulatedObjective

TASKS = ("graded", "hard")
WORLDS = (1000, 1001, 1002, 1003)
BUDGET = 24_000

SPLITS = ("knapsack", "hora", "sgpo", "dars", "vip", "cures")
CHOICES = ("mopps", "vade", "mmr1", "greso", "prime-rl-pools")
CHECKS = ("pods", "maxrl")


def measured(task: str, method: str, starts: Path) -> TabulatedObjective:
    rate, prompts = unpack(PACKED / f"{task}.jsonl.gz")["seconds"].settings[method]
    parts = []
    for seed in WORLDS:
        learner = Learner(*starting_point(task, seed, starts), rate, seed)
        parts.append(visits(learner, Trial(learner, METHODS[method], prompts, seed), BUDGET))
    return tabulated(method, joined(parts))


def ratios(method: str, table: TabulatedObjective) -> list[float]:
    """Measured over enumerated, at the rates of the table, both 1 at p = 0.5."""
    exact = matched(MATCHED + method)
    return [table.weight(p) / (exact.weight(p) / exact.weight(0.5)) for p in table.rates]


def main() -> None:
    torch.set_num_threads(1)
    tables: dict[str, dict[str, list[list[float]]]] = {task: {} for task in TASKS}
    checked: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for task in TASKS:
            for method in (*SPLITS, *CHOICES, *CHECKS):
                table = measured(task, method, Path(folder))
                if method in CHECKS:
                    found = ratios(method, table)
                    checked[f"{task}, {method}"] = [round(min(found), 3), round(max(found), 3)]
                else:
                    tables[task][method] = [[round(value, 4) for value in row] for row in (table.rates, table.weights)]
                print(task, method, *(f"{p:.3f}:{w:.2f}" for p, w in zip(table.rates, table.weights, strict=True)))
    MEASURED.write_text(json.dumps(tables) + "\n", encoding="utf-8")
    print(json.dumps(checked))


if __name__ == "__main__":
    main()
