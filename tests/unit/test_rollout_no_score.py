"""Rollouts without a score: repeated, then their prompt is replaced, never counted as wrong (R2)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from cases import sequential
from rollouts import (
    BATCH,
    GENERATE,
    N,
    TableGenerator,
    make_args,
    make_loader,
    table,
)

from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import make_policy, resolve
from openrlhf_ada.core.batches import BatchPlan
from openrlhf_ada.core.estimators import PassRateCounts
from openrlhf_ada.core.policies import Memory, Policy
from openrlhf_ada.core.scheduling import Request

ONCE, TWICE = {(0, 1, 0)}, {(0, 1, 0), (0, 1, 1)}
"""Rollout 1 of the first prompt gets no score, at its first attempt or at both."""

EASY = {row: [1, 0] for row in range(4)}


def test_missing_reward_is_repeated_never_zero() -> None:
    """OpenRLHF goes on without a reward when the function raised; a zero would be a false score (R2)."""
    notes: list[str] = []
    generator = FailingGenerator(EASY, ONCE, on_note=notes.append)
    samples, *_ = generator.generate_samples(**GENERATE)
    assert (samples.ledger.drawn, samples.ledger.kept, samples.ledger.aborted) == (5, 4, 1)
    assert (samples.record.num_failed, samples.record.num_no_score) == (1, 0)
    (note,) = notes
    assert note.startswith("1 rollouts got no score") and note.endswith("of row 0: the test says so.")


def test_prompt_without_score_is_replaced_and_counted() -> None:
    """Row 0: a failed rollout and its failed repetition, and one that is in vain. Row 2 takes its place."""
    notes: list[str] = []
    generator = FailingGenerator(EASY, TWICE, max_no_score=1, on_note=notes.append)
    samples, _, consumed, _ = generator.generate_samples(**GENERATE)
    assert [group.row for group in samples.record.groups] == [2, 1]
    assert consumed == 3
    ledger = samples.ledger
    assert (ledger.drawn, ledger.kept, ledger.unused, ledger.aborted) == (7, 4, 0, 3)
    assert (samples.record.num_failed, samples.record.num_no_score) == (2, 1)
    assert notes[0].endswith("1 prompts were given up and replaced.")


def test_too_many_prompts_without_score_end_the_run() -> None:
    with pytest.raises(RuntimeError, match=r"Row 0 \(prompt '0\+1='\) has no score: the test says so, .* and 0 may"):
        FailingGenerator(EASY, TWICE).generate_samples(**GENERATE)
    always = {(key, 0, attempt) for key in range(4) for attempt in range(2)}
    with pytest.raises(RuntimeError, match="2 prompts of this step got no score and 1 may"):
        FailingGenerator(EASY, always, max_no_score=1).generate_samples(**GENERATE)


def test_a_share_that_is_a_whole_number_of_prompts_allows_no_more() -> None:
    """7/25 of 25 is just above 7 in floating point."""
    always = {(key, 0, attempt) for key in range(8) for attempt in range(2)}
    easy = {row: [1, 0] for row in range(40)}
    with pytest.raises(RuntimeError, match="8 prompts of this step got no score and 7 may"):
        FailingGenerator(easy, always, batch=25, max_no_score=7).generate_samples(**GENERATE)


def test_last_prompts_are_replaced_from_the_batch() -> None:
    generator = FailingGenerator({row: [1, 0] for row in range(2)}, TWICE, max_no_score=1)
    samples, _, consumed, exhausted = generator.generate_samples(**GENERATE)
    assert [(group.row, group.pool.key) for group in samples.record.groups] == [(1, 2), (1, 1)]
    assert (consumed, exhausted, samples.record.num_no_score) == (3, True, 1)
    always = {(key, 0, attempt) for key in range(2) for attempt in range(2)}
    with pytest.raises(RuntimeError, match="no prompt of this step got a score; the last: the test says so"):
        FailingGenerator({row: [1, 0] for row in range(2)}, always, max_no_score=2).generate_samples(**GENERATE)


def test_the_error_names_the_prompt_that_was_given_up() -> None:
    failing = {(0, 0, 0), (0, 0, 1), (1, 1, 0)}
    with pytest.raises(RuntimeError, match=r"^Row 0 "):
        FailingGenerator(EASY, failing).generate_samples(**GENERATE)


def groups_of(generator: FailingGenerator) -> dict[int, tuple[Any, ...]]:
    """By row: what is trained of it and with which coefficients, and what was drawn."""
    samples, *_ = generator.generate_samples(**GENERATE)
    return {
        g.row: (g.group.indices, g.group.coefficients, g.pool.scores.tolist(), g.pool.predicted)
        for g in samples.record.groups
        if g.group is not None
    }


def counts_of(generator: FailingGenerator) -> dict[int, tuple[float, float]]:
    state = generator.policy.state_dict()["memory"]["counts"]
    return {row: (n, k) for row, n, k in zip(state["rows"], state["draws"], state["positives"], strict=True)}


MIXED = {row: [float((row * 7 + i * i) % 3 == 0) for i in range(8)] for row in range(16)}


@pytest.mark.parametrize("seed", range(5))
def test_thirty_percent_failures_keep_other_prompts(seed: int) -> None:
    """R2: advantages and the allocator's counts of the others are those of a run without failures."""
    rng = random.Random(seed)
    undisturbed = FailingGenerator(MIXED, set(), batch=10)
    expected, expected_counts = groups_of(undisturbed), counts_of(undisturbed)
    # Three in ten rollouts fail, and not when they are repeated.
    once = {(key, index, 0) for key in range(10) for index in range(8) if rng.random() < 0.3}
    repeated = FailingGenerator(MIXED, once, batch=10)
    assert groups_of(repeated) == expected
    assert counts_of(repeated) == expected_counts
    # Three of the ten prompts get no score at all.
    lost = rng.sample(range(10), 3)
    hopeless = {(key, 0, attempt) for key in lost for attempt in range(2)}
    replaced = FailingGenerator(MIXED, hopeless, batch=10, max_no_score=3)
    groups, counts = groups_of(replaced), counts_of(replaced)
    others = expected.keys() - lost
    assert {row: groups[row] for row in others} == {row: expected[row] for row in others}
    assert {row: counts[row] for row in others} == {row: expected_counts[row] for row in others}
    assert not counts.keys() & set(lost)
    assert len(groups) == 10


