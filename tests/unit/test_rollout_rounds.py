"""The reference scheduler: drawn = kept + unused, caps hold, prompts do not influence each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from cases import sequential
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_ada.core.policies import Close, Draw, Sequential
from openrlhf_ada.core.types import Ledger, PromptKey, PromptPool, Sample
from openrlhf_ada.rollout.rounds import FinishedPool, RoundsResult, run_rounds

Outcomes = dict[PromptKey, list[int]]
Payload = tuple[PromptKey, int, int]
"""(key, index, outcome): enough to see where a payload belongs."""


class Engine:
    """Answers as the outcomes say, prompt by prompt, whatever the others do; counts what it was asked for."""

    def __init__(self, outcomes: Outcomes) -> None:
        self.outcomes = outcomes
        self.drawn = dict.fromkeys(outcomes, 0)
        self.waves: list[list[Draw]] = []

    def __call__(self, draws: Sequence[Draw]) -> Mapping[PromptKey, Sequence[Payload]]:
        self.waves.append(list(draws))
        wave: dict[PromptKey, list[Payload]] = {}
        for draw in draws:
            start = self.drawn[draw.key]
            self.drawn[draw.key] += draw.count
            answers = self.outcomes[draw.key][start : start + draw.count]
            wave[draw.key] = [(draw.key, start + i, o) for i, o in enumerate(answers)]
        return wave


def describe(key: PromptKey, index: int, payload: Payload) -> Sample:
    assert payload[:2] == (key, index), "a payload is described as the sample it is"
    return Sample(key, index, metric=float(payload[2]), reward=float(payload[2]), num_tokens=index + 1)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Sequential, Outcomes]:
    n = draw(st.integers(1, 4))
    cap = draw(st.integers(n, 12))
    k_pos, k_neg = draw(st.sampled_from([(1, 0), (1, 1), (2, 2)]))
    policy = sequential(k_pos, k_neg, n=n, wave=draw(st.integers(1, 14)), cap=cap, estimator="rloo")
    keys = draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=6, unique=True))
    outcome = st.lists(st.integers(0, 1), min_size=cap, max_size=cap)
    return policy, {key: draw(outcome) for key in keys}


def empty_pools(*keys: PromptKey) -> list[PromptPool]:
    return [PromptPool(key, row=key % 10) for key in keys]


def solve(policy: Sequential, outcomes: Outcomes) -> tuple[RoundsResult[Payload], Engine]:
    engine = Engine(outcomes)
    return run_rounds(policy, empty_pools(*outcomes), engine, describe), engine


def content(finished: FinishedPool[Payload]) -> tuple[list[Sample], list[Payload]]:
    return finished.pool.samples, finished.payloads


@given(problems())
def test_drawn_is_kept_plus_unused_and_what_the_engine_was_asked_for(problem: tuple[Sequential, Outcomes]) -> None:
    policy, outcomes = problem
    result, engine = solve(policy, outcomes)
    ledger = Ledger()
    for finished in result.finished:
        group = policy.build(finished.pool, np.random.default_rng([0, finished.pool.key]))
        assert len(group.indices) == policy.group_size
        ledger.record_group(finished.pool.samples, group.indices)
    ledger.check(drawn=result.num_dispatched)
    assert ledger.drawn == ledger.kept + ledger.unused == sum(engine.drawn.values())
    assert ledger.kept == policy.group_size * len(outcomes)
    assert ledger.drawn_tokens == sum(n * (n + 1) // 2 for n in engine.drawn.values())
    assert result.num_rounds == len(engine.waves)


@given(problems())
def test_no_prompt_exceeds_the_cap_and_no_wave_the_wave_size(problem: tuple[Sequential, Outcomes]) -> None:
    policy, outcomes = problem
    result, engine = solve(policy, outcomes)
    assert all(policy.group_size <= len(f.pool) <= policy.max_samples for f in result.finished)
    assert all(d.count <= policy.wave for wave in engine.waves[1:] for d in wave)
    assert all(d.count > 0 for wave in engine.waves for d in wave)


@given(problems(), st.randoms())
def test_prompts_are_independent_of_each_other_and_of_their_order(
    problem: tuple[Sequential, Outcomes], random: np.random.Generator
) -> None:
    policy, outcomes = problem
    together = {f.pool.key: f for f in solve(policy, outcomes)[0].finished}
    shuffled = list(outcomes)
    random.shuffle(shuffled)
    reordered = solve(policy, {key: outcomes[key] for key in shuffled})[0]
    assert [f.pool.key for f in reordered.finished] == shuffled, "results stand in the order of the keys"
    for finished in reordered.finished:
        assert content(finished) == content(together[finished.pool.key])
    for key, outcome in outcomes.items():
        (alone,) = solve(policy, {key: outcome})[0].finished
        assert content(alone) == content(together[key])


@given(problems())
def test_pools_are_the_ones_that_were_given(problem: tuple[Sequential, Outcomes]) -> None:
    policy, outcomes = problem
    pools = empty_pools(*outcomes)
    result = run_rounds(policy, pools, Engine(outcomes), describe)
    assert all(finished.pool is pool for finished, pool in zip(result.finished, pools, strict=True))


@given(problems())
def test_payloads_stand_at_the_positions_of_their_samples(problem: tuple[Sequential, Outcomes]) -> None:
    for finished in solve(*problem)[0].finished:
        assert [p[1] for p in finished.payloads] == [s.index for s in finished.pool.samples]
        assert all(p[0] == finished.pool.key for p in finished.payloads)


POLICY = sequential(1, 1, n=2, wave=2, cap=4, estimator="rloo")


def test_progress_by_hand() -> None:
    """Prompt 5 is mixed at once, prompt 7 in the second round, prompt 9 never: 2 + 4 + 4 rollouts in two rounds."""
    outcomes = {5: [0, 1, 0, 0], 7: [1, 1, 0, 1], 9: [1, 1, 1, 1]}
    progress: list[tuple[int, int]] = []
    engine = Engine(outcomes)
    result = run_rounds(POLICY, empty_pools(5, 7, 9), engine, describe, lambda *counts: progress.append(counts))
    assert [[(d.key, d.count) for d in wave] for wave in engine.waves] == [[(5, 2), (7, 2), (9, 2)], [(7, 2), (9, 2)]]
    assert [len(f.pool) for f in result.finished] == [2, 4, 4]
    assert (result.num_dispatched, result.num_rounds) == (10, 2)
    assert progress == [(0, 3), (1, 3), (3, 3)]


def test_no_prompts_need_no_engine() -> None:
    result = run_rounds(POLICY, [], Engine({}), describe)
    assert (result.finished, result.num_rounds, result.num_dispatched) == ([], 0, 0)


@pytest.mark.parametrize("returned", [0, 1, 3])
def test_engine_that_returns_another_number_is_an_error(returned: int) -> None:
    calls: list[Sequence[Draw]] = []

    def engine(draws: Sequence[Draw]) -> Mapping[PromptKey, Sequence[Payload]]:
        calls.append(draws)
        assert len(calls) == 1, "noticed at once"
        return {draw.key: [(draw.key, i, 1) for i in range(returned)] for draw in draws}

    with pytest.raises(RuntimeError, match=f"prompt 3: asked for 2 samples, the engines returned {returned}"):
        run_rounds(POLICY, empty_pools(3), engine, describe)


def test_engine_that_leaves_a_prompt_out_is_an_error() -> None:
    with pytest.raises(KeyError, match="4"):
        run_rounds(POLICY, empty_pools(3, 4), lambda draws: {3: [(3, 0, 1), (3, 1, 0)]}, describe)


def test_any_policy_can_be_carried_out() -> None:
    """The scheduler decides nothing itself: a policy that draws 1, then 2, then closes is followed."""

    class Growing:
        def decide(self, pools: Sequence[PromptPool]) -> list[Draw | Close]:
            return [Close(pool.key) if len(pool) == 3 else Draw(pool.key, len(pool) + 1) for pool in pools]

    engine = Engine({1: [0, 1, 1]})
    result = run_rounds(Growing(), empty_pools(1), engine, describe)  # type: ignore[arg-type]
    assert [d.count for wave in engine.waves for d in wave] == [1, 2]
    assert [s.metric for s in result.finished[0].pool.samples] == [0.0, 1.0, 1.0]
