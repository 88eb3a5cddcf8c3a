"""Forecast of a step's sampling on engines in virtual time: how long it takes and what it gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from openrlhf_ada.core.advantages import is_spread
from openrlhf_ada.core.fleet import DispatchLimits, run
from openrlhf_ada.core.policies import Policy
from openrlhf_ada.core.scheduling import Scheduler, SchedulerName
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
    `trained_tokens`: of the `trained` rollouts, which the policy computes for the loss, `raised_tokens`: of the
    `raised` ones among them, whose coefficient is positive.

    `signal_share`: share of prompts whose pools have more than one outcome. `samples`: of all pools.
    """

    prompts: int
    seconds: float
    rollouts: int
    tokens: int
    wasted_tokens: int
    trained: int
    trained_tokens: int
    raised: int
    raised_tokens: int
    signal_share: float
    samples: Sequence[Sample]

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

    `skips_zeros`: rollouts of coefficient 0 are not computed.
    """
    fleet = VirtualFleet(cluster.num_engines, cluster.model, answer)
    state = Scheduler[None](policy, pools, scheduler, least_chance=least_chance)
    finished = run(state, fleet, cluster.limits)
    resolved = sum(is_spread(entry.pool.scores) for entry in finished)
    samples = [sample for entry in finished for sample in entry.pool.samples]
    waste = state.waste.total
    rng = np.random.default_rng(0)
    kept: list[int] = []
    raised: list[int] = []
    for entry in finished:
        drawn, group = entry.pool.samples, policy.build(entry.pool, rng)
        of_group = [(drawn[i].num_tokens, c) for i, c in zip(group.indices, group.coefficients, strict=True)]
        kept += [tokens for tokens, coefficient in of_group if coefficient or not skips_zeros]
        raised += [tokens for tokens, coefficient in of_group if coefficient > 0.0]
    policy.observe([entry.pool for entry in finished])
    return Forecast(
        prompts=len(finished),
        seconds=fleet.now,
        rollouts=state.num_sent,
        tokens=sum(sample.num_tokens for sample in samples) + waste.tokens,
        wasted_tokens=waste.tokens,
        trained=len(kept),
        trained_tokens=sum(kept),
        raised=len(raised),
        raised_tokens=sum(raised),
        signal_share=resolved / len(finished),
        samples=samples,
    )
