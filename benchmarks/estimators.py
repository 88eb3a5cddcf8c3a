"""How well pass rates are known before a prompt is sampled, on simulated prompts whose pass rates drift.

Logits start normal and rise, each prompt at its own pace (gamma, mean `pace` per 100 steps). Figures are root mean
square errors of counts, of ratings, and of the mean of the prompt's last group, from the second visit on.

    python benchmarks/estimators.py [--quick]     last line: one JSON object; full results in benchmarks/results/
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from machine import machine
from numpy.typing import NDArray

from openrlhf_ada.core.estimators import PassRateCounts, RateEstimator
from openrlhf_ada.core.grouping import GroupBuilder
from openrlhf_ada.core.policies import Estimated, Memory
from openrlhf_ada.core.ratings import PromptRatings
from openrlhf_ada.core.selection import Selection
from openrlhf_ada.simulation.coin_flips import simulate

HERE = Path(__file__).parent
ROWS, STEPS = 512, 240
PACES = (0.0, 0.3, 1.0, 3.0)
HALF_LIVES = (10, 25, 50, 100, 200)
BATCHES = (32, 8)


def batches(size: int) -> Iterator[Sequence[int]]:
    rng = np.random.default_rng(3)
    for _ in range(-(-STEPS * size // ROWS)):
        order = rng.permutation(ROWS)
        yield from (order[i : i + size].tolist() for i in range(0, ROWS, size))


def errors(estimator: RateEstimator, pace: float, batch: int) -> tuple[float, float]:
    """(ours, last group)."""
    rng = np.random.default_rng(1)
    start, speed = rng.normal(-1, 2, ROWS), pace / 100 * rng.gamma(2, 0.5, ROWS)

    def rates(step: int, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        return 1 / (1 + np.exp(-(start + speed * step)[rows]))

    policy = Estimated(
        8, 2, 32, "inverse_sqrt", 0.02, GroupBuilder(Selection("all", 8, 0.5), "dr_grpo"),
        Memory(estimator, 0.5),
    )  # fmt: skip
    last: dict[int, float] = {}
    ours, theirs = [], []
    for number, step in enumerate(simulate(policy, batches(batch), rates, seed=0)):
        for pool in step.pools:
            truth = float(rates(number, np.array([pool.row]))[0])
            if pool.row in last:
                ours.append(pool.predicted - truth)
                theirs.append(last[pool.row] - truth)
            last[pool.row] = float(pool.scores.mean())
    return float(np.sqrt(np.mean(np.square(ours)))), float(np.sqrt(np.mean(np.square(theirs))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one batch size and pace")
    args = parser.parse_args()
    table: dict[str, dict[str, float]] = {}
    for batch in BATCHES[:1] if args.quick else BATCHES:
        for pace in (1.0,) if args.quick else PACES:
            row = {
                str(half_life): errors(PassRateCounts(half_life, 0.5, 2, 64), pace, batch) for half_life in HALF_LIVES
            }
            row["rating"] = errors(PromptRatings(0.5, 64), pace, batch)
            name = f"{ROWS // batch} steps per episode, logits +{pace} per 100 steps"
            table[name] = {k: round(ours, 4) for k, (ours, _) in row.items()}
            table[name]["last group"] = round(row["50"][1], 4)
            print(name, table[name], flush=True)
    if not args.quick:
        record = {"machine": machine(), "rmse_by_half_life": table}
        (HERE / "results" / "estimators.json").write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(table))


if __name__ == "__main__":
    main()
