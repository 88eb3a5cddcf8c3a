"""Derive the figures that seconds are computed from: the virtual engines' times, and what published step times imply.

Prints the constants of costs.py and of openrlhf_ada/simulation/step_seconds.py: two minutes.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.arena.costs import WAVE_ROLLOUTS
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import make_policy, resolve
from openrlhf_ada.core.policies import Draw, Policy
from openrlhf_ada.core.scheduling import Request, SchedulerName
from openrlhf_ada.core.types import PromptPool
from openrlhf_ada.simulation.forecast import Cluster, Forecast, forecast
from openrlhf_ada.simulation.step_seconds import ANSWER_TOKENS, ENGINES, PROMPT_TOKENS, STEP_MODELS, StepModel
from openrlhf_ada.simulation.virtual_engines import GPU_LIKE, SampleOf, VirtualFleet
from openrlhf_ada.simulation.workload import SYNTHETIC, SyntheticRollouts

CLUSTER = Cluster(ENGINES, GPU_LIKE, GPU_LIKE.slots)
PROMPTS = 512

PUBLISHED = {
    "1.5b": {"grpo-4": 102.0, "est": 128.0, "pos": 228.0, "balance": 290.0},
    "7b": {"grpo-4": 236.0, "est": 382.0, "pos": 333.0, "balance": 375.0},
}
"""Seconds of a step of 512 prompts (Reinforce-Ada, arXiv 2510.04996 v3), sampled in rounds. `est` draws 8 rollouts a
prompt on average and trains them all; the others train 4."""

PASS_RATES = ((1.5, 1.5), (0.8, 0.8), (3.0, 3.0), (0.5, 3.5))
"""Those of the published prompts are not known. The first is what the constants are from."""

MODELS = {"1.5b": (1.54e9, 989e12), "7b": (7.62e9, 312e12)}
"""Parameters; bfloat16 FLOP/s of a GPU at best (dense): H100 and A100."""


def policy(exit_rule: str) -> Policy:
    """Mode seq with waves of 8 and at most 32 rollouts."""
    return make_policy(
        resolve(AdaConfig(mode="seq", exit=exit_rule, wave=8, max_samples=32), n=4, advantage="dr_grpo", batch=PROMPTS)
    )


def wave(rollouts: int, answer: SampleOf) -> float:
    """Seconds of so many rollouts in one wave, dealt to the engines in turn."""
    fleet = VirtualFleet(ENGINES, GPU_LIKE, answer)
    for engine in range(ENGINES):
        fleet.submit(engine, [Request(i, 0) for i in range(engine, rollouts, ENGINES)])
    left = rollouts
    while left:
        left -= len(fleet.wait())
    return fleet.now


def wave_table(points: Sequence[int] = WAVE_ROLLOUTS) -> list[float]:
    """Means over as many seeds as small waves need."""
    return [
        statistics.mean(wave(n, replace(SYNTHETIC, seed=seed)) for seed in range(min(64, 2 + 8192 // n))) if n else 0.0
        for n in points
    ]


def step(exit_rule: str, prompts: int, scheduler: SchedulerName, answer: SyntheticRollouts = SYNTHETIC) -> Forecast:
    """One step of Ada-Seq in virtual time."""
    pools = [PromptPool(key, row=key) for key in range(prompts)]
    return forecast(policy(exit_rule), pools, answer, scheduler, CLUSTER)


def waves_of(exit_rule: str, prompts: int, answer: SyntheticRollouts = SYNTHETIC) -> list[list[int]]:
    """[prompts, rollouts] of each wave of such a step: which pools are still open follows from their samples."""
    rules, pools = policy(exit_rule), [PromptPool(key, row=key) for key in range(prompts)]
    open_pools, found = {pool.key: pool for pool in pools}, list[list[int]]()
    while open_pools:
        draws = [action for action in rules.decide(list(open_pools.values())) if isinstance(action, Draw)]
        open_pools = {draw.key: open_pools[draw.key] for draw in draws}
        for draw in draws:
            pool = open_pools[draw.key]
            pool.add(answer(Request(draw.key, len(pool) + i)) for i in range(draw.count))
        if draws:
            found.append([len(draws), sum(draw.count for draw in draws)])
    return found


def fitted(published: dict[str, float], sampling: dict[str, float]) -> StepModel:
    """Least squares in seconds: a factor on sampling, seconds per trained token, and a fixed part."""
    tokens = PROMPTS * (PROMPT_TOKENS + ANSWER_TOKENS)
    trained = {name: (8 if name == "est" else 4) * tokens for name in published}
    # Millions of tokens, so that the columns are of one size.
    columns = np.array([[sampling[name], trained[name] / 1e6, 1.0] for name in published])
    factor, per_million, fixed = np.linalg.lstsq(columns, np.array(list(published.values())))[0]
    return StepModel(float(factor), float(per_million) / 1e6, float(fixed))


def published_sampling(alpha: float = SYNTHETIC.alpha, beta: float = SYNTHETIC.beta) -> dict[str, float]:
    """Virtual seconds of the published methods' sampling, in rounds, with pass rates Beta(alpha, beta)."""
    seeds = [replace(SYNTHETIC, alpha=alpha, beta=beta, seed=seed) for seed in range(3)]
    uniform = {name: statistics.mean(wave(n * PROMPTS, s) for s in seeds) for name, n in (("grpo-4", 4), ("est", 8))}
    return uniform | {
        name: statistics.mean(step(name, PROMPTS, "rounds", s).seconds for s in seeds) for name in ("pos", "balance")
    }


def physics(name: str) -> float:
    """Seconds of training per token: 8 FLOPs a parameter (recomputation included) at 40 % of 8 GPUs' best."""
    parameters, peak = MODELS[name]
    return 8 * parameters / (0.4 * 8 * peak)


def main(prog: str, argv: Sequence[str]) -> None:
    argparse.ArgumentParser(prog=prog, description=__doc__).parse_args(argv)
    print("WAVE_SECONDS =", tuple(round(seconds, 2) for seconds in wave_table()))
    for name in PUBLISHED:
        print(f"{name}: {STEP_MODELS[name]}; by FLOPs {physics(name):.2g} s per token")
    for shape in PASS_RATES:
        sampling = published_sampling(*shape)
        print(f"pass rates Beta{shape}, in rounds:", {name: round(seconds, 1) for name, seconds in sampling.items()})
        for name, published in PUBLISHED.items():
            print(f"  {name}: {fitted(published, sampling)}")
