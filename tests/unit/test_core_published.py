"""What published methods optimise: MaxRL and AERO against their own formulas, presets in the simulator."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest
from cases import pool_of

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.method_rules import check_settings
from openrlhf_ada.config.objective_notes import objective_notes, weights_of
from openrlhf_ada.config.presets import METHODS, Flags
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import Settings, make_policy, resolve
from openrlhf_ada.core.exact import expected_split, sequential_weight
from openrlhf_ada.core.objectives import effective_weight
from openrlhf_ada.core.pieces import Need
from openrlhf_ada.core.policies import Estimated, Sequential
from openrlhf_ada.core.types import PromptPool
from openrlhf_ada.simulation.coin_flips import simulate

RATES = (0.01, 0.05, 0.1, 0.3, 0.5, 0.9, 0.99)

ADAPTIVE = [name for name, method in METHODS.items() if method.flags["ada.mode"] != "off" and "critic" not in name]


def settings_of(name: str, estimator: str | None = None, **changed: Any) -> Settings:
    """`changed`: flags of ours."""
    flags: Flags = METHODS[name].flags
    ours = {flag.removeprefix("ada."): value for flag, value in flags.items() if flag.startswith("ada.")}
    n, advantage = flags["rollout.n_samples_per_prompt"], estimator or flags["algo.advantage.estimator"]
    return resolve(AdaConfig(**ours | changed), n=n, advantage=advantage, batch=32)


def sequential_of(name: str, **changed: Any) -> Sequential:
    policy = make_policy(settings_of(name, **changed))
    assert isinstance(policy, Sequential)
    return policy


# -- every preset -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ADAPTIVE)
def test_preset_has_no_contradiction_and_states_its_objective(name: str) -> None:
    settings = settings_of(name)
    check_settings(settings)
    note = objective_notes(settings)[0]
    assert re.search(r"[\d.]+ at (1%, [\d.]+ at 10%, [\d.]+ at 50%, [\d.]+ at 90%|every rate)", note)


@pytest.mark.parametrize("name", ADAPTIVE)
def test_preset_runs_and_goes_on_from_its_state(name: str) -> None:
    settings = settings_of(name)
    rates = np.random.default_rng(0).beta(1, 1, 64)
    batches = [list(range(32)), list(range(32, 64)), list(range(32)), list(range(16, 48))]
    whole, resumed = make_policy(settings), make_policy(settings)
    first = list(simulate(whole, iter(batches[:2]), lambda _, rows: rates[rows], 1))
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    goes_on, again = (
        list(simulate(policy, iter(batches[2:]), lambda _, rows: rates[rows], 2)) for policy in (whole, resumed)
    )
    assert [step.groups for step in goes_on] == [step.groups for step in again]
    for step in first + goes_on:
        trained = sum(len(group.indices) for group in step.groups)
        expected = step.ledger.drawn if settings.trains_varying else 32 * settings.group_size
        assert trained == expected, "as many as the trainer expects"
        if settings.mode == "est":
            assert step.ledger.drawn == 32 * settings.budget, "the budget is exact"
        else:
            assert step.ledger.drawn <= 32 * settings.max_samples


@pytest.mark.parametrize("name", ["knapsack", "gvm", "sgpo", "hora", "vip"])
def test_stratum_takes_the_weight_of_a_split_out(name: str) -> None:
    settings = settings_of(name, "dr_grpo", correction="stratum", objective="linear")
    check_settings(settings)
    assert [weight.effective for weight in weights_of(settings)] == pytest.approx([1.0] * 4)


# -- MaxRL ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 8, 16, 128])
def test_maxrl_is_log_p_truncated_at_one_rollout_less(n: int) -> None:
    """(r - mean) / mean, and 0 where all are wrong. With -1 there, it would be truncated at n."""
    policy = make_policy(settings_of_n(n))
    assert isinstance(policy, Sequential)
    for p in RATES:
        weight = sequential_weight(policy, p).effective
        assert weight == pytest.approx((1 - (1 - p) ** (n - 1)) / p)
        assert weight + (1 - p) ** (n - 1) == pytest.approx((1 - (1 - p) ** n) / p)


def settings_of_n(n: int, **changed: Any) -> Settings:
    """maxrl with n rollouts."""
    ours = {
        flag.removeprefix("ada."): value for flag, value in METHODS["maxrl"].flags.items() if flag.startswith("ada.")
    }
    return resolve(AdaConfig(**ours | {"max_samples": n} | changed), n=n, advantage="dr_grpo", batch=32)


def test_maxrl_divides_by_the_mean() -> None:
    policy = make_policy(settings_of("maxrl"))
    for k in range(1, 9):
        group = policy.build(pool_of([1] * k + [0] * (8 - k)), np.random.default_rng(0))
        mean = k / 8
        expected = [(1 - mean) / mean] * k + [-1.0] * (8 - k) if k < 8 else [0.0] * 8
        assert group.coefficients == pytest.approx(expected)
    assert set(policy.build(pool_of([0] * 8), np.random.default_rng(0)).coefficients) == {0.0}


def test_positives_alone_are_truncated_at_n() -> None:
    policy = make_policy(settings_of_n(8, correction="positives", baseline=None))
    assert isinstance(policy, Sequential)
    for p in RATES:
        assert sequential_weight(policy, p).effective == pytest.approx((1 - (1 - p) ** 8) / p)


# -- AERO -------------------------------------------------------------------------------------------------------------


def aero_by_hand(outcomes: tuple[int, ...]) -> tuple[float, float]:
    """(sum of the coefficients of positives, minus that of negatives) of what AERO itself keeps."""
    drawn, k = len(outcomes), sum(outcomes)
    if k in (0, drawn):
        signal = 2 * (k + 1) / (drawn + 2) - 1
        return (4 * signal, 0.0) if k else (0.0, -4 * signal)
    kept_neg = k if k / drawn < 0.5 else drawn - k
    rewards = np.array([1.0] * k + [0.0] * kept_neg)
    advantages = (rewards - rewards.mean()) / rewards.std(ddof=1)
    return float(advantages[:k].sum()), -float(advantages[k:].sum())


def aero_stops(outcomes: tuple[int, ...]) -> int:
    """8 rollouts, then 2 at a time until one is positive, at most 16."""
    for drawn in range(8, 17, 2):
        if sum(outcomes[:drawn]):
            return drawn
    return 16


def test_aero_has_the_published_rules_weight() -> None:
    policy = sequential_of("aero")
    for p in RATES:
        expected = 0.0
        for (drawn, k), chance in policy.plan.outcomes(p).items():
            gain, loss = aero_by_hand((1,) * k + (0,) * (drawn - k))
            expected += chance * (gain / p + loss / (1 - p)) / 8
        assert sequential_weight(policy, p).effective == pytest.approx(expected)


def test_aero_stops_as_published() -> None:
    policy = sequential_of("aero")
    for first in range(17):
        outcomes = tuple(int(i == first) for i in range(16))
        drawn = 0
        while (size := getattr(policy.decide([pool_of(outcomes[:drawn])])[0], "count", 0)) > 0:
            drawn += size
        assert drawn == aero_stops(outcomes)


def test_aero_pulls_prompts_of_one_outcome() -> None:
    policy = sequential_of("aero")
    wrong = policy.build(pool_of([0] * 16), np.random.default_rng(0))
    right = policy.build(pool_of([1] * 8), np.random.default_rng(0))
    assert sum(wrong.coefficients) == pytest.approx(4 * (2 / 18 - 1))
    assert sum(right.coefficients) == pytest.approx(4 * (2 * 9 / 10 - 1))


@pytest.mark.parametrize(
    ("changed", "needed"),
    [
        ({"correction": "stratum"}, Need.PLAIN_ADVANTAGES),
        ({"unresolved": "refill"}, Need.SILENT_UNRESOLVED),
        ({"format": "boxed", "format_bonus": 0.1}, Need.UNSHAPED_REWARDS),
    ],
)
def test_aero_with_what_it_lacks_is_refused(changed: dict[str, Any], needed: Need) -> None:
    with pytest.raises(ConfigError, match=needed.value):
        check_settings(settings_of("aero", **changed))


# -- D3S, PODS, SPEED ---------------------------------------------------------------------------------------------


def test_d3s_divides_by_the_deviation_of_all_rollouts() -> None:
    pool = pool_of([1, *[0] * 15])
    std = math.sqrt(16 / 15 * (1 / 16) * (15 / 16))
    group = sequential_of("d3s").build(pool, np.random.default_rng(0))
    assert sorted(group.coefficients) == pytest.approx([*[-1 / 16 / std] * 3, 15 / 16 / std])
    kept = sequential_of("pods").build(pool, np.random.default_rng(0))
    assert sorted(kept.coefficients) == pytest.approx([-0.5] * 3 + [1.5])


def test_speed_trains_all_rollouts_of_mixed_screens_as_rloo() -> None:
    policy = sequential_of("speed")
    for p in (0.1, 0.5):
        expected = 0.0
        for k in range(1, 4):
            for more in range(21):
                total = k + more
                chance = math.comb(4, k) * math.comb(20, more) * p**total * (1 - p) ** (24 - total)
                rewards = np.array([1.0] * total + [0.0] * (24 - total))
                advantages = rewards - (total - rewards) / 23
                expected += chance * effective_weight(advantages, rewards > 0.5, p, 24)
        assert sequential_weight(policy, p).effective == pytest.approx(expected)


def test_pilot_commit_goes_on_from_2_to_12_of_16() -> None:
    policy = sequential_of("pilot-commit")
    for k in range(17):
        action = policy.decide([pool_of([1] * k + [0] * (16 - k))])[0]
        assert getattr(action, "count", 0) == (48 if 2 <= k <= 12 else 0)
    assert getattr(policy.decide([pool_of([])])[0], "count", 0) == 16


# -- budgets that are split -------------------------------------------------------------------------------------------

SPLITS = ("reinforce-ada-est", "vip", "knapsack", "gvm", "sgpo", "cures", "dars")


def estimated_of(name: str, **changed: Any) -> Estimated:
    policy = make_policy(settings_of(name, **changed))
    assert isinstance(policy, Estimated)
    return policy


@pytest.mark.parametrize("name", SPLITS)
def test_a_split_gives_nothing_up_unless_told(name: str) -> None:
    """1,000 misses in a row; with --ada_give_up 64 that prompt gets the least number."""
    counts = {}
    for give_up in (None, 64):
        policy = estimated_of(name, **({"give_up": give_up} if give_up else {}))
        memory = policy.memory.counts
        for _ in range(50):
            memory.observe(range(4), [20] * 4, [0, 2, 10, 18])
        assert memory.given_up(range(4)).tolist() == [give_up is not None, False, False, False]
        actions = policy.decide([PromptPool(row, row=row) for row in range(4)])
        counts[give_up] = [getattr(action, "count", 0) for action in actions]
    assert counts[64][0] == estimated_of(name).min_samples
    if name in ("reinforce-ada-est", "sgpo", "dars"):
        assert counts[None][0] == max(counts[None]), "hard prompts get most"


def coefficients_by_hand(name: str, k: int, n: int) -> np.ndarray:
    """Of k positives, which come first, and n - k negatives, in units of one of 8 rollouts."""
    rewards = np.array([1.0] * k + [0.0] * (n - k))
    centred = rewards - k / n
    if name == "reinforce-ada-est":
        return centred / math.sqrt(max(k / n, 0.02))
    return centred / rewards.std(ddof=1) if name == "sgpo" and 0 < k < n else centred


def weight_by_hand(name: str, p: float, n: int) -> float:
    outcomes = ((k, math.comb(n, k) * p**k * (1 - p) ** (n - k)) for k in range(n + 1))
    return sum(
        chance * effective_weight(coefficients_by_hand(name, k, n), np.arange(n) < k, p, 8) for k, chance in outcomes
    )


def long_run_weight(name: str, p: float, n: int, least: int) -> float:
    """Of the visits to one prompt where it is given up after 64 misses in a row, until it has a positive."""
    full = math.ceil(64 / n)
    # Visits in each state: so many in a row without a positive, then given up.
    visits = [(1 - p) ** (n * i) for i in range(full)]
    given_up = (1 - p) ** (n * full) / (1 - (1 - p) ** least)
    open_share = sum(visits) / (sum(visits) + given_up)
    return open_share * weight_by_hand(name, p, n) + (1 - open_share) * weight_by_hand(name, p, least)


@pytest.mark.parametrize(
    ("name", "as_published", "giving_up"),
    [("reinforce-ada-est", 19.2, 2.14), ("sgpo", 20.2, 1.41), ("dars", 3.87, 0.356)],
)
def test_a_hard_prompt_keeps_the_published_weight(name: str, as_published: float, giving_up: float) -> None:
    """At p = .01, in a batch of evenly spread pass rates that are predicted right."""
    n = int(expected_split(estimated_of(name), np.arange(1, 100) / 100)[0])
    (weight,) = weights_of(settings_of(name), (0.01,))
    assert weight.effective == pytest.approx(weight_by_hand(name, 0.01, n)) == pytest.approx(as_published, rel=0.005)
    assert long_run_weight(name, 0.01, n, 2) == pytest.approx(giving_up, rel=0.005)
