"""Prompts that answer by coin flips: the very same policies, without a model, a GPU or a second of waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from openrlhf_ada.core.policies.base import Draw, Policy
from openrlhf_ada.core.types import Ledger, PromptPool, Sample, TrainingGroup


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
    pass_rates: Callable[[int, NDArray[np.int64]], NDArray[np.float64]],
    seed: int,
) -> Iterator[SimulatedStep]:
    """Run the policy, one step per batch of dataset rows. Reward and score are 1 with probability p, else 0.

    `pass_rates`: (training step, dataset rows) -> true pass rates, shape (B,). A critic's value, where the policy
    reads one, is the true pass rate.
    """
    rng = np.random.default_rng(seed)
    num_pools = 0
    for step, batch in enumerate(batches):
        rows = np.asarray(batch, dtype=np.int64)
        pools = [PromptPool(num_pools + i, row=row) for i, row in enumerate(rows.tolist())]
        num_pools += len(pools)
        truth = {pool.key: rate for pool, rate in zip(pools, pass_rates(step, rows).tolist(), strict=True)}
        for pool in pools:
            pool.critic_value = truth[pool.key]
        _sample(policy, pools, truth, rng)
        ledger = Ledger()
        groups = [policy.build(pool, rng) for pool in pools]
        for pool, group in zip(pools, groups, strict=True):
            ledger.record_group(pool.samples, group.indices)
        yield SimulatedStep(pools, groups, ledger, policy.observe(pools))


def _sample(policy: Policy, pools: Sequence[PromptPool], truth: dict[int, float], rng: np.random.Generator) -> None:
    """Fill the pools until the policy has closed all of them."""
    still_open = {pool.key: pool for pool in pools}
    while still_open:
        for action in policy.decide(list(still_open.values())):
            pool = still_open[action.key]
            if isinstance(action, Draw):
                outcomes = (rng.random(action.count) < truth[pool.key]).astype(float).tolist()
                pool.add(Sample(pool.key, i, m, m, 1) for i, m in enumerate(outcomes, start=len(pool)))
            else:
                del still_open[pool.key]
