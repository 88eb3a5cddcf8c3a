"""Intervals for few problems that differ: printed values, all outcomes of small cases, and simulations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_ada.eval.intervals import score_interval

Z2 = 1.959963984540054**2


def of_pairs(gains: int, losses: int, total: int) -> np.ndarray:
    return np.array([1.0] * gains + [-1.0] * losses + [0.0] * (total - gains - losses))


def wilson(positives: int, draws: int) -> tuple[float, float]:
    share = positives / draws
    half = math.sqrt(Z2 * share * (1 - share) / draws + (Z2 / draws) ** 2 / 4)
    return tuple((share + Z2 / (2 * draws) + sign * half) / (1 + Z2 / draws) for sign in (-1, 1))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.data())
def test_score_interval_of_right_and_wrong_is_wilsons(n: int, data: st.DataObject) -> None:
    right = data.draw(st.integers(0, n))
    values = np.array([1.0] * right + [0.0] * (n - right))
    assert score_interval(values) == pytest.approx(wilson(right, n), abs=1e-8)
    assert wilson(8, 16) == pytest.approx((0.28, 0.72), abs=1e-4)


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
