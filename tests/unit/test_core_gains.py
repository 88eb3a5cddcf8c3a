"""Splits by what one rollout more is worth, against every split that the bounds allow."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from openrlhf_ada.core.allocation import ALLOCATIONS, GAINS, PILOTED, split, take_best

RATES = (0.02, 0.1, 0.37, 0.5, 0.8, 0.98)


def knapsack_value(p: float, n: int) -> float:
    return (1 - p**n - (1 - p) ** n) * p * (1 - p) ** 2


def vip_value(p: float, n: int) -> float:
    """Minus the variance of RLOO's gradient, up to a factor."""
    return -p * (1 - p) / (n - 1)


def hit_utility(a: float, b: float, extra: int) -> float:
    """P(at least one positive among `extra`) for p of Beta(a, b): 1 - the product of posterior chances of a miss."""
    miss = 1.0
    for i in range(extra):
        miss *= (b + i) / (a + b + i)
    return 1.0 - miss


VALUES = {"knapsack": knapsack_value, "vip": vip_value}


@pytest.mark.parametrize("name", VALUES)
def test_gain_is_growth_of_the_value_and_falls(name: str) -> None:
    for p in RATES:
        n = np.arange(2, 40, dtype=float)
        gains = GAINS[name].function(np.full_like(n, p), n)
        growth = [VALUES[name](p, int(k) + 1) - VALUES[name](p, int(k)) for k in n]
        assert gains == pytest.approx(growth, rel=1e-9, abs=1e-15)
        assert (np.diff(gains) <= 1e-15).all()


def test_hit_gain_is_growth_of_the_hit_utility_and_falls() -> None:
    for k, pilot in ((0, 4), (2, 4), (4, 4), (0, 1)):
        a, b, extra = 1.0 + k, 1.0 + pilot - k, np.arange(30, dtype=float)
        gains = PILOTED["hit"].function(np.full_like(extra, a), np.full_like(extra, b), extra)
        growth = [hit_utility(a, b, int(m) + 1) - hit_utility(a, b, int(m)) for m in extra]
        assert gains == pytest.approx(growth, rel=1e-9)
        assert (np.diff(gains) < 0).all()


def every_split(size: int, budget: int, low: int, high: int) -> list[tuple[int, ...]]:
    return [n for n in itertools.product(range(low, high + 1), repeat=size) if sum(n) == budget]


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("seed", range(8))
def test_no_other_split_is_worth_more(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rates = rng.uniform(0.03, 0.97, 4)
    low, high = 2, 9
    for budget in (8, 13, 20, 29, 36):
        counts = split(name, rates, budget, low, high, 0.02, [False] * 4, range(4))
        assert counts.sum() == budget
        best = max(
            sum(VALUES[name](p, n) for p, n in zip(rates, other, strict=True))
            for other in every_split(4, budget, low, high)
        )
        ours = sum(VALUES[name](p, n) for p, n in zip(rates, counts.tolist(), strict=True))
        assert ours == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("budget", [0, 1, 5, 11, 24])
def test_no_other_second_round_has_a_larger_hit_utility(budget: int) -> None:
    beliefs = [(1.0, 5.0), (2.0, 4.0), (3.0, 3.0), (5.0, 1.0)]
    a, b = (np.array(column)[:, None] for column in zip(*beliefs, strict=True))
    gains = PILOTED["hit"].function(a, b, np.arange(6, dtype=float)[None, :])
    extra = take_best(gains, budget, range(4))
    value = lambda counts: sum(hit_utility(*belief, m) for belief, m in zip(beliefs, counts, strict=True))  # noqa: E731
    assert value(extra.tolist()) == pytest.approx(max(map(value, every_split(4, budget, 0, 6))), rel=1e-12)


@pytest.mark.parametrize("name", [name for name in ALLOCATIONS if name not in PILOTED])
def test_every_split_keeps_budget_and_bounds(name: str) -> None:
    rates = np.random.default_rng(0).beta(0.5, 0.5, 50)
    counts = split(name, rates, 400, 2, 32, 0.02, np.zeros(50, dtype=bool), np.arange(50))
    assert counts.sum() == 400
    assert 2 <= counts.min() <= counts.max() <= 32


@pytest.mark.parametrize("name", GAINS)
def test_split_does_not_depend_on_order(name: str) -> None:
    rates = np.random.default_rng(1).uniform(0.05, 0.95, 20).round(1)
    keys = np.arange(20)
    counts = split(name, rates, 120, 2, 16, 0.02, [False] * 20, keys)
    order = np.random.default_rng(2).permutation(20)
    assert (split(name, rates[order], 120, 2, 16, 0.02, [False] * 20, keys[order]) == counts[order]).all()


@pytest.mark.parametrize("name", GAINS)
def test_prompts_given_up_fill_up_last(name: str) -> None:
    given_up = [True, False, False]
    assert split(name, [0.5, 0.5, 0.5], 18, 2, 8, 0.02, given_up, range(3)).tolist() == [2, 8, 8]
    assert split(name, [0.5, 0.5, 0.5], 20, 2, 8, 0.02, given_up, range(3)).tolist() == [4, 8, 8]


@pytest.mark.parametrize("name", GAINS)
def test_equal_prompts_get_equal_numbers(name: str) -> None:
    assert sorted(split(name, [0.3] * 3, 26, 2, 32, 0.02, [False] * 3, range(3)).tolist()) == [8, 9, 9]


@pytest.mark.parametrize("budget", [5, 25])
def test_budget_outside_the_bounds_is_an_error(budget: int) -> None:
    with pytest.raises(ValueError, match="bounds"):
        split("knapsack", [0.3] * 3, budget, 2, 8, 0.02, [False] * 3, range(3))
