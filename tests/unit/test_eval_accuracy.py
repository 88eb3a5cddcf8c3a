"""Accuracy, its interval and pass@k against numbers worked out by hand or by brute force."""

from __future__ import annotations

from math import sqrt

import pytest

from openrlhf_ada.eval.accuracy import accuracy_with_interval, pass_at_k
from openrlhf_ada.reporting.quantiles import t_quantile_975


def test_interval_is_clustered_by_prompt() -> None:
    # Prompt means 0, 0.5, 1: mean 0.5, sd 0.5, t(2) = 4.3027.
    accuracy = accuracy_with_interval([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    assert accuracy.mean == 0.5
    assert accuracy.ci95 == pytest.approx(4.3027 * 0.5 / sqrt(3))
    assert (accuracy.num_prompts, accuracy.num_samples) == (3, 6)


def test_more_samples_per_prompt_keep_the_interval() -> None:
    few = accuracy_with_interval([[0.0], [1.0], [1.0]])
    many = accuracy_with_interval([[0.0] * 50, [1.0] * 50, [1.0] * 50])
    assert few.ci95 == pytest.approx(many.ci95)


def test_every_prompt_counts_the_same() -> None:
    assert accuracy_with_interval([[1.0], [0.0] * 9]).mean == 0.5


def test_one_prompt_has_no_interval_equal_prompts_zero() -> None:
    assert accuracy_with_interval([[1.0, 0.0]]).ci95 is None
    assert accuracy_with_interval([[1.0], [1.0]]).ci95 == 0.0


def test_interval_covers_the_truth_as_often_as_it_says() -> None:
    """Eight prompts with pass rates from {0.1, 0.5, 0.9}: 95 % of the intervals hold 0.5 (the normal one: 91 %)."""
    import numpy as np

    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        rates = rng.choice([0.1, 0.5, 0.9], size=8)
        accuracy = accuracy_with_interval((rng.random((8, 4)) < rates[:, None]).astype(float).tolist())
        assert accuracy.ci95 is not None
        covered += abs(accuracy.mean - 0.5) <= accuracy.ci95
    assert 0.93 < covered / 2000 < 0.97


@pytest.mark.parametrize(
    ("scores", "message"),
    [([], "0 prompts"), ([[1.0], []], "prompt 1 has no scores"), ([[1.5]], "1.5"), ([[float("nan")]], "nan")],
)
def test_bad_scores_are_refused(scores: list[list[float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        accuracy_with_interval(scores)


@pytest.mark.parametrize(
    ("degrees", "expected"), [(1, 12.7062), (30, 2.0423), (31, 2.0395), (40, 2.0211), (120, 1.9799), (10**6, 1.95996)]
)
def test_t_quantile_equals_the_printed_tables(degrees: int, expected: float) -> None:
    assert t_quantile_975(degrees) == pytest.approx(expected, abs=1e-4)


def test_t_quantile_without_degrees_of_freedom_is_refused() -> None:
    with pytest.raises(ValueError, match="0 degrees"):
        t_quantile_975(0)


def test_large_counts_are_stable() -> None:
    # 1 - C(99999, 1000) / C(100000, 1000) = 1000 / 100000.
    assert pass_at_k(100_000, 1, 1000) == pytest.approx(0.01)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 2, 5), (4, 2, 0), (4, 5, 2), (4, -1, 2), (0, 0, 1)])
def test_impossible_pass_at_k_is_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k}"):
        pass_at_k(n, c, k)
