"""Ada-Seq's stopping: against a slow reference, every outcome string; and the published expectations, enumerated."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import comb

import numpy as np
import pytest

from openrlhf_ada.core.policies import Close, Draw, PromptView, Sequential
from openrlhf_ada.core.stopping import ExitRule, next_wave
from openrlhf_ada.core.types import PromptPool, Sample


def policy_for(k_pos: int, k_neg: int, *, n: int, wave: int, cap: int, estimator: str = "dr_grpo") -> Sequential:
    return Sequential(ExitRule(k_pos, k_neg, 0.5), wave, cap, group_size=n, estimator=estimator)


def samples_of(outcomes: Sequence[int]) -> list[Sample]:
    return [Sample(0, i, float(o), float(o), 1) for i, o in enumerate(outcomes)]


def sample_until_closed(policy: Sequential, outcomes: Sequence[int]) -> list[int]:
    """Sizes of the waves that the policy draws when samples come out as `outcomes`."""
    waves: list[int] = []
    while True:
        (action,) = policy.decide([PromptView(0, samples_of(outcomes[: sum(waves)]))])
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


@pytest.mark.parametrize(("k_pos", "k_neg"), [(1, 0), (1, 1), (2, 1), (2, 2)], ids=["pos", "1+1", "2+1", "2+2"])
def test_stops_where_the_slow_reference_stops(k_pos: int, k_neg: int) -> None:
    """Every outcome string up to a cap of 6, every M (above the cap too) and every n."""
    for cap, wave, n in itertools.product(range(1, 7), range(1, 8), range(1, 5)):
        if n > cap:
            continue
        policy = policy_for(k_pos, k_neg, n=n, wave=wave, cap=cap)
        for outcomes in itertools.product((0, 1), repeat=cap):
            waves = sample_until_closed(policy, outcomes)
            assert sum(waves) == slow_stop(outcomes, k_pos=k_pos, k_neg=k_neg, n=n, wave=wave)
            assert waves[0] == min(-(-n // wave) * wave, cap), "what n needs goes out at once"
            assert all(w == wave for w in waves[1:-1])


def test_first_wave_covers_the_group() -> None:
    policy = policy_for(1, 0, n=4, wave=3, cap=32)
    assert policy.decide([PromptView(7, [])]) == [Draw(7, 6)]


def test_cap_cuts_the_last_wave() -> None:
    assert sample_until_closed(policy_for(1, 0, n=2, wave=4, cap=10), [0] * 10) == [4, 4, 2]
    assert next_wave(8, wave=4, max_samples=10) == 2
    assert next_wave(10, wave=4, max_samples=10) == 0


def test_rule_reads_the_prefix_only_at_multiples_of_the_wave() -> None:
    """The success at index 4 ends the second wave of 4, not the fifth sample."""
    assert sum(sample_until_closed(policy_for(1, 0, n=1, wave=4, cap=16), [0, 0, 0, 0, 1] + [0] * 11)) == 8


def test_rule_that_holds_before_the_group_is_full_closes_nothing() -> None:
    """Whatever brought the first samples: a group of 4 cannot be trained from a pool of 2."""
    policy = policy_for(1, 1, n=4, wave=2, cap=8)
    assert policy.decide([PromptView(0, samples_of([1, 0]))]) == [Draw(0, 2)]
    assert policy.decide([PromptView(0, samples_of([1, 0, 0, 0]))]) == [Close(0)]


def test_prompts_are_decided_independently_and_in_order() -> None:
    policy = policy_for(1, 1, n=2, wave=2, cap=4)
    done, open_, new = samples_of([0, 1]), samples_of([1, 1]), samples_of([])
    views = [PromptView(5, open_), PromptView(3, done), PromptView(9, new)]
    assert policy.decide(views) == [Draw(5, 2), Close(3), Draw(9, 2)]
    assert policy.decide(views[::-1]) == policy.decide(views)[::-1]
    assert policy.decide([]) == []


def test_decision_ignores_reward_and_length() -> None:
    policy = policy_for(1, 1, n=2, wave=2, cap=4)
    odd = [Sample(0, 0, 1.0, reward=-5.0, num_tokens=0), Sample(0, 1, 0.0, reward=9.0, num_tokens=10**6)]
    assert policy.decide([PromptView(0, odd)]) == [Close(0)]


def test_policy_has_no_state_and_refuses_anothers() -> None:
    policy = policy_for(1, 1, n=2, wave=2, cap=4)
    assert policy.state_dict() == {}
    policy.load_state_dict({})
    with pytest.raises(ValueError, match=r"keeps no state.*\['counts'\]"):
        policy.load_state_dict({"counts": 1})


# -- expectations -------------------------------------------------------------------------------------------------


def final_states(policy: Sequential, p: float) -> dict[tuple[int, int], float]:
    """(drawn, positives) -> probability at the stop. The rule reads counts, so counts are the whole state."""
    states, final = {(0, 0): 1.0}, {}
    while states:
        following: dict[tuple[int, int], float] = {}
        for (drawn, positives), weight in states.items():
            view = PromptView(0, samples_of([1] * positives + [0] * (drawn - positives)))
            (action,) = policy.decide([view])
            if isinstance(action, Close):
                final[drawn, positives] = final.get((drawn, positives), 0.0) + weight
                continue
            m = action.count
            for k in range(m + 1):
                state, chance = (drawn + m, positives + k), comb(m, k) * p**k * (1 - p) ** (m - k)
                if chance:
                    following[state] = following.get(state, 0.0) + weight * chance
        states = following
    return final


def effective_weight(policy: Sequential, drawn: int, positives: int, p: float) -> float:
    """C+/p + C-/(1-p) of the trained group, per sample (peers.md, section 0.1)."""
    pool = PromptPool(0, samples_of([1] * positives + [0] * (drawn - positives)))
    group = policy.build(pool, np.random.default_rng(0))
    kept = list(zip(group.indices, group.coefficients, strict=True))
    gain = sum(c for i, c in kept if pool.samples[i].metric > 0.5)
    loss = -sum(c for i, c in kept if pool.samples[i].metric <= 0.5)
    return (gain / p + loss / (1 - p)) / len(kept)


@pytest.mark.parametrize(("k_pos", "k_neg"), [(1, 0), (1, 1), (2, 2)])
@pytest.mark.parametrize(("wave", "cap", "n"), [(1, 6, 2), (2, 7, 3), (3, 9, 4), (4, 8, 4)])
def test_expected_cost_equals_the_enumeration_of_all_outcome_strings(
    k_pos: int, k_neg: int, wave: int, cap: int, n: int
) -> None:
    policy = policy_for(k_pos, k_neg, n=n, wave=wave, cap=cap)
    for p in (0.0, 0.1, 0.5, 0.93, 1.0):
        enumerated = sum(
            p ** sum(s) * (1 - p) ** (cap - sum(s)) * slow_stop(s, k_pos=k_pos, k_neg=k_neg, n=n, wave=wave)
            for s in itertools.product((0, 1), repeat=cap)
        )
        expected = sum(weight * drawn for (drawn, _), weight in final_states(policy, p).items())
        assert expected == pytest.approx(enumerated, abs=1e-9)


PUBLISHED = {  # p: pos E[N], E[pool mean], f'; balance E[N], E[pool mean], f' (peers.md, section 0.2)
    0.01: (28.5, 0.0194, 6.61, 31.7, 0.0112, 7.52),
    0.02: (25.5, 0.0364, 5.88, 30.9, 0.0241, 7.17),
    0.05: (19.2, 0.0776, 4.27, 27.3, 0.0663, 5.86),
    0.10: (13.6, 0.1297, 2.80, 21.0, 0.1321, 3.95),
    0.30: (8.5, 0.309, 1.23, 10.3, 0.328, 1.35),
    0.50: (8.0, 0.501, 0.97, 8.6, 0.500, 1.00),
    0.70: (8.0, 0.700, 1.15, 10.3, 0.672, 1.35),
    0.90: (8.0, 0.900, 1.58, 21.0, 0.868, 3.95),
    0.95: (8.0, 0.950, 1.68, 27.3, 0.934, 5.86),
}


@pytest.mark.parametrize("p", PUBLISHED)
@pytest.mark.parametrize(("exit_name", "k_pos", "k_neg", "column"), [("pos", 1, 0, 0), ("balance", 2, 2, 3)])
def test_published_table_of_the_shipped_rule(p: float, exit_name: str, k_pos: int, k_neg: int, column: int) -> None:
    """M = 8, N_max = 32, n = 4, pool-mean baseline: cost, bias of the pool mean, and what is really optimised."""
    policy = policy_for(k_pos, k_neg, n=4, wave=8, cap=32)
    final = final_states(policy, p)
    cost, pool_mean, weight = PUBLISHED[p][column : column + 3]
    assert sum(final.values()) == pytest.approx(1.0)
    assert sum(w * n for (n, _), w in final.items()) == pytest.approx(cost, abs=0.06), exit_name
    assert sum(w * k / n for (n, k), w in final.items()) == pytest.approx(pool_mean, abs=6e-4)
    achieved = sum(w * effective_weight(policy, n, k, p) for (n, k), w in final.items())
    assert achieved == pytest.approx(weight, abs=0.006)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_hopeless_and_certain_prompts_cost_the_cap_under_balance(p: float) -> None:
    assert final_states(policy_for(2, 2, n=4, wave=8, cap=32), p).keys() == {(32, int(32 * p))}


def test_certain_prompt_costs_one_wave_under_pos() -> None:
    assert final_states(policy_for(1, 0, n=4, wave=8, cap=32), 1.0).keys() == {(8, 8)}
