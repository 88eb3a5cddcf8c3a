"""Intervals and tests for few problems that differ: printed values, all outcomes of small cases, and simulations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_ada.eval import intervals
from openrlhf_ada.eval.intervals import exchange_p_value, score_interval, wilson

Z2 = 1.959963984540054**2


def of_pairs(gains: int, losses: int, total: int) -> np.ndarray:
    return np.array([1.0] * gains + [-1.0] * losses + [0.0] * (total - gains - losses))


@pytest.mark.parametrize(
    ("k", "n", "low", "high"), [(0, 16, 0.0, 0.1936), (8, 16, 0.2800, 0.7200), (16, 16, 0.8064, 1.0)]
)
def test_wilson(k: int, n: int, low: float, high: float) -> None:
    assert wilson(k, n) == pytest.approx((low, high), abs=1e-4)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.data())
def test_score_interval_of_right_and_wrong_is_wilsons(n: int, data: st.DataObject) -> None:
    right = data.draw(st.integers(0, n))
    values = np.array([1.0] * right + [0.0] * (n - right))
    assert score_interval(values) == pytest.approx(wilson(right, n), abs=1e-8)


def test_a_model_against_itself_has_a_tiny_interval() -> None:
    """500 problems, none differs: z^2 / (500 + z^2) on both sides, as in Tango (1998)."""
    low, high = score_interval(of_pairs(0, 0, 500), -1.0, 1.0)
    assert high == -low == pytest.approx(Z2 / (500 + Z2), abs=1e-8)
    assert high == pytest.approx(0.0076, abs=1e-4)
    # Pairs that differ with chance d, always in one direction, show no difference with chance (1 - d)^500. Where that
    # is 5 % or more, d must be in the interval: no method that is right in 95 % of all cases has less.
    least = 1 - 0.05 ** (1 / 500)
    assert least < high < 1.3 * least


def test_interval_of_pairs_is_tangos() -> None:
    """Tango (1998) solves (b - c - N d)^2 = z^2 (N (2 p + d) - N d^2), with p from the likeliest table."""
    gains, losses, total = 9, 2, 40
    for bound in score_interval(of_pairs(gains, losses, total), -1.0, 1.0):
        a = 2 * total
        b = -gains - losses + (2 * total - gains + losses) * bound
        c = -losses * bound * (1 - bound)
        p = (math.sqrt(b * b - 4 * a * c) - b) / (2 * a)
        variance = total * (2 * p + bound * (1 - bound))
        assert (gains - losses - total * bound) ** 2 == pytest.approx(Z2 * variance, rel=1e-6)


def test_values_scale_with_their_bounds() -> None:
    values = np.array([0.1, 0.4, 0.4, 0.9])
    low, high = score_interval(values)
    assert score_interval(2 * values - 1, -1.0, 1.0) == pytest.approx((2 * low - 1, 2 * high - 1))
    assert score_interval(1 - values) == pytest.approx((1 - high, 1 - low))


@pytest.mark.slow
def test_interval_holds_the_mean_and_stays_within_the_bounds() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        values = rng.choice([0.0, 0.25, 0.5, 1.0], size=rng.integers(1, 30))
        low, high = score_interval(values)
        assert 0.0 <= low <= values.mean() <= high <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("rates", [(0.05, 0.05), (0.1, 0.0), (0.2, 0.1), (0.5, 0.3), (0.3, 0.3)])
def test_coverage_over_all_outcomes_of_few_pairs(rates: tuple[float, float]) -> None:
    """20 problems: the chance that the interval holds the true difference, summed over all 231 outcomes."""
    total, (gain, loss) = 20, rates
    covered = 0.0
    for gains, losses in itertools.product(range(total + 1), repeat=2):
        ties = total - gains - losses
        if ties < 0:
            continue
        ways = math.factorial(total) / (math.factorial(gains) * math.factorial(losses) * math.factorial(ties))
        chance = ways * gain**gains * loss**losses * (1 - gain - loss) ** ties
        if chance > 1e-9:
            low, high = score_interval(of_pairs(gains, losses, total), -1.0, 1.0)
            covered += chance * (low <= gain - loss <= high)
    assert covered >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("problems", [5, 50])
def test_coverage_of_averages_and_of_differences(problems: int) -> None:
    """Rates of problems are Beta(1, 2), and one in ten differs between the models; 8 answers each, 300 times."""
    rng = np.random.default_rng(0)
    held = np.zeros(2)
    for _ in range(300):
        rates = rng.beta(1, 2, problems)
        others = np.where(rng.random(problems) < 0.1, rng.beta(1, 2, problems), rates)
        first, second = (rng.binomial(8, r) / 8 for r in (rates, others))
        for kind, (values, bounds, truth) in enumerate(
            ((first, (0.0, 1.0), 1 / 3), (second - first, (-1.0, 1.0), 0.0))
        ):
            low, high = score_interval(values, *bounds)
            held[kind] += low <= truth <= high
    assert (held / 300 > 0.93).all()


@pytest.mark.parametrize(
    ("gains", "losses", "expected"),
    [
        (1, 0, 1.0),
        (5, 0, 0.0625),
        (6, 0, 0.03125),
        (8, 2, 0.109375),
        (12, 5, 0.143463134765625),
        (30, 18, 0.11140289106101878),
        (3, 3, 1.0),
        (1, 9, 0.021484375),
    ],
)
def test_with_one_answer_it_is_mcnemars_exact_test(gains: int, losses: int, expected: float) -> None:
    """Values of statsmodels 0.14 (`mcnemar(exact=True)`), which are those of scipy's `binomtest`."""
    assert exchange_p_value(of_pairs(gains, losses, 60)) == pytest.approx(expected)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-8, 8), min_size=1, max_size=8))
def test_p_value_counts_all_signs(eighths: list[int]) -> None:
    differences = np.array(eighths) / 8
    sums = [
        sum(s * d for s, d in zip(signs, differences, strict=True))
        for signs in itertools.product((-1, 1), repeat=len(eighths))
    ]
    reached = np.abs(sums) >= abs(differences.sum()) - 1e-12
    assert exchange_p_value(differences) == pytest.approx(reached.mean())


def test_p_value_of_scipys_permutation_test() -> None:
    """scipy 1.17: permutation_test(..., permutation_type="samples", n_resamples=inf)."""
    assert exchange_p_value(np.array([0.25, 0.5, -0.25, 0.75, 0.25, 0, 0, 1])) == 0.125
    assert exchange_p_value(np.zeros(5)) == 1.0


def test_p_value_of_many_denominators_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    differences = rng.binomial(8, 0.5, 60) / 8 - rng.binomial(8, 0.3, 60) / 8
    exact = exchange_p_value(differences)
    monkeypatch.setattr(intervals, "MOST_CELLS", 0)
    assert exchange_p_value(differences) == exchange_p_value(differences)
    assert exchange_p_value(differences) == pytest.approx(exact, abs=0.005)