def estimated(allocation: str) -> Policy:
    """Four rollouts of a prompt on average, all trained; pass rates of rows 0 and 1 are known to differ."""
    config = AdaConfig(mode="est", allocation=allocation, correction="none", pilot=2 if allocation == "hit" else None)
    policy = make_policy(resolve(config, n=4, advantage="dr_grpo", batch=BATCH))
    policy.load_prior_counts([8, 8], [0, 8])
    return policy


@pytest.mark.parametrize("allocation", ["inverse_sqrt", "knapsack", "hit"])
@pytest.mark.parametrize("failing", [0, 2])
def test_replacement_keeps_the_sum_of_a_split(allocation: str, failing: int) -> None:
    """Where all are trained, a step has as many rollouts as its budget, whichever rollout of row 0 gets no score."""
    outcomes = {row: [float((row + i) % 3 == 0) for i in range(16)] for row in range(4)}
    lost = {(0, failing, attempt) for attempt in range(2)}
    generator = FailingGenerator(outcomes, lost, policy=estimated(allocation), n=4, max_no_score=1)
    samples, *_ = generator.generate_samples(**GENERATE)
    assert samples.record.num_no_score == 1
    assert len(samples) == BATCH * 4


class FailingGenerator(TableGenerator):
    """These rollouts get no score: (key, index, attempt)."""

    def __init__(
        self,
        outcomes: Mapping[int, Sequence[float]],
        failing: set[tuple[int, int, int]],
        *,
        batch: int = BATCH,
        n: int = N,
        policy: Policy | None = None,
        **options: Any,
    ) -> None:
        args = make_args(batch=batch, num_episodes=1)
        memory = Memory(PassRateCounts(50, 0.5, 2, give_up=0), threshold=0.5)
        policy = policy or replace(sequential(1, 1, n=N, wave=2, cap=4), memory=memory)
        plan = BatchPlan(batch, n, batch * n, micro_batch=1, processes=1)
        super().__init__(args, make_loader(len(outcomes), args), policy, table(outcomes), plan, **options)
        self.failing = failing

    def answer(self, reader: Any, request: Request, score: float, prompt: str) -> Any:
        if (request.key, request.index, request.attempt) in self.failing:
            return None
        return super().answer(reader, request, score, prompt)
