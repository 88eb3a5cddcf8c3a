"""Ada-Seq's stopping, against a slow reference and every outcome string."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from cases import pool_of, sequential

from openrlhf_ada.core.policies import Close, Draw, Sequential
from openrlhf_ada.core.types import PromptPool, Sample


def sample_until_closed(policy: Sequential, outcomes: Sequence[int]) -> list[int]:
    """Sizes of the waves that the policy draws when samples come out as `outcomes`."""
    waves: list[int] = []
    while True:
        (action,) = policy.decide([pool_of(outcomes[: sum(waves)])])
        if isinstance(action, Close):
            return waves
        waves.append(action.count)


def slow_stop(outcomes: Sequence[int], *, k_pos: int, k_neg: int, n: int, wave: int) -> int:
    """The rule is read at every multiple of M that holds n samples, below the cap; else the cap ends it."""
    for drawn in range(wave, len(outcomes), wave):
        positives = sum(outcomes[:drawn])
        if drawn >= n and positives >= k_pos and drawn - positives >= k_neg:
            return drawn
    return len(outcomes)


@pytest.mark.slow
@pytest.mark.parametrize(("k_pos", "k_neg"), [(1, 0), (1, 1), (2, 1), (2, 2)], ids=["pos", "1+1", "2+1", "2+2"])
def test_stops_where_the_slow_reference_stops(k_pos: int, k_neg: int) -> None:
    """Every outcome string up to a cap of 6, every M (above the cap too) and every n."""
    for cap, wave, n in itertools.product(range(1, 7), range(1, 8), range(1, 5)):
        if n > cap:
            continue
        policy = sequential(k_pos, k_neg, n=n, wave=wave, cap=cap)
        for outcomes in itertools.product((0, 1), repeat=cap):
            waves = sample_until_closed(policy, outcomes)
            assert sum(waves) == slow_stop(outcomes, k_pos=k_pos, k_neg=k_neg, n=n, wave=wave)
            assert waves[0] == min(-(-n // wave) * wave, cap), "what n needs goes out at once"
            assert all(w == wave for w in waves[1:-1])


def test_first_wave_covers_the_group() -> None:
    policy = sequential(1, 0, n=4, wave=3, cap=32)
    assert policy.decide([pool_of([], key=7)]) == [Draw(7, 6)]


def test_cap_cuts_the_last_wave() -> None:
    assert sample_until_closed(sequential(1, 0, n=2, wave=4, cap=10), [0] * 10) == [4, 4, 2]
    plan = sequential(1, 0, n=2, wave=4, cap=10).plan
    assert [plan.next_draw(drawn) for drawn in (0, 4, 8, 10)] == [4, 4, 2, 0]


def test_rule_reads_prefix_only_at_wave_multiples() -> None:
    """The success at index 4 ends the second wave of 4, not the fifth sample."""
    assert sum(sample_until_closed(sequential(1, 0, n=1, wave=4, cap=16), [0, 0, 0, 0, 1] + [0] * 11)) == 8


def test_rule_before_the_group_is_full_closes_nothing() -> None:
    """Whatever brought the first samples: a group of 4 cannot be trained from a pool of 2."""
    policy = sequential(1, 1, n=4, wave=2, cap=8)
    assert policy.decide([pool_of([1, 0])]) == [Draw(0, 2)]
    assert policy.decide([pool_of([1, 0, 0, 0])]) == [Close(0)]


def test_prompts_are_decided_independently_and_in_order() -> None:
    policy = sequential(1, 1, n=2, wave=2, cap=4)
    pools = [pool_of([1, 1], key=5), pool_of([0, 1], key=3), pool_of([], key=9)]
    assert policy.decide(pools) == [Draw(5, 2), Close(3), Draw(9, 2)]
    assert policy.decide(pools[::-1]) == policy.decide(pools)[::-1]
    assert policy.decide([]) == []


def test_decision_ignores_reward_and_length() -> None:
    policy = sequential(1, 1, n=2, wave=2, cap=4)
    odd = [Sample(0, 0, 1.0, reward=-5.0, num_tokens=0), Sample(0, 1, 0.0, reward=9.0, num_tokens=10**6)]
    assert policy.decide([PromptPool(0, odd)]) == [Close(0)]


def test_stateless_policy_refuses_foreign_state() -> None:
    policy = sequential(1, 1, n=2, wave=2, cap=4)
    assert policy.state_dict() == {}
    policy.load_state_dict({})
    with pytest.raises(ValueError, match=r"estimated.* --ada_"):
        policy.load_state_dict({"estimated": {}})


# -- other ends ---------------------------------------------------------------------------------------------------


def test_fixed_draws_the_cap_at_once() -> None:
    policy = sequential(0, 0, n=4, wave=8, cap=12)
    assert sample_until_closed(policy, [1, 0] * 6) == [12]
    assert sample_until_closed(policy, [0] * 12) == [12]
