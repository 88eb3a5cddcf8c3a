"""Exit `gate` (Pilot-Commit, SPEED) against every order of outcomes: what is drawn, dropped, and optimised."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from cases import THRESHOLD, pool_of
from run_flags import settings_with

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.method_rules import check_settings, without_effect
from openrlhf_ada.config.settings import Settings, make_policy
from openrlhf_ada.core.exact import sequential_weight
from openrlhf_ada.core.grouping import GroupBuilder
from openrlhf_ada.core.objectives import Objective, effective_weight
from openrlhf_ada.core.policies import Close, Draw, Sequential
from openrlhf_ada.core.selection import Selection
from openrlhf_ada.core.stopping import ExitRule, Gate
from openrlhf_ada.core.types import Sample

RATES = (0.01, 0.1, 0.3, 0.5, 0.9)


def gated(gate: Gate, n: int, most: int, select: str = "balanced", **options: Any) -> Sequential:
    builder = GroupBuilder(Selection(select, n, THRESHOLD), "dr_grpo", **options)
    return Sequential(ExitRule(0, 0, THRESHOLD, gate=gate), 8, most, builder)


def chance(outcomes: tuple[int, ...], p: float) -> float:
    return math.prod(p if outcome else 1 - p for outcome in outcomes)


GATES = [Gate(4, 0.25, 0.75), Gate(3, 0.0, 0.5), Gate(4, 0.5, 1.0), Gate(2, 0.5, 0.5)]


@pytest.mark.parametrize("gate", GATES, ids=str)
def test_prompt_goes_on_if_its_share_is_within_the_bounds(gate: Gate) -> None:
    policy = gated(gate, n=2, most=9)
    assert policy.decide([pool_of([])]) == [Draw(0, gate.pilot)]
    for outcomes in itertools.product((0, 1), repeat=gate.pilot):
        goes_on = gate.low <= sum(outcomes) / gate.pilot <= gate.high
        expected = Draw(0, 9 - gate.pilot) if goes_on else Close(0)
        assert policy.decide([pool_of(outcomes)]) == [expected]
        assert policy.decide([pool_of([*outcomes, *[1] * (9 - gate.pilot)])]) == [Close(0)], "the cap"


def test_bounds_meet_shares_that_floats_only_come_near_to() -> None:
    gate = Gate(10, 0.1 + 0.2, 0.7)
    assert (gate.fewest, gate.most) == (3, 7)


@pytest.mark.parametrize("gate", GATES, ids=str)
def test_plan_has_the_probability_of_every_end(gate: Gate) -> None:
    policy, p = gated(gate, n=2, most=6), 0.3
    by_hand: dict[tuple[int, int], float] = {}
    for outcomes in itertools.product((0, 1), repeat=6):
        drawn = 6 if gate.is_open(sum(outcomes[: gate.pilot])) else gate.pilot
        state = drawn, sum(outcomes[:drawn])
        by_hand[state] = by_hand.get(state, 0.0) + chance(outcomes, p)
    assert policy.plan.outcomes(p) == pytest.approx(by_hand)
    mean = sum(share * policy.plan.unbiased_rate(*state) for state, share in by_hand.items())
    assert mean == pytest.approx(p), "without stopping bias"


def weight_by_hand(policy: Sequential, p: float) -> float:
    """Over all orders of outcomes; a pool that ends before n samples is not trained."""
    gate, most, n = policy.rule.gate, policy.max_samples, policy.group_size
    assert gate is not None
    total = 0.0
    for outcomes in itertools.product((0, 1), repeat=most):
        drawn = most if gate.is_open(sum(outcomes[: gate.pilot])) else gate.pilot
        pool = pool_of(outcomes[:drawn])
        pool.predicted = p
        group = policy.build(pool, np.random.default_rng(0))
        positive = [outcomes[i] == 1 for i in group.indices]
        total += chance(outcomes, p) * effective_weight(group.coefficients, positive, p, n)
    return total


@pytest.mark.slow
@pytest.mark.parametrize("gate", GATES, ids=str)
@pytest.mark.parametrize(("n", "estimator"), [(2, "dr_grpo"), (7, "dr_grpo"), (7, "group_norm")])
def test_enumerated_weight_is_that_of_all_orders(gate: Gate, n: int, estimator: str) -> None:
    policy = gated(gate, n, 7, "random" if n == 7 else "balanced")
    builder = GroupBuilder(policy.builder.selection, estimator)
    policy = Sequential(policy.rule, 8, 7, builder)
    for p in (0.1, 0.5, 0.9):
        assert sequential_weight(policy, p).effective == pytest.approx(weight_by_hand(policy, p))


@pytest.mark.parametrize("gate", GATES, ids=str)
@pytest.mark.parametrize("name", ["linear", "log"])
def test_stratum_is_exact_where_no_prompt_is_dropped(gate: Gate, name: str) -> None:
    policy = gated(
        gate, 2, 16, baseline="estimator", correction="stratum", objective=Objective(name)
    )  # fmt: skip
    for p in RATES:
        assert sequential_weight(policy, p).effective == pytest.approx(Objective(name).weight(p), rel=1e-9)


def test_bias_of_pilots_that_stay_in_the_group() -> None:
    """8 rollouts and 24 more where 1 to 6 are positive: what the published group takes the pass rate to be."""
    gate, p = Gate(8, 0.125, 0.75), 0.05
    plan = gated(gate, 32, 32, "random").plan
    kept = {state: share for state, share in plan.outcomes(p).items() if state[0] == 32}
    passes = sum(share for share in kept.values())
    assert passes == pytest.approx(0.34, abs=0.005)
    assert sum(share * k / n for (n, k), share in kept.items()) / passes == pytest.approx(0.075, abs=5e-4)


def test_dropped_pool_fills_its_place_and_trains_nothing() -> None:
    policy = gated(Gate(4, 0.25, 0.75), 10, 10, "random")
    group = policy.build(pool_of([0, 0, 0, 0]), np.random.default_rng(0))
    assert group.indices == (0, 0, 0, 1, 1, 1, 2, 2, 3, 3)
    assert set(group.coefficients) == set(group.critic_weights) == {0.0}
    assert not group.resolved
    assert not policy.build(pool_of([1, 1, 1, 1]), np.random.default_rng(0)).resolved
    assert policy.build(pool_of([1, 0] * 5), np.random.default_rng(0)).resolved


def test_chance_of_need_is_that_of_an_open_gate() -> None:
    policy = gated(Gate(4, 0.25, 0.75), 10, 10, "random")
    assert policy.chance_of_need(pool_of([]), [], sent=3) == 1.0
    # With the uniform prior all numbers of positives are equally likely: 1, 2 and 3 of 0 to 4 go on.
    assert policy.chance_of_need(pool_of([]), [], sent=4) == pytest.approx(3 / 5)
    back = [Sample(0, 0, 1.0, 1.0, 1), Sample(0, 1, 0.0, 0.0, 1)]
    assert policy.chance_of_need(pool_of([]), back, sent=4) == pytest.approx(1.0)
    assert policy.chance_of_need(pool_of([1, 0, 1, 0]), [], sent=9) == pytest.approx(1.0)
    assert policy.chance_of_need(pool_of([1, 0, 1, 0]), [], sent=10) == 0.0


# -- flags ------------------------------------------------------------------------------------------------------------


def settings_of(n: int = 4, advantage: str = "dr_grpo", **flags: Any) -> Settings:
    return settings_with(n=n, advantage=advantage, **{"mode": "seq", "exit": "gate"} | flags)


def test_flags_make_the_gate() -> None:
    settings = settings_of(pilot=6, gate_low=0.2, gate_high=0.5, max_samples=20)
    check_settings(settings)
    policy = make_policy(settings)
    assert isinstance(policy, Sequential)
    assert policy.rule.gate == settings.gate == Gate(6, 0.2, 0.5)
    assert (settings.first_wave, settings.drops_prompts, settings.waits) == (4, False, True)
    assert settings_of(n=16, max_samples=16).first_wave == 8


def test_default_gate_is_pilot_commits() -> None:
    assert settings_of().gate == Gate(8, 0.125, 0.75)


@pytest.mark.parametrize(
    ("n", "flags", "message"),
    [
        (4, {"pilot": 32}, r"^--ada_pilot is 32: they are rollouts below --ada_max_samples, so at most 31"),
        (4, {"gate_low": 0.4, "gate_high": 0.45}, r"^--ada_gate_low is 0.4: no number of positives among 8 rollouts"),
        (4, {"gate_low": 0.8, "gate_high": 0.2}, r"^--ada_gate_low is 0.8"),
        (32, {"correction": "stratum"}, r"^--ada_correction is 'stratum': .* since n is more than --ada_pilot"),
        (32, {"correction": "positives"}, r"^--ada_correction is 'positives': .* drops prompts with their positives"),
        (32, {"baseline": "unbiased"}, r"^--ada_baseline is 'unbiased': .* drops prompts by their first rollouts"),
    ],
)
def test_gate_without_a_meaning_is_refused(n: int, flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_settings(settings_of(n, **flags))


def test_ppo_cannot_learn_from_dropped_prompts() -> None:
    with pytest.raises(
        ConfigError, match=r"^--algo.advantage.estimator is 'gae': .* drops prompts by their first rollouts"
    ):
        check_settings(settings_of(32, "gae"))
    check_settings(settings_of(4, "gae"))


def test_waves_have_no_meaning_beside_a_gate() -> None:
    (warning,) = without_effect(settings_of(wave=4))
    assert warning == "--ada_wave: without effect, since exit gate has no waves"
