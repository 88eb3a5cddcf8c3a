"""Does it pay to divide a prompt's value by the length of its answers? Two tasks of the arena, at equal tokens.

python benchmarks/choice_per_token.py [--quick] [--out runs/choice-per-token]      last line: one JSON; can be resumed

Every method has the same learning rate and number of prompts per step, so this tells criteria apart and nothing else.
The interval is of the mean difference over seeds, from a bootstrap.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine

from openrlhf_ada.arena.campaign import Cell, Results, run_cells
from openrlhf_ada.arena.costs import COSTS, mean_accuracy

METHODS = ("choose-4-share", "choose-4-per-token")
RATE, PROMPTS = 1e-3, 16
RESULTS = Path(__file__).parent / "results" / "choice_per_token.json"


def cells(tasks: tuple[str, ...], seeds: int, tokens: int) -> list[Cell]:
    return [
        Cell(task, method, RATE, PROMPTS, seed, tokens, "tokens")
        for seed in range(seeds)
        for task in tasks
        for method in METHODS
    ]


def areas(results: Results, task: str, method: str, seeds: int, tokens: int) -> np.ndarray:
    """Mean held-out accuracy over the tokens, one for each seed."""
    found = []
    for seed in range(seeds):
        result = results.by_cell[Cell(task, method, RATE, PROMPTS, seed, tokens, "tokens")]
        found.append(mean_accuracy(COSTS["tokens"](result["spent"]), result["accuracy"], tokens))
    return np.array(found)


def figures(results: Results, tasks: tuple[str, ...], seeds: int, tokens: int) -> dict[str, Any]:
    rng, found = np.random.default_rng(0), {}
    for task in tasks:
        by_method = {method: areas(results, task, method, seeds, tokens) for method in METHODS}
        gain = by_method["choose-4-per-token"] - by_method["choose-4-share"]
        means = gain[rng.integers(0, seeds, (10_000, seeds))].mean(axis=1)
        low, high = np.quantile(means, (0.025, 0.975))
        found[task] = {method: round(float(area.mean()), 4) for method, area in by_method.items()} | {
            "gain": round(float(gain.mean()), 4),
            "interval": [round(float(low), 4), round(float(high), 4)],
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs/choice-per-token"))
    args = parser.parse_args()
    tasks, seeds, tokens = (("graded",), 2, 20_000) if args.quick else (("graded", "curriculum"), 4, 80_000)
    results = Results(args.out / f"{tokens}.jsonl")
    for cell in run_cells(cells(tasks, seeds, tokens), results, processes=2):
        print(cell.task, cell.method, cell.seed, flush=True)
    record = {"tasks": figures(results, tasks, seeds, tokens), "seeds": seeds, "tokens": tokens} | {
        "machine": machine()
    }
    if not args.quick:
        RESULTS.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
