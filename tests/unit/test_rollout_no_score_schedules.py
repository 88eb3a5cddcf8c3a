"""Which prompts are given up, what replaces them and what is learned does not depend on the schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import sequential
from fleets import FaultyFleet
from rollouts import GENERATE, N, TableGenerator, make_args, make_loader, response, result_of

from openrlhf_ada.core.batches import BatchPlan
from openrlhf_ada.core.estimators import PassRateCounts
from openrlhf_ada.core.fleet import DispatchLimits, Failed, Finished
from openrlhf_ada.core.policies import Memory
from openrlhf_ada.core.scheduling import SCHEDULERS, Request
from openrlhf_ada.core.types import PromptKey
from openrlhf_ada.rollout.messages import Result
from openrlhf_ada.rollout.prompts import PromptRequest

ROWS, BATCH, CAP = 24, 6, 8


class FaultyGenerator(TableGenerator):
    """Rollouts of random scores and failures, by (prompt visit, index), on engines that die; right ones are long."""

    def __init__(self, seed: int, **options: Any) -> None:
        args = make_args(batch=BATCH, num_episodes=2)
        memory = Memory(PassRateCounts(50, 0.5, 2, give_up=0), threshold=0.5)
        policy = replace(sequential(1, 1, n=N, wave=2, cap=CAP), memory=memory)
        plan = BatchPlan(BATCH, N, BATCH * N, micro_batch=1, processes=1)
        super().__init__(args, make_loader(ROWS, args), policy, lambda request, index: 0.0, plan, **options)
        rng = np.random.default_rng(seed)
        self.seed = seed
        shape = (3 * ROWS, CAP)
        self.scores = (rng.random(shape) < rng.beta(0.8, 0.8, size=(shape[0], 1))).astype(float)
        self.fails = (rng.random((*shape, 1)) < 0.04) | (rng.random((*shape, 2)) < 0.1)

    def fleet(self, requests: Mapping[PromptKey, PromptRequest], generate_kwargs: dict[str, Any]) -> Any:
        reader = self._reader(generate_kwargs)

        def answer(request: Request) -> Finished[Result] | Failed:
            key, index = request.key, request.index
            tokens = 1 + index % 2 + 8 * int(self.scores[key, index])
            if self.fails[key, index, request.attempt]:
                return Failed(request, tokens, f"rollout {index} has no score")
            result = result_of(response(requests[key].prompt, float(self.scores[key, index]), tokens=tokens))
            return Finished(request, reader.sample(request, result, (0, 0)), result)

        return FaultyFleet(answer, num_engines=2, late=0.5, dying=0.05, seed=self.seed)

    least_chance = 0.0

    @property
    def _limits(self) -> DispatchLimits:
        return DispatchLimits(slots=30, speculative=30)


def steps_of(seed: int, name: Any, count: int) -> tuple[list[Any], int]:
    """Of each step everything that is trained, replaced, learned and paid for, but for waste; and prompts given up."""
    generator = FaultyGenerator(seed, scheduler=name, refill_limit=2, max_no_score=99, on_note=lambda text: None)
    steps: list[Any] = []
    given_up = 0
    while len(steps) < count:
        batch, _, consumed, exhausted = generator.generate_samples(**GENERATE)
        if (record := batch.record) is None:
            continue
        groups = [(group.row, group.pool.key, group.pool.samples, group.group) for group in record.all_groups]
        ledger = record.ledger
        costs = (ledger.kept, ledger.unused, ledger.kept_tokens, ledger.unused_tokens)
        learned = generator.policy.state_dict()
        steps.append((groups, len(record.replaced), record.num_no_score, consumed, exhausted, costs, learned))
        given_up += record.num_no_score
    return steps, given_up


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_schedules_replace_the_same_prompts(seed: int) -> None:
    """Four steps of six prompts, over an episode's end, with refills; 14 % of first attempts, 5 % of rollouts fail."""
    expected, given_up = steps_of(seed, "rounds", 4)
    assert given_up > 0, "else this shows nothing"
    for name in SCHEDULERS:
        assert steps_of(seed, name, 4) == (expected, given_up), name


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_schedules_agree_on_ending_for_missing_scores(seed: int) -> None:
    """The limit is one less than the prompts that the first step gives up, and then just that many."""
    (step, *_), _ = steps_of(seed, "rounds", 1)
    given_up = step[2]
    for name in SCHEDULERS:
        options: dict[str, Any] = {"scheduler": name, "refill_limit": 2, "on_note": lambda text: None}
        FaultyGenerator(seed, max_no_score=given_up, **options).generate_samples(**GENERATE)
        if given_up:
            with pytest.raises(RuntimeError, match=f"{given_up} prompts of this step got no score"):
                FaultyGenerator(seed, max_no_score=given_up - 1, **options).generate_samples(**GENERATE)
