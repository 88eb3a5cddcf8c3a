"""What prompts that are never solved cost in Ada-Est, and when one that becomes solvable is found again.

Simulated prompts with normal logits, a share of them at pass rate 0, 32 a step, 8 rollouts on average, 20 visits to
each prompt. `whole`: their share of the rollouts of all visits; `late`: of the last ten, when they are given up.

    python benchmarks/give_up.py [--quick]     last line: one JSON object; full results in benchmarks/results/
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from machine import machine
from numpy.typing import NDArray

from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import make_policy, resolve
from openrlhf_ada.core.policies import Estimated
from openrlhf_ada.simulation.coin_flips import simulate

HERE = Path(__file__).parent
BATCH, VISITS, BUDGET = 32, 20, 8
EPISODES = (16, 64, 128, 256)
UNSOLVABLE = (0.05, 0.2)
RATES = (0.01, 0.02, 0.05, 0.1, 0.3)


def policy() -> Estimated:
    """Ada-Est with the defaults of its flags: every one of 8 rollouts on average is trained."""
    made = make_policy(resolve(AdaConfig(mode="est"), n=BUDGET, advantage="dr_grpo", batch=BATCH))
    assert isinstance(made, Estimated)
    return made


def shares(episode: int, unsolvable: float) -> dict[str, float]:
    """Shares of prompts at pass rate 0: of the prompts, and of the rollouts."""
    rows, rng = episode * BATCH, np.random.default_rng(1)
    rates = 1 / (1 + np.exp(-rng.normal(-1, 2, rows)))
    rates[rng.random(rows) < unsolvable] = 0.0

    def batches() -> Iterator[list[int]]:
        for _ in range(VISITS):
            yield from rng.permutation(rows).reshape(episode, BATCH).tolist()

    def truth(step: int, visited: NDArray[np.int64]) -> NDArray[np.float64]:
        return rates[visited]

    drawn = np.zeros((VISITS, 2))
    for number, step in enumerate(simulate(policy(), batches(), truth, seed=0)):
        for pool in step.pools:
            drawn[number // episode, int(rates[pool.row] > 0)] += len(pool)
    late = drawn[VISITS // 2 :]
    return {
        "prompts": round(float((rates == 0).mean()), 4),
        "whole": round(float(drawn[:, 0].sum() / drawn.sum()), 4),
        "late": round(float(late[:, 0].sum() / late.sum()), 4),
    }


def odds(p: float) -> dict[str, float]:
    """Exact: P(given up by `give_up` rollouts in a row), and visits and rollouts until a positive once it is."""
    made = policy()
    given_up = (1 - p) ** made.memory.counts.give_up
    visits = 1 / (1 - (1 - p) ** made.min_samples)
    return {"given up": given_up, "visits": visits, "rollouts": visits * made.min_samples}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the two shorter episodes")
    args = parser.parse_args()
    table: dict[str, dict[str, float]] = {}
    for episode in EPISODES[:2] if args.quick else EPISODES:
        for unsolvable in UNSOLVABLE:
            name = f"{episode} steps, {unsolvable:.0%} unsolvable"
            table[name] = shares(episode, unsolvable)
            print(name, table[name], flush=True)
    result = {"shares": table, "odds": {str(p): odds(p) for p in RATES}}
    if not args.quick:
        text = json.dumps({"machine": machine()} | result, indent=2)
        (HERE / "results" / "give_up.json").write_text(text + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
