"""The exact split: against brute force, and what holds for every input."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_ada.core.allocation import PRIORITIES, allocate, priority


def best_by_brute_force(u: list[float], budget: int, low: int, high: int) -> float:
    """Smallest sum of squared distances to the bounded proportional split, over all integer splits."""
    quota = bounded_quota(u, budget, low, high)
    splits = itertools.product(range(low, high + 1), repeat=len(u))
    return min(float(np.sum((np.array(s) - quota) ** 2)) for s in splits if sum(s) == budget)


def bounded_quota(u: list[float], budget: int, low: int, high: int) -> np.ndarray:
    """clip(c u, low, high) with the c that meets the budget, by bisection."""
    values = np.array(u)
    below, above = 0.0, high / values.min()
    for _ in range(200):
        c = (below + above) / 2
        below, above = (c, above) if np.clip(c * values, low, high).sum() < budget else (below, c)
    return np.clip(above * values, low, high)


small = st.lists(st.floats(0.05, 20), min_size=1, max_size=4)


@pytest.mark.slow
@given(small, st.integers(0, 2), st.integers(0, 4), st.data())
def test_no_integer_split_is_nearer_to_proportional(u: list[float], low: int, width: int, data: st.DataObject) -> None:
    high = low + width
    budget = data.draw(st.integers(low * len(u), high * len(u)))
    split = allocate(u, budget, low, high, range(len(u)))
    distance = float(np.sum((split - bounded_quota(u, budget, low, high)) ** 2))
    assert distance == pytest.approx(best_by_brute_force(u, budget, low, high), abs=1e-6)


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[float], int, list[int], list[int]]:
    u = draw(st.lists(st.one_of(st.just(0.0), st.floats(1e-9, 1e9)), min_size=1, max_size=40))
    low = [draw(st.integers(0, 4)) for _ in u]
    high = [lower + draw(st.integers(0, 30)) for lower in low]
    return u, draw(st.integers(sum(low), sum(high))), low, high


@given(problems())
def test_sum_and_bounds_are_exact(problem: tuple[list[float], int, list[int], list[int]]) -> None:
    u, budget, low, high = problem
    split = allocate(u, budget, low, high, range(len(u)))
    assert split.dtype == np.int64
    assert split.sum() == budget
    assert (split >= low).all()
    assert (split <= high).all()


@given(problems(), st.data())
def test_order_of_the_prompts_does_not_matter(
    problem: tuple[list[float], int, list[int], list[int]], data: st.DataObject
) -> None:
    u, budget, low, high = (np.array(part) for part in problem)
    ties = np.arange(len(u))
    order = np.array(data.draw(st.permutations(range(len(u)))))
    permuted = allocate(u[order], int(budget), low[order], high[order], ties[order])
    assert (permuted == allocate(u, int(budget), low, high, ties)[order]).all()


def test_a_priority_that_is_higher_by_a_rounding_error_does_not_get_fewer() -> None:
    u = [1.0, 1.0, 1.0, 1.0, 79.45345185291517, 0.010000000000000002, 0.01]
    assert allocate(u, 16, 0, 3, range(7)).tolist() == [3, 3, 3, 3, 3, 1, 0]


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=30), st.integers(0, 3), st.integers(1, 30), st.data())
def test_higher_priority_never_gets_fewer(u: list[float], low: int, width: int, data: st.DataObject) -> None:
    high = low + width
    split = allocate(u, data.draw(st.integers(low * len(u), high * len(u))), low, high, range(len(u)))
    for i, j in itertools.permutations(range(len(u)), 2):
        if u[i] > u[j]:
            assert split[i] >= split[j]
        elif u[i] == u[j]:
            assert abs(split[i] - split[j]) <= 1


def test_by_hand() -> None:
    assert allocate([1, 1, 2], 8, 0, 8, [0, 1, 2]).tolist() == [2, 2, 4]
    assert allocate([1, 1, 100], 8, 1, 4, [0, 1, 2]).tolist() == [2, 2, 4], "what the cap leaves is shared"
    assert allocate([1, 1, 1], 7, 2, 4, [7, 3, 5]).tolist() == [2, 3, 2], "a tie goes to the smallest tie-break"
    assert allocate([0, 0, 5], 6, 1, 10, [0, 1, 2]).tolist() == [1, 1, 4], "priority 0 gets the least"
    assert allocate([0, 0, 5], 6, 1, 3, [0, 1, 2]).tolist() == [2, 1, 3], "until all others are full"
    assert allocate([], 0, 2, 32, []).tolist() == []


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_priorities_must_be_numbers(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        allocate([1.0, bad], 8, 0, 8, [0, 1])


@pytest.mark.parametrize(("budget", "low", "high"), [(3, 2, 8), (17, 2, 8), (8, 5, 4)])
def test_budget_must_fit_the_bounds(budget: int, low: int, high: int) -> None:
    with pytest.raises(ValueError, match=rf"\b{budget}\b.*bounds"):
        allocate([1.0, 2.0], budget, low, high, [0, 1])


@pytest.mark.parametrize("name", PRIORITIES)
def test_priorities_are_finite_at_pass_rates_0_and_1(name: str) -> None:
    values = priority(name, [0.0, 1e-12, 0.3, 1.0], floor=0.02)
    assert np.isfinite(values).all()
    assert (values > 0).all()


def test_priorities_by_hand() -> None:
    p, floor = [0.04, 0.5], 0.01
    assert priority("inverse_sqrt", p, floor).tolist() == pytest.approx([5, 2**0.5])
    assert priority("inverse", p, floor).tolist() == pytest.approx([25, 2])
    assert priority("std", p, floor).tolist() == pytest.approx([(0.04 * 0.96) ** 0.5, 0.5])
    assert priority("odds", p, floor).tolist() == pytest.approx([24**0.5, 1])
    assert priority("uniform", p, floor).tolist() == [1, 1]


@pytest.mark.parametrize("name", ["std", "odds"])
def test_neymans_priorities_give_the_least_variance(name: str) -> None:
    """Brute force over all splits of 12 among 3: sum of (f'(p) sigma)^2 / n is least near n ~ f'(p) sigma."""
    p = np.array([0.1, 0.3, 0.6])
    weight = {"std": np.ones(3), "odds": 1 / p}[name]
    spread = (weight**2) * p * (1 - p)

    def variance(split: tuple[int, ...]) -> float:
        return float(np.sum(spread / np.array(split)))

    splits = [s for s in itertools.product(range(1, 11), repeat=3) if sum(s) == 12]
    ours = tuple(allocate(priority(name, p, 1e-6), 12, 1, 10, range(3)).tolist())
    assert variance(ours) <= 1.02 * min(variance(s) for s in splits)


def test_gvms_split_is_the_least_of_what_it_minimises() -> None:
    """Brute force over all splits of 16 among 4: the sum of G^2 / (p n (1 + alpha / p^beta)), its G all 1."""
    p = np.array([0.01, 0.05, 0.3, 0.9])
    spread = 1.0 / (p * (1.0 + 1e-3 / p**2))

    def minimised(split: tuple[int, ...]) -> float:
        return float(np.sum(spread / np.array(split)))

    splits = [s for s in itertools.product(range(1, 14), repeat=4) if sum(s) == 16]
    ours = tuple(allocate(priority("gvm", p, 1e-6), 16, 1, 13, range(4)).tolist())
    assert minimised(ours) <= 1.02 * min(minimised(s) for s in splits)
    assert ours[0] < ours[1], "of the hardest it draws less, which 1 / sqrt(p) would not"


@pytest.mark.slow
def test_a_million_prompts() -> None:
    """Bounds and budget at scale; benchmarks/core.py has the time."""
    rates = np.random.default_rng(0).beta(0.5, 1.0, 1_000_000)
    split = allocate(priority("inverse_sqrt", rates, 0.02), 8_000_000, 2, 32, np.arange(len(rates)))
    assert (split.sum(), split.min() >= 2, split.max() <= 32) == (8_000_000, True, True)


def test_dars_is_its_published_schedule() -> None:
    """Its code: after N first rollouts, N/2 - 2 p (1-p) N over 2 p (1-p) more below p = 1/2, none above."""
    p, n = np.linspace(0.02, 0.98, 49), 8
    spread = 2 * p * (1 - p)
    extra = np.where(p < 0.5, (0.5 * n - n * spread) / spread, 0.0)
    assert n * priority("dars", p, 0.02) == pytest.approx(n + extra)


def test_cures_with_equal_gradient_norms_is_std() -> None:
    """Its equation with norms of right and wrong answers alike: p q^2 + p^2 q - p^2 q^2 (1 - 1)^2 is p q."""
    p = np.linspace(0.02, 0.98, 49)
    variance = p * (1 - p) ** 2 * 1.0**2 + p**2 * (1 - p) * 1.0**2 - p**2 * (1 - p) ** 2 * (1.0 - 1.0) ** 2
    assert priority("std", p, 0.02) == pytest.approx(np.sqrt(variance))
