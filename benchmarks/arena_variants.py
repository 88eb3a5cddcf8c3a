"""Does `counted` learn more if counts fade slowly, or if ratings predict? Does uniform sampling with larger settings?

python benchmarks/arena_variants.py [--out runs/arena-variants]      about 20 minutes on two cores; can be resumed

Mean accuracy over a trial's budget on two tuning worlds, with the better of the learning rates. Writes
benchmarks/results/arena_variants.json; its last line is the same as one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean

from openrlhf_ada.arena.campaign import TRIALS, Cell, Results, run_cells
from openrlhf_ada.arena.costs import budget_of, unit_of
from openrlhf_ada.arena.methods import METHODS
from openrlhf_ada.cli.progress_line import progress_line

RESULTS = Path(__file__).parent / "results" / "arena_variants.json"

BUDGET, WORLDS = 24_000, (1000, 1001)

COUNTED = METHODS["counted"]
VARIANTS = {
    f"counted, {name}": replace(COUNTED, ada=COUNTED.ada | ada)
    for name, ada in (
        ("half-life 50", {"half_life": 50.0}),
        ("half-life 200", {"half_life": 200.0}),
        ("half-life 1000", {"half_life": 1000.0}),
        ("ratings", {"estimator": "rating"}),
    )
}
# Also in the processes of the trials, which import this file.
METHODS.update(VARIANTS)

LARGE = "uniform-4-twice-skip"

GRIDS: Sequence[tuple[str, str, Sequence[str], Sequence[float], Sequence[int]]] = (
    ("graded", "rollouts", list(VARIANTS), (3e-4, 1e-3), (8, 32, 256)),
    ("hard", "rollouts", list(VARIANTS), (3e-4, 1e-3), (32, 128)),
    ("many", "seconds", [LARGE], (3e-3, 6e-3, 1.2e-2), (512, 1024, 2048)),
    ("unsolvable", "seconds", [LARGE], (3e-3, 6e-3, 1.2e-2), (512, 1024)),
)
"""Task, cost, methods, learning rates, prompts of a step."""


def cells_of(task: str, cost: str, method: str, rate: float, prompts: int) -> list[Cell]:
    """One on each world."""
    return [Cell(task, method, rate, prompts, world, budget_of(BUDGET, cost), unit_of(cost)) for world in WORLDS]


def all_cells() -> Iterator[Cell]:
    for task, cost, methods, rates, prompts in GRIDS:
        for of in product(methods, rates, prompts):
            yield from cells_of(task, cost, *of)


def figures(results: Results) -> dict[str, dict[str, dict[int, dict[str, float]]]]:
    """By task, method and prompts of a step: the best rate, and the mean accuracy with it."""
    found: dict[str, dict[str, dict[int, dict[str, float]]]] = {}
    for task, cost, methods, rates, sizes in GRIDS:
        for method, prompts in product(methods, sizes):
            limit = budget_of(BUDGET, cost)
            areas = {
                rate: mean(results.area(cell, cost, limit) for cell in cells_of(task, cost, method, rate, prompts))
                for rate in rates
            }
            best = max(areas, key=lambda rate: areas[rate])
            of_method = found.setdefault(task, {}).setdefault(method, {})
            of_method[prompts] = {"rate": best, "mean_accuracy": round(areas[best], 4)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/arena-variants"), metavar="DIR")
    results = Results(parser.parse_args().out / TRIALS)
    planned = list(all_cells())
    done = sum(cell in results.by_cell for cell in planned)
    with progress_line() as show:
        for _ in run_cells(planned, results, os.cpu_count() or 1):
            done += 1
            show(f"{done} of {len(planned)} trials")
    found = figures(results)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
