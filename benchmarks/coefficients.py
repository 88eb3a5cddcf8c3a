"""The largest coefficient of a trained sample, by enumeration of all pools in which sampling can end.

Rewards are 0 and 1. Predictions are those from 0 to 1 in steps of 1/20. A prompt of Ada-Est whose prediction is at the
floor has the highest priority, so it draws fewer rollouts than the mean only when it was given up: both are printed.

    python benchmarks/coefficients.py [--quick]     last line: one JSON object; results in benchmarks/results/
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine

from openrlhf_ada.config.method_rules import check_settings
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import Settings, make_policy, resolve
from openrlhf_ada.core.policies import Sequential
from openrlhf_ada.core.stopping_paths import State
from openrlhf_ada.core.types import PromptPool, Sample

HERE = Path(__file__).parent
PREDICTIONS = tuple(np.linspace(0.0, 1.0, 21).tolist())

EST_ALL: Mapping[str, Any] = {"mode": "est", "n": 8}
EST_SOME: Mapping[str, Any] = {"mode": "est", "n": 4, "budget": 8.0}
SEQ: Mapping[str, Any] = {"mode": "seq", "n": 4}

POOL: Mapping[str, Any] = {"baseline": "pool"}
STRATUM: Mapping[str, Any] = {"correction": "stratum"}
PPO: Mapping[str, Any] = {"advantage": "gae"}

CASES: dict[str, Mapping[str, Any]] = {
    "seq": SEQ,
    "seq, group_norm": {**SEQ, "advantage": "group_norm"},
    "seq, gae": {**SEQ, **PPO},
    "seq, paper": {**SEQ, "correction": "paper"},
    "seq, stratum, pool": {**SEQ, **STRATUM, **POOL},
    "seq, stratum": {**SEQ, **STRATUM},
    "seq, stratum, gae": {**SEQ, **STRATUM, **PPO},
    "seq, positives": {**SEQ, "correction": "positives"},
    "est, all, pool": {**EST_ALL, **POOL},
    "est, all": EST_ALL,
    "est, all, group_norm": {**EST_ALL, "advantage": "group_norm"},
    "est, all, rloo, loo": {**EST_ALL, "advantage": "rloo", "baseline": "loo"},
    "est, all, gae": {**EST_ALL, **PPO},
    "est, all, stratum, pool": {**EST_ALL, **STRATUM, **POOL},
    "est, all, stratum": {**EST_ALL, **STRATUM},
    "est, all, stratum, gae": {**EST_ALL, **STRATUM, **PPO},
    "est, 4 of 8, pool": {**EST_SOME, **POOL},
    "est, 4 of 8": EST_SOME,
    "est, 4 of 8, gae": {**EST_SOME, **PPO},
}
"""By our flags, `n` (--rollout.n_samples_per_prompt) and `advantage` (dr_grpo if left out). Others have defaults."""


def settings_of(case: Mapping[str, Any]) -> Settings:
    flags = {name: value for name, value in case.items() if name not in ("n", "advantage")}
    settings = resolve(AdaConfig(**flags), n=case["n"], advantage=case.get("advantage", "dr_grpo"), batch=1)
    check_settings(settings)
    return settings


def states(settings: Settings, *, given_up: bool) -> Iterator[State]:
    """All (N, K) in which sampling can end; of Ada-Est those of a prompt that was given up, or of all others."""
    policy = make_policy(settings)
    if isinstance(policy, Sequential):
        yield from policy.plan.outcomes(0.5)
        return
    lower = settings.min_samples if given_up else int(settings.budget)
    upper = settings.min_samples if given_up else settings.max_samples
    yield from ((drawn, positives) for drawn in range(lower, upper + 1) for positives in range(drawn + 1))


def ended_with(drawn: int, positives: int, predicted: float) -> PromptPool:
    pool = PromptPool(0, [Sample(0, i, float(i < positives), float(i < positives), 1) for i in range(drawn)])
    pool.predicted = predicted
    return pool


def largest(settings: Settings, *, given_up: bool = False) -> float:
    """The largest |coefficient|."""
    policy, rng, found = make_policy(settings), np.random.default_rng(0), 0.0
    predictions = PREDICTIONS if settings.remembers else (0.5,)
    for (drawn, positives), predicted in itertools.product(states(settings, given_up=given_up), predictions):
        group = policy.build(ended_with(drawn, positives, predicted), rng)
        found = max(found, *(abs(c) for c in group.coefficients))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="no difference: a few seconds")
    parser.parse_args()
    table: dict[str, dict[str, float]] = {}
    for name, case in CASES.items():
        settings = settings_of(case)
        row = {"largest": round(largest(settings), 2)}
        if settings.mode == "est":
            row["given up"] = round(largest(settings, given_up=True), 2)
        table[name] = row
        print(f"{name:42} {row}", flush=True)
    (HERE / "results" / "coefficients.json").write_text(json.dumps({"machine": machine()} | table, indent=2) + "\n")
    print(json.dumps(table))


if __name__ == "__main__":
    main()
