"""Measures of n answers per problem against brute force, and their intervals."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_ada.eval.measures import (
    Answered,
    all_equal_at_k,
    difference,
    estimate,
    majority,
    pass_at_k,
    per_problem,
    pooled,
)


def answered(right: Sequence[bool], groups: Sequence[str] | None = None, problem: str = "p") -> Answered:
    n = len(right)
    return Answered([float(r) for r in right], [5] * n, [False] * n, right, problem, groups, [0.5] * n)


@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_pass_at_k_and_all_equal_are_means_over_all_subsets(right: list[bool]) -> None:
    n, c = len(right), sum(right)
    for k in range(1, n + 1):
        subsets = list(itertools.combinations(right, k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
        equal = sum(len(set(subset)) == 1 for subset in subsets)
        assert all_equal_at_k(n, c, k) == pytest.approx(equal / len(subsets))


@pytest.mark.parametrize(
    ("groups", "right", "share"),
    [
        ("aab", "a", 1.0),
        ("abb", "a", 0.0),
        ("aabb", "a", 0.5),
        ("abc", "a", 1 / 3),
        # Three have no answer, and no vote.
        ("a---b-a", "a", 1.0),
        ("---", "", 0.0),
    ],
)
def test_the_most_frequent_answer_decides(groups: str, right: str, share: float) -> None:
    names = ["" if group == "-" else group for group in groups]
    assert majority([name in right and bool(name) for name in names], names) == pytest.approx(share)


def test_equal_answers_count_by_share_in_any_order() -> None:
    for right in ([False, True, True, False], [True, True, False, True]):
        assert majority(right, ["a"] * 3 + ["b"]) == pytest.approx(2 / 3)


def test_values_by_problem() -> None:
    values = per_problem(
        [answered([True, False, False, False], list("abbc")), answered([True] * 4, list("aaaa"))], 4, [2]
    )
    assert values["avg@4"].tolist() == [0.25, 1.0]
    assert values["pass@2"].tolist() == [0.5, 1.0]
    assert values["all_equal@2"].tolist() == [0.5, 1.0]
    assert values["maj@4"].tolist() == [0.0, 1.0]


def test_large_counts_are_stable() -> None:
    # 1 - C(99999, 1000) / C(100000, 1000) = 1000 / 100000.
    assert pass_at_k(100_000, 1, 1000) == pytest.approx(0.01)


def test_problem_with_too_few_answers_skips_that_measure() -> None:
    values = per_problem([answered([True] * 4), answered([False] * 3)], 4, [4])
    assert np.isnan(values["pass@4"]).tolist() == [False, True]
    assert estimate(values["pass@4"]).num_problems == 1
    assert values["avg@4"].tolist() == [1.0, 0.0]


def test_programs_are_not_compared() -> None:
    assert not any(name.startswith("maj") for name in per_problem([answered([True])], 1, [1]))


def test_intervals_cover_the_mean_in_95_of_100_cases() -> None:
    rng = np.random.default_rng(0)
    rates = rng.beta(1, 2, size=(400, 60))
    hits = 0
    for rate in rates:
        values = rng.binomial(8, rate) / 8
        interval = estimate(values)
        hits += interval.low <= 1 / 3 <= interval.high
    assert 0.91 <= hits / len(rates) <= 0.98


def test_a_share_of_none_or_all_has_an_interval_too() -> None:
    none = estimate(np.zeros(20), share=True)
    assert (none.mean, none.low) == (0.0, 0.0)
    assert none.high == pytest.approx(0.161, abs=0.001)
    assert estimate(np.ones(20), share=True).low == pytest.approx(0.839, abs=0.001)
    assert estimate(np.full(20, 7.0)).high == 7.0
    half = estimate(np.array([0.5]), share=True)
    assert (half.low, half.high) == pytest.approx((0.103, 0.897), abs=0.001)
    always = difference(np.ones(3), np.zeros(3))
    assert (always.mean, always.num_differing) == (1.0, 3) and always.low < 0.1
    assert always.high == pytest.approx(1.0)


def test_the_difference_is_of_pairs() -> None:
    rng = np.random.default_rng(0)
    first = rng.random(50) * 0.8
    gain = difference(first + rng.normal(0.1, 0.01, 50), first)
    assert gain.mean == pytest.approx(0.1, abs=0.01)
    # A difference of 1 may be so rare that none of 50 problems has it, so the interval is not as narrow as the values.
    assert 0.0 < gain.low < 0.1 < gain.high < 0.17
    assert (gain.num_differing, gain.num_problems) == (50, 50)
    assert estimate(first + 0.1, share=True).low < estimate(first, share=True).high


def test_a_model_against_itself_does_not_differ() -> None:
    values = np.random.default_rng(0).binomial(8, 0.4, 500) / 8
    same = difference(values, values.copy())
    assert (same.mean, same.num_differing) == (0.0, 0)
    assert -0.008 < same.low < 0.0 < same.high < 0.008
    # 1/3 of three answers and of six, by other roundings
    assert difference(np.array([0.1 + 0.2]), np.array([0.3])).num_differing == 0


def test_the_average_counts_every_problem_the_same() -> None:
    together = pooled({"a": {"avg@1": np.ones(3), "maj@1": np.ones(3)}, "b": {"avg@1": np.zeros(1)}})
    assert list(together) == ["avg@1"]
    assert estimate(together["avg@1"]).mean == 0.75
