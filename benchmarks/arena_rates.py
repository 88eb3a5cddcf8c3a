"""What does a third of the learning rate cost? It keeps more of the answers' variety (arena_diversity.py).

python benchmarks/arena_rates.py [--out runs/arena-rates]      about ten minutes on two cores; can be resumed

Methods that are best with the largest rate, 0.003, run again with 0.001 and the same size of a step, at equal seconds,
on the ten worlds that count. Their cost to the target is compared with that of the committed results, world by world:
their own at the tuned rate, GRPO's, and the cheapest uniform sampling's; means with 95 % intervals. Writes
benchmarks/results/arena_rates.json; its last line is the same as one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path
from statistics import mean

import openrlhf_ada.arena
from openrlhf_ada.arena.aim import GRPO, beside, cheapest_uniform
from openrlhf_ada.arena.campaign import TRIALS, Cell, Results, run_cells
from openrlhf_ada.arena.costs import budget_of, unit_of
from openrlhf_ada.arena.page import unpack
from openrlhf_ada.arena.tables import Finals
from openrlhf_ada.cli.progress_line import progress_line

RESULTS = Path(__file__).parent / "results" / "arena_rates.json"
PACKED = Path(openrlhf_ada.arena.__file__).parent / "results"

TASKS = ("graded", "hard", "varied")
"""Those of arena_diversity.py. On `curriculum` the smaller rate is the tuned one."""

NAMES, RATE, COST, BUDGET, SEEDS = ("first-right", "raft-twice"), 1e-3, "seconds", 24_000, 10


def cells_of(finals: Finals, name: str) -> list[Cell]:
    """One on each world."""
    prompts, limit = finals.settings[name][1], budget_of(BUDGET, COST)
    return [Cell(finals.task, name, RATE, prompts, seed, limit, unit_of(COST)) for seed in range(SEEDS)]


def all_cells(by_task: dict[str, Finals]) -> Iterator[Cell]:
    for finals in by_task.values():
        for name in NAMES:
            yield from cells_of(finals, name)


def figures(finals: Finals, results: Results) -> dict[str, dict[str, list[float] | float]]:
    """By method: (ratio, low, high) beside each of the others, seeds that missed, mean accuracy at the end."""
    found: dict[str, dict[str, list[float] | float]] = {}
    for name in NAMES:
        slow = f"{name} at {RATE:g}"
        runs = [results.by_cell[cell] for cell in cells_of(finals, name)]
        both = replace(finals, runs={**finals.runs, slow: runs})
        others = {"tuned": name, "grpo": GRPO, "uniform": cheapest_uniform(finals), "first-right": "first-right"}
        found[slow] = {what: _rounded(both, slow, other) for what, other in others.items()}
        found[slow] |= {
            "missed": both.to_target[slow][1],
            "final": round(mean(run["accuracy"][-1] for run in runs), 4),
        }
    return found


def _rounded(finals: Finals, ours: str, other: str) -> list[float]:
    return [round(value, 3) for value in astuple(beside(finals, ours, other))[1:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/arena-rates"), metavar="DIR")
    results = Results(parser.parse_args().out / TRIALS)
    by_task = {task: unpack(PACKED / f"{task}.jsonl.gz")[COST] for task in TASKS}
    planned = list(all_cells(by_task))
    done = sum(cell in results.by_cell for cell in planned)
    with progress_line() as show:
        for _ in run_cells(planned, results, os.cpu_count() or 1):
            done += 1
            show(f"{done} of {len(planned)} trials")
    found = {task: figures(finals, results) for task, finals in by_task.items()}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
