"""All that sequential sampling can come to: probabilities, theory, and the pass rate that survives stopping."""

from __future__ import annotations

import itertools
from collections import defaultdict
from math import comb

import pytest
from cases import pool_of, sequential

from openrlhf_ada.core.policies import Close, Sequential
from openrlhf_ada.core.stopping import ExitRule, StoppingPlan

RATES = (0.01, 0.1, 0.3, 0.5, 0.93)


def by_asking_the_policy(policy: Sequential, p: float) -> dict[tuple[int, int], float]:
    """Probability of every (drawn, positives) at which the policy itself closes a prompt."""
    still_open, final = {(0, 0): 1.0}, defaultdict(float)
    while still_open:
        following: dict[tuple[int, int], float] = defaultdict(float)
        for (drawn, positives), mass in still_open.items():
            (action,) = policy.decide([pool_of([1] * positives + [0] * (drawn - positives))])
            if isinstance(action, Close):
                final[drawn, positives] += mass
                continue
            m = action.count
            for k in range(m + 1):
                following[drawn + m, positives + k] += mass * comb(m, k) * p**k * (1 - p) ** (m - k)
        still_open = following
    return final


@pytest.mark.parametrize(("k_pos", "k_neg"), [(1, 0), (3, 0), (1, 1), (2, 2), (0, 0)])
@pytest.mark.parametrize(("wave", "cap", "n"), [(1, 6, 2), (2, 7, 3), (3, 9, 4), (4, 8, 4), (8, 32, 4), (9, 5, 2)])
def test_plan_ends_where_the_policy_closes(k_pos: int, k_neg: int, wave: int, cap: int, n: int) -> None:
    policy = sequential(k_pos, k_neg, n=n, wave=wave, cap=cap)
    for p in RATES:
        outcomes = policy.plan.outcomes(p)
        assert outcomes == pytest.approx(by_asking_the_policy(policy, p), abs=1e-12)
        assert sum(outcomes.values()) == pytest.approx(1.0)


# -- cost, against theory -----------------------------------------------------------------------------------------


def binomial_below(k: int, t: int, p: float) -> float:
    """P(fewer than k positives among t)."""
    return sum(comb(t, i) * p**i * (1 - p) ** (t - i) for i in range(min(k, t + 1)))


@pytest.mark.parametrize("p", [0.01, 0.2, 0.5, 0.9])
@pytest.mark.parametrize(("k", "wave", "cap"), [(1, 1, 64), (3, 1, 64), (1, 8, 32), (4, 4, 40), (16, 16, 128)])
def test_cost_of_pos_is_the_truncated_negative_binomials(k: int, wave: int, cap: int, p: float) -> None:
    """N = M ceil(T / M) with T the draw of the k-th positive, and E[N] = sum of M P(T > jM)."""
    plan = StoppingPlan(ExitRule(k, 0, 0.5), wave, first_look=wave, max_samples=cap)
    theory = sum(wave * binomial_below(k, drawn, p) for drawn in range(0, cap, wave))
    assert plan.expected_draws(p) == pytest.approx(theory, rel=1e-12)


def test_without_a_cap_pos_costs_k_over_p() -> None:
    assert StoppingPlan(ExitRule(2, 0, 0.5), 1, 2, max_samples=400).expected_draws(0.2) == pytest.approx(
        2 / 0.2, rel=1e-9
    )


@pytest.mark.parametrize("p", [0.05, 0.4, 0.8])
def test_balance_cost_is_later_of_two_negative_binomials(p: float) -> None:
    plan = StoppingPlan(ExitRule(2, 3, 0.5), 1, first_look=1, max_samples=50)
    waits = [
        sum(comb(t, i) * p**i * (1 - p) ** (t - i) for i in range(t + 1) if i < 2 or t - i < 3) for t in range(50)
    ]
    assert plan.expected_draws(p) == pytest.approx(sum(waits), rel=1e-12)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_pass_rates_0_and_1_cost_the_cap_under_balance(p: float) -> None:
    assert StoppingPlan(ExitRule(2, 2, 0.5), 8, 8, 32).outcomes(p).keys() == {(32, int(32 * p))}


def test_certain_prompt_costs_one_wave_under_pos() -> None:
    assert StoppingPlan(ExitRule(1, 0, 0.5), 8, 8, 32).outcomes(1.0).keys() == {(8, 8)}


# -- the unbiased pass rate ---------------------------------------------------------------------------------------


PLANS = [
    StoppingPlan(ExitRule(*c, 0.5), w, f, m)
    for c in ((1, 0), (2, 2), (3, 1))
    for w, f, m in ((8, 8, 32), (4, 4, 30), (3, 6, 9))
]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_unbiased_rate_has_no_stopping_bias(plan: StoppingPlan) -> None:
    for p in (0.001, *RATES, 0.999):
        outcomes = plan.outcomes(p)
        assert sum(mass * plan.unbiased_rate(*state) for state, mass in outcomes.items()) == pytest.approx(
            p, abs=1e-12
        )


def test_unbiased_rate_counts_orders_that_begin_positive() -> None:
    """By enumeration of all outcome strings of a small plan."""
    plan = StoppingPlan(ExitRule(1, 1, 0.5), 2, 2, 6)
    orders: dict[tuple[int, int], list[int]] = defaultdict(list)
    for outcomes in itertools.product((0, 1), repeat=6):
        end = next(n for n in plan.looks if plan.is_final(n, sum(outcomes[:n])))
        orders[end, sum(outcomes[:end])].append((outcomes[:end], outcomes[0]))
    for (drawn, positives), found in orders.items():
        distinct = dict(found)
        expected = sum(distinct.values()) / len(distinct)
        assert plan.unbiased_rate(drawn, positives) == pytest.approx(expected)


def test_figures_of_the_published_rule() -> None:
    """Balance 2 + 2, waves of 8 up to 32: pools of 2/16 look like 0.125 and are worth 0.087."""
    balance = StoppingPlan(ExitRule(2, 2, 0.5), 8, 8, 32)
    for (drawn, positives), rate in {(16, 2): 0.087, (16, 3): 0.100, (32, 2): 0.036}.items():
        assert balance.unbiased_rate(drawn, positives) == pytest.approx(rate, abs=6e-4)


def test_rescued_prompts_are_worth_0_under_one_positive() -> None:
    """With K_pos = 1 a second wave means that the first had none: no order begins with a positive."""
    pos = StoppingPlan(ExitRule(1, 0, 0.5), 8, 8, 32)
    rescued = [state for state in pos.outcomes(0.1) if state[0] > 8]
    assert rescued
    assert {pos.unbiased_rate(*state) for state in rescued} == {0.0}


def test_fixed_plan_has_nothing_to_correct() -> None:
    fixed = StoppingPlan(ExitRule(0, 0, 0.5), 8, 8, 12)
    assert [fixed.unbiased_rate(12, k) for k in range(13)] == pytest.approx([k / 12 for k in range(13)])


def test_state_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="does not end with 0 positives of 8"):
        StoppingPlan(ExitRule(1, 0, 0.5), 8, 8, 32).unbiased_rate(8, 0)


def test_plans_of_thousands_of_rollouts_do_not_underflow() -> None:
    plan = StoppingPlan(ExitRule(2, 2, 0.5), 16, 16, 2400)
    assert plan.unbiased_rate(2400, 0) == 0.0
    assert plan.unbiased_rate(2400, 2400) == 1.0
    assert StoppingPlan(ExitRule(0, 0, 0.5), 1, 1, 5000).unbiased_rate(5000, 10) == pytest.approx(0.002)
