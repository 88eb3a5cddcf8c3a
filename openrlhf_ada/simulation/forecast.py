"""Forecast of a step's sampling on engines in virtual time: how long it takes and what it gives."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from openrlhf_ada.core.advantages import is_spread
from openrlhf_ada.core.fleet import DispatchLimits, run
from openrlhf_ada.core.policies import Policy
from openrlhf_ada.core.scheduling import Request, Scheduler, SchedulerName
from openrlhf_ada.core.speculation import LEAST_CHANCE
from openrlhf_ada.core.types import PromptPool, Sample
from openrlhf_ada.simulation.virtual_engines import EngineModel, SampleOf, VirtualFleet


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal engines. `speculation`: an engine with fewer rollouts than this gets speculative ones."""

    num_engines: int
    model: EngineModel
    speculation: int

    @property
    def limits(self) -> DispatchLimits:
        """Of one engine."""
        return DispatchLimits(self.model.slots, min(self.speculation, self.model.slots))


@dataclass(frozen=True, slots=True)
class Forecast:
    """One step's sampling of `prompts`. `tokens`: of all `rollouts`, `wasted_tokens`: of those that entered no pool,
    `trained_tokens`: of the `trained` rollouts, which the policy computes for the loss.

    `signal_share`: share of prompts whose pools have more than one outcome. `work_seconds`: seconds for the same pools
    if it were known from the start which rollouts are needed. `floor_seconds`: a lower bound for every schedule of
    these rollouts: all slots always in use at the engine's best throughput, or the longest rollout alone on an engine.
    """

    prompts: int
    seconds: float
    rollouts: int
    tokens: int
    wasted_tokens: int
    trained: int
    trained_tokens: int
    signal_share: float
    work_seconds: float
    floor_seconds: float

    @property
    def waste_share(self) -> float:
        """Share of the tokens that entered no pool."""
        return self.wasted_tokens / self.tokens


def forecast(
    policy: Policy,
    pools: Sequence[PromptPool],
    answer: SampleOf,
    scheduler: SchedulerName,
    cluster: Cluster,
    *,
    least_chance: float = LEAST_CHANCE,
    skips_zeros: bool = False,
) -> Forecast:
    """Sample these pools, which come empty, as a run would; the policy sees the result as after a training step.

    `skips_zeros`: rollouts of coefficient 0 are not computed .
    """
    fleet = VirtualFleet(cluster.num_engines, cluster.model, answer)
    state = Scheduler[None](policy, pools, scheduler, least_chance=least_chance)
    finished = run(state, fleet, cluster.limits)
    resolved = sum(is_spread(entry.pool.scores) for entry in finished)
    samples = [sample for entry in finished for sample in entry.pool.samples]
    waste = state.waste.total
    rng = np.random.default_rng(0)
    kept: list[int] = []
    for entry in finished:
        drawn, group = entry.pool.samples, policy.build(entry.pool, rng)
        of_group = zip(group.indices, group.coefficients, strict=True)
        kept += [drawn[i].num_tokens for i, coefficient in of_group if coefficient or not skips_zeros]
    policy.observe([entry.pool for entry in finished])
    return Forecast(
        prompts=len(finished),
        seconds=fleet.now,
        rollouts=state.num_sent,
        tokens=sum(sample.num_tokens for sample in samples) + waste.tokens,
        wasted_tokens=waste.tokens,
        trained=len(kept),
        trained_tokens=sum(kept),
        signal_share=resolved / len(finished),
        work_seconds=_work_seconds(samples, answer, cluster),
        floor_seconds=_floor_seconds(samples, cluster),
    )


def _work_seconds(samples: Sequence[Sample], answer: SampleOf, cluster: Cluster) -> float:
    in_turn = sorted(samples, key=lambda sample: (sample.index, sample.key))
    return dealt_seconds(in_turn, lambda _: 1, answer, cluster)


def dealt_seconds(
    samples: Sequence[Sample], load: Callable[[Sample], int], answer: SampleOf, cluster: Cluster
) -> float:
    """Seconds of sampling these, all known from the start: each is dealt to the engine with the least load so far."""
    fleet = VirtualFleet(cluster.num_engines, cluster.model, answer)
    loads = [(0, engine) for engine in range(cluster.num_engines)]
    shares: list[list[Request]] = [[] for _ in loads]
    for sample in samples:
        so_far, engine = heapq.heappop(loads)
        shares[engine].append(Request(sample.key, sample.index))
        heapq.heappush(loads, (so_far + load(sample), engine))
    for engine, requests in enumerate(shares):
        fleet.submit(engine, requests)
    left = len(samples)
    while left:
        left -= len(fleet.wait())
    return fleet.now


def _floor_seconds(samples: Sequence[Sample], cluster: Cluster) -> float:
    steps = cluster.model.steps()
    best = min(seconds / running for running, seconds in enumerate(steps) if running)
    work = sum(sample.num_tokens for sample in samples) * best / cluster.num_engines
    return max(work, max(sample.num_tokens for sample in samples) * steps[1])
