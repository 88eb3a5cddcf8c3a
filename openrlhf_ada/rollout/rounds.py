"""The reference scheduler `rounds`: every open prompt gets its wave, then all are waited for.

It carries out what a policy decides and decides nothing itself. The faster schedulers must produce the same pools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from openrlhf_ada.core.policies import Close, Draw, Policy
from openrlhf_ada.core.types import PromptKey, PromptPool, Sample

Payload = TypeVar("Payload")

SampleWave = Callable[[Sequence[Draw]], Mapping[PromptKey, Sequence[Payload]]]
"""Draws `count` rollouts for each key and returns them in order of dispatch."""

Describe = Callable[[PromptKey, int, Payload], Sample]
"""(key, index, payload) -> the scalars that the policy may see."""


@dataclass(slots=True)
class FinishedPool(Generic[Payload]):
    """A closed pool and, at the same positions, what the plumbing keeps of each sample."""

    pool: PromptPool
    payloads: list[Payload] = field(default_factory=list[Payload])


@dataclass(slots=True)
class RoundsResult(Generic[Payload]):
    """Finished pools in the order they were given, how many waves it took, and how many samples were dispatched."""

    finished: list[FinishedPool[Payload]]
    num_rounds: int
    num_dispatched: int


def run_rounds(
    policy: Policy,
    pools: Sequence[PromptPool],
    sample_wave: SampleWave[Payload],
    describe: Describe[Payload],
    on_round: Callable[[int, int], None] = lambda closed, total: None,
) -> RoundsResult[Payload]:
    """Sample all prompts, whose pools come empty, until the policy has closed them.

    `on_round(closed, total)` reports progress after each wave. Raises RuntimeError if a wave comes back with another
    number of samples than was asked for.
    """
    open_pools = {pool.key: FinishedPool[Payload](pool) for pool in pools}
    finished: dict[PromptKey, FinishedPool[Payload]] = {}
    num_rounds = num_dispatched = 0
    while open_pools:
        draws: list[Draw] = []
        for action in policy.decide([entry.pool for entry in open_pools.values()]):
            if isinstance(action, Close):
                finished[action.key] = open_pools.pop(action.key)
            else:
                draws.append(action)
        if draws:
            num_rounds += 1
            num_dispatched += sum(draw.count for draw in draws)
            _collect(open_pools, draws, sample_wave(draws), describe)
        on_round(len(finished), len(pools))
    return RoundsResult([finished[pool.key] for pool in pools], num_rounds, num_dispatched)


def _collect(
    open_pools: dict[PromptKey, FinishedPool[Payload]],
    draws: Sequence[Draw],
    drawn: Mapping[PromptKey, Sequence[Payload]],
    describe: Describe[Payload],
) -> None:
    for draw in draws:
        payloads = drawn[draw.key]
        if len(payloads) != draw.count:
            raise RuntimeError(
                f"prompt {draw.key}: asked for {draw.count} samples, the engines returned {len(payloads)}"
            )
        entry = open_pools[draw.key]
        start = len(entry.pool)
        entry.pool.add(describe(draw.key, start + i, payload) for i, payload in enumerate(payloads))
        entry.payloads.extend(payloads)
