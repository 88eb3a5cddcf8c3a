"""How far to fill a GPU's engine with rollouts that may not be needed: one Ada-Seq-balance step in virtual time.

As benchmarks/scheduler.py, with engines of 256 and 1,024 slots: vLLM's figures for a GPU of less than 70 GB and for a
larger one. The time of a decoding step beyond 256 requests goes on as up to there. Means of two seeds.

    python benchmarks/speculation.py     last line: one JSON object; all in benchmarks/results/
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from machine import machine
from scheduler import HEADLINE, NUM_ENGINES, Workload, balance, pools

from openrlhf_ada.core.speculation import GPU_SPECULATION
from openrlhf_ada.simulation.forecast import Cluster, forecast
from openrlhf_ada.simulation.virtual_engines import GPU_LIKE

HERE = Path(__file__).parent
SEEDS = 2
WORKLOADS = (HEADLINE, Workload(3.0, 0.0))
PROMPTS = (128, 512, 2048)
SLOTS = (GPU_LIKE.slots, 1024)
FILLED = (0, 64, 128, 256, 384, 512, 1024)


def step(workload: Workload, prompts: int, slots: int, filled: int) -> dict[str, Any]:
    """Seconds, and the share of tokens sampled for nothing."""
    cluster = Cluster(NUM_ENGINES, replace(GPU_LIKE, slots=slots), filled)
    steps = [forecast(balance(), pools(prompts), workload.answer(seed), "stream", cluster) for seed in range(SEEDS)]
    return {
        "workload": workload.name,
        "prompts": prompts,
        "slots": slots,
        "filled": filled,
        "seconds": statistics.mean(s.seconds for s in steps),
        "waste_share": statistics.mean(s.waste_share for s in steps),
    }


def excess(rows: list[dict[str, Any]], filled: int) -> float:
    """The largest time at this filling, by the least at any, over workloads with engines of the most slots."""
    cases: dict[tuple[str, int], dict[int, float]] = {}
    for row in rows:
        if row["slots"] == SLOTS[-1]:
            cases.setdefault((row["workload"], row["prompts"]), {})[row["filled"]] = row["seconds"]
    return max(case[filled] / min(case.values()) for case in cases.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="128 prompts only; nothing is saved")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for workload in WORKLOADS:
        for prompts in PROMPTS[:1] if args.quick else PROMPTS:
            for slots in SLOTS:
                for filled in (f for f in FILLED if f <= slots):
                    rows.append(step(workload, prompts, slots, filled))
                    print(json.dumps(rows[-1]))
    figures = {f"most_over_best_{filled}": excess(rows, filled) for filled in FILLED} | {"chosen": GPU_SPECULATION}
    full = {"figures": figures, "steps": rows, "machine": machine()}
    if not args.quick:
        (HERE / "results" / "speculation.json").write_text(json.dumps(full, indent=1) + "\n")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
