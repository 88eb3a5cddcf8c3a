"""What the method itself costs: decisions per sample, memory per open prompt, the split of a budget. No model runs.

Decision code is everything that a policy does with a sample: taking it into the pool, deciding, building the group,
learning from it. Figures are medians over repetitions.

    python benchmarks/core.py [--quick]     last line: one JSON object; full results in benchmarks/results/core.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine

from openrlhf_ada.core.allocation import allocate, priority
from openrlhf_ada.core.estimators import PassRateCounts
from openrlhf_ada.core.grouping import GroupBuilder
from openrlhf_ada.core.objectives import Objective
from openrlhf_ada.core.policies import Draw, Estimated, Memory, Policy, Sequential
from openrlhf_ada.core.selection import Selection
from openrlhf_ada.core.stopping import ExitRule
from openrlhf_ada.core.types import PromptPool, Sample

HERE = Path(__file__).parent
GROUP, WAVE, CAP = 4, 8, 32


def memory() -> Memory:
    return Memory(PassRateCounts(half_life=50, prior_mean=0.5, prior_strength=2, give_up=64), threshold=0.5)


def sequential(exit_counts: tuple[int, int], baseline: str, correction: str) -> Sequential:
    builder = GroupBuilder(
        Selection("balanced", GROUP, 0.5), "dr_grpo", baseline, correction, Objective("log"), floor=0.02
    )
    return Sequential(ExitRule(*exit_counts, 0.5), WAVE, CAP, builder, memory() if baseline == "estimator" else None)


def estimated() -> Estimated:
    builder = GroupBuilder(Selection("all", WAVE, 0.5), "dr_grpo", "pool", "paper", Objective("log"), floor=0.02)
    return Estimated(WAVE, 2, CAP, "inverse_sqrt", 0.02, builder, memory())


POLICIES: dict[str, Callable[[], Policy]] = {
    "seq pos": lambda: sequential((1, 0), "pool", "none"),
    "seq balance": lambda: sequential((2, 2), "pool", "none"),
    "seq balance, stratum, estimator": lambda: sequential((2, 2), "estimator", "stratum"),
    "est": estimated,
}


def draw(pool: PromptPool, count: int, rate: float, rng: np.random.Generator) -> list[Sample]:
    start = len(pool)
    return [Sample(pool.key, start + i, m, m, 100) for i, m in enumerate((rng.random(count) < rate).astype(float))]


def decision_us(policy: Policy, prompts: int) -> float:
    """Microseconds per sample of one step; making up the samples is not counted."""
    rng = np.random.default_rng(0)
    rates = rng.beta(0.5, 1.0, prompts)
    pools = {key: PromptPool(key, row=key) for key in range(prompts)}
    still_open, spent, samples = dict(pools), 0.0, 0
    while still_open:
        start = time.perf_counter()
        actions = policy.decide(list(still_open.values()))
        spent += time.perf_counter() - start
        waves = {a.key: draw(pools[a.key], a.count, rates[a.key], rng) for a in actions if isinstance(a, Draw)}
        start = time.perf_counter()
        for action in actions:
            if isinstance(action, Draw):
                pools[action.key].add(waves[action.key])
                samples += action.count
            else:
                del still_open[action.key]
        spent += time.perf_counter() - start
    start = time.perf_counter()
    for pool in pools.values():
        policy.build(pool, rng)
    policy.observe(list(pools.values()))
    spent += time.perf_counter() - start
    return spent / samples * 1e6


def bytes_per_open_prompt(prompts: int, samples: int) -> float:
    """Memory of pools that hold so many samples each, with the counts of an estimator for every prompt."""
    rng = np.random.default_rng(0)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    pools = [PromptPool(key, row=key) for key in range(prompts)]
    for pool in pools:
        pool.add(draw(pool, samples, 0.1, rng))
    known = memory()
    known.counts.observe(range(prompts), [samples] * prompts, [0] * prompts)
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return (after - before) / prompts


def allocation_s(prompts: int) -> float:
    """Seconds to split a budget of 8 each among so many prompts."""
    rates = np.random.default_rng(0).beta(0.5, 1.0, prompts)
    start = time.perf_counter()
    allocate(priority("inverse_sqrt", rates, 0.02), 8 * prompts, 2, 32, np.arange(prompts))
    return time.perf_counter() - start


def median_of(repetitions: int, measure: Callable[[], float]) -> float:
    return statistics.median(measure() for _ in range(repetitions))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    args = parser.parse_args()
    repetitions = 3 if args.quick else 9
    decisions = {
        name: median_of(repetitions, lambda make=make: decision_us(make(), 2_000)) for name, make in POLICIES.items()
    }
    memories = {str(n): bytes_per_open_prompt(100_000, n) for n in ((WAVE,) if args.quick else (WAVE, 16, 24))}
    split = median_of(repetitions, lambda: allocation_s(1_000_000))
    record: dict[str, Any] = {
        "machine": machine(),
        "repetitions": repetitions,
        "us_per_sample": decisions,
        "bytes_per_open_prompt_by_samples": memories,
        "allocate_1e6_s": split,
    }
    if not args.quick:
        out = HERE / "results" / "core.json"
        out.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))
    print(
        json.dumps(
            {
                "us_per_sample": max(decisions.values()),
                "bytes_per_open_prompt": max(memories.values()),
                "allocate_1e6_s": split,
            }
        )
    )


if __name__ == "__main__":
    main()
