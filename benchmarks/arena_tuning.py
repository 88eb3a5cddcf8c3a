"""Does successive halving find the setting that is best of all? Every setting on every tuning world, then replayed.

python benchmarks/arena_tuning.py [--out runs/arena-tuning]      half an hour on two cores; can be resumed
"""

from __future__ import annotations

import argparse
import os
import sys
from itertools import permutations, product
from pathlib import Path
from statistics import mean, median

import numpy as np

from openrlhf_ada.arena.campaign import PROMPTS, RATES, RUNGS, TRIALS, Cell, Result, Results, Setting, run_cells, tuned
from openrlhf_ada.arena.costs import COSTS, budget_of

TASK, METHODS, BUDGET = "graded", ("uniform-8", "balance", "est"), 24_000
TUNED_FOR = ("rollouts", "seconds")
SETTINGS: list[Setting] = list(product(RATES, PROMPTS))
WORLDS = [rung.seed for rung in RUNGS]


def cell(method: str, setting: Setting, world: int, cost: str) -> Cell:
    """`cost`: what the method is tuned for."""
    return Cell(TASK, method, *setting, world, budget_of(BUDGET, cost), cost)


def replayed(results: Results, method: str, worlds: tuple[int, ...], cost: str) -> Results:
    """What the rungs would have seen with these worlds in their roles: a shorter trial begins like a longer one."""
    seen = Results(Path(os.devnull))
    for rung, world in zip(RUNGS, worlds, strict=True):
        for setting in SETTINGS:
            result = results.by_cell[cell(method, setting, world, cost)]
            limit = budget_of(BUDGET // rung.part, cost)
            seen.by_cell[Cell(TASK, method, *setting, rung.seed, limit, cost)] = beginning(result, limit, cost)
    return seen


def beginning(result: Result, limit: int, cost: str) -> Result:
    """Up to the first measurement at so much cost, or to the end."""
    end = int(np.searchsorted(COSTS[cost](result["spent"]), limit)) + 1
    return {name: result[name][:end] for name in ("spent", "accuracy")}


def figures(results: Results, method: str, cost: str) -> str:
    """One row of the table in docs/arena.md."""
    limit = min(results.total(cell(method, setting, world, cost), cost) for setting in SETTINGS for world in WORLDS)
    area = {s: mean(results.area(cell(method, s, world, cost), cost, limit) for world in WORLDS) for s in SETTINGS}
    best = max(area, key=lambda setting: area[setting])
    found = [
        tuned(replayed(results, method, worlds, cost), TASK, method, BUDGET, cost) for worlds in permutations(WORLDS)
    ]
    worst = max(area[best] - area[setting] for setting in found)
    spread = area[best] - median(area.values())
    cells = (
        f"`{method}`",
        cost,
        f"{best[0]:g}, {best[1]}",
        f"{sum(setting == best for setting in found)} of {len(found)}",
    )
    return "| " + " | ".join((*cells, f"{100 * worst:.2f}", f"{100 * spread:.1f}")) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/arena-tuning"))
    results = Results(parser.parse_args().out / TRIALS)
    cells = [cell(*of) for of in product(METHODS, SETTINGS, WORLDS, TUNED_FOR)]
    for done, _ in enumerate(run_cells(cells, results, os.cpu_count() or 1), start=1):
        print(f"\r{done} trials", end="", file=sys.stderr)
    print("| method | cost | best: rate, prompts | found | worst loss, points | best less median, points |")
    print("|---|---|---|---|---|---|")
    for method, cost in product(METHODS, TUNED_FOR):
        print(figures(results, method, cost))


if __name__ == "__main__":
    main()
