"""The chance that a sample will be needed, against counting and against coin flips."""

from __future__ import annotations

from itertools import product
from math import comb

import pytest
from cases import pool_of, sequential
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_ada.core.speculation import SpeculationQueue, chance_of_count
from openrlhf_ada.core.types import Sample


@pytest.mark.parametrize(("k_pos", "k_neg"), [(1, 0), (0, 1), (1, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize(
    ("positives", "negatives", "unknown"), [(0, 0, 4), (1, 3, 2), (0, 5, 0), (2, 2, 3), (4, 0, 1)]
)
def test_chance_is_that_of_a_beta_binomial(
    k_pos: int, k_neg: int, positives: int, negatives: int, unknown: int
) -> None:
    """With the uniform prior, an order of outcomes with a positives and b negatives has probability a! b!/(a+b+1)!"""

    def weight(a: int, b: int) -> float:
        return 1.0 / ((a + b + 1) * comb(a + b, a))

    going_on = sum(
        weight(positives + sum(rest), negatives + unknown - sum(rest))
        for rest in product((0, 1), repeat=unknown)
        if positives + sum(rest) < k_pos or negatives + unknown - sum(rest) < k_neg
    ) / weight(positives, negatives)
    most = positives + negatives + unknown - k_neg
    ends = chance_of_count(k_pos, most, positives, negatives, unknown, 0.5)
    assert 1.0 - ends == pytest.approx(going_on, abs=1e-12)


def test_policy_uses_the_latest_view_before_the_sample() -> None:
    policy = sequential(1, 0, n=2, wave=4, cap=10)
    pool = pool_of([0, 0, 0, 0])
    late = [Sample(0, i, 1.0, 1.0, 1) for i in (9, 5)]
    assert policy.chance_of_need(pool_of([]), [], sent=3) == 1.0, "before the first look"
    assert policy.chance_of_need(pool, [], sent=4) == 1.0, "the look at 4 failed"
    assert policy.chance_of_need(pool, [], sent=6) == 1.0
    assert 0.3 < policy.chance_of_need(pool, [], sent=8) < 0.7, "the look at 8 has four unknown"
    assert policy.chance_of_need(pool, late, sent=8) == 0.0, "one of them is known to be right"
    assert policy.chance_of_need(pool, late[:1], sent=8) > 0.3, "one beyond the look says nothing about it"
    assert policy.chance_of_need(pool, [], sent=10) == 0.0, "the cap"


def test_a_known_pass_rate_guides_the_first_guess() -> None:
    policy = sequential(1, 0, n=2, wave=4, cap=8)
    easy, hard = pool_of([]), pool_of([])
    easy.predicted, hard.predicted = 0.9, 0.1
    assert policy.chance_of_need(hard, [], sent=4) > 3 * policy.chance_of_need(easy, [], sent=4)


@pytest.mark.parametrize("predicted", [0.0, 0.004, 0.996, 1.0])
def test_certain_prediction_is_only_a_guess(predicted: float) -> None:
    """A critic may predict 0 or 1, and counts come close to them."""
    for k_pos, k_neg in ((1, 0), (1, 1), (2, 2)):
        pool = pool_of([])
        pool.predicted = predicted
        assert 0 <= sequential(k_pos, k_neg, n=2, wave=4, cap=8).chance_of_need(pool, [], sent=4) <= 1


def test_fixed_sampling_is_certain() -> None:
    policy = sequential(0, 0, n=2, wave=4, cap=8)
    assert [policy.chance_of_need(pool_of([]), [], sent=i) for i in (0, 7, 8)] == [1.0, 1.0, 0.0]


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1)), max_size=40))
def test_candidates_are_random_and_latest_offer_counts(offers: list[tuple[int, float]]) -> None:
    candidates = SpeculationQueue()
    for key, chance in offers:
        candidates.offer(key, chance)
    latest = dict(offers)
    candidates.withdraw(3)
    latest.pop(3, None)
    taken = []
    while (key := candidates.take()) is not None:
        taken.append(key)
    assert sorted(taken) == sorted(latest)
    assert [latest[key] for key in taken] == sorted(latest.values(), reverse=True)
