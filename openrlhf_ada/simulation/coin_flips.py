"""Prompts that answer by coin flips: the very same policies, without a model, a GPU or a second of waiting.

For tests of what a policy does over many steps, and for choosing settings before a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from openrlhf_ada.core.policies.base import Draw, Policy
from openrlhf_ada.core.types import Ledger, PromptPool, Sample, TrainingGroup

PassRates = Callable[[int, NDArray[np.int64]], NDArray[np.float64]]
"""(training step, dataset rows) -> true pass rates, shape (B,). May drift with the step."""

Lengths = Callable[[float, np.random.Generator], int]
"""(score, rng) -> response tokens of one rollout."""


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """One step: closed pools and groups in batch order, what it cost, and the policy's own figures."""

    pools: Sequence[PromptPool]
    groups: Sequence[TrainingGroup]
    ledger: Ledger
    figures: dict[str, float]


def simulate(
    policy: Policy,
    batches: Iterator[Sequence[int]],
    pass_rates: PassRates,
    seed: int,
    length: Lengths = lambda score, rng: 1,
) -> Iterator[SimulatedStep]:
    """Run the policy, one step per batch of dataset rows. Reward and score are 1 with probability p, else 0.

    A critic's value, where the policy reads one, is the true pass rate.
    """
    rng = np.random.default_rng(seed)
    next_key = 0
    for step, batch in enumerate(batches):
        rows = np.asarray(batch, dtype=np.int64)
        rates = pass_rates(step, rows)
        pools = [PromptPool(next_key + i, row=int(row)) for i, row in enumerate(rows)]
        next_key += len(pools)
        if policy.reads_critic:
            for pool, rate in zip(pools, rates, strict=True):
                pool.critic_value = float(rate)
        truth = {pool.key: float(rate) for pool, rate in zip(pools, rates, strict=True)}
        dispatched = _sample(policy, pools, truth, rng, length)
        ledger = Ledger()
        groups = [policy.build(pool, rng) for pool in pools]
        for pool, group in zip(pools, groups, strict=True):
            ledger.record_group(pool.samples, group.indices)
        ledger.check(drawn=dispatched)
        yield SimulatedStep(pools, groups, ledger, policy.observe(pools))


def _sample(
    policy: Policy, pools: Sequence[PromptPool], truth: dict[int, float], rng: np.random.Generator, length: Lengths
) -> int:
    """Fill the pools until the policy has closed all of them; returns the number of rollouts."""
    still_open = {pool.key: pool for pool in pools}
    dispatched = 0
    while still_open:
        for action in policy.decide(list(still_open.values())):
            if not isinstance(action, Draw):
                del still_open[action.key]
                continue
            pool = still_open[action.key]
            outcomes = (rng.random(action.count) < truth[action.key]).astype(float)
            start = len(pool)
            pool.add(Sample(pool.key, start + i, m, m, length(m, rng)) for i, m in enumerate(outcomes.tolist()))
            dispatched += action.count
    return dispatched
