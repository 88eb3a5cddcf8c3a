"""Ratings against numerical integration, and against counts on a policy that improves."""

from __future__ import annotations

import json

import numpy as np
import pytest

from openrlhf_ada.core.estimators import PassRateCounts
from openrlhf_ada.core.ratings import EASE_DRIFT, PRIOR_VARIANCE, PromptRatings


def rate(logit: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-logit))


def grid_posterior(n: int, k: int, ability: float) -> tuple[np.ndarray, np.ndarray]:
    """(ease, its exact posterior density on a grid) of a prompt with k of n."""
    ease = np.linspace(-14, 14, 20_001)
    log_density = -0.5 * ease**2 / PRIOR_VARIANCE + k * (ability + ease) - n * np.log1p(np.exp(ability + ease))
    density = np.exp(log_density - log_density.max())
    return ease, density / density.sum()


@pytest.mark.parametrize(("n", "k"), [(1, 0), (1, 1), (4, 1), (8, 8), (32, 3), (64, 0)])
def test_prediction_equals_numerical_integration(n: int, k: int) -> None:
    ratings = PromptRatings(prior_mean=0.4)
    ratings.observe([7], [n], [k])
    ease, density = grid_posterior(n, k, ratings.ability)
    exact = float((rate(ratings.ability + ease) * density).sum())
    assert ratings.predict([7])[0] == pytest.approx(exact, abs=0.03)


def test_draws_have_the_mean_and_the_width_of_the_prediction() -> None:
    ratings = PromptRatings(prior_mean=0.3)
    ratings.observe([0, 1], [6, 40], [3, 20])
    draws = np.array([ratings.draw([0, 1, 2], np.random.default_rng(i)) for i in range(4000)])
    assert draws.mean(axis=0) == pytest.approx(ratings.predict([0, 1, 2]), abs=0.02)
    assert draws[:, 1].std() < draws[:, 0].std() < draws[:, 2].std()
    beta_width = np.sqrt(0.25 / (ratings.strength([1])[0] + 1.0))
    assert draws[:, 1].std() == pytest.approx(beta_width, rel=0.1)


def test_strength_is_about_the_rollouts_seen() -> None:
    """The prior says little then; a step's drift takes some away."""
    ratings = PromptRatings(prior_mean=0.5)
    ratings.observe([0], [50], [25])
    assert ratings.strength([0])[0] == pytest.approx(50 / (1 + EASE_DRIFT * 50 / 4), rel=0.1)


def test_unseen_prompts_get_better_with_the_policy() -> None:
    ratings = PromptRatings(prior_mean=0.2)
    assert ratings.predict([99])[0] < 0.3
    for step in range(20):
        ratings.observe(range(8 * step, 8 * step + 8), [4] * 8, [3] * 8)
    assert ratings.predict([99])[0] > 0.6
    assert ratings.population_mean == pytest.approx(ratings.predict([999])[0])


def test_rows_may_come_twice_in_a_step() -> None:
    twice, once = PromptRatings(0.5), PromptRatings(0.5)
    twice.observe([3, 5, 3], [2, 4, 6], [1, 4, 3])
    once.observe([3, 5], [8, 4], [4, 4])
    assert twice.predict([3, 5, 8]) == pytest.approx(once.predict([3, 5, 8]))


def test_prompts_are_given_up_after_misses_until_a_positive() -> None:
    ratings = PromptRatings(0.5, give_up=8)
    ratings.observe([0, 1], [4, 4], [0, 1])
    assert not ratings.given_up([0, 1]).any()
    ratings.observe([0, 1], [4, 4], [0, 0])
    assert ratings.given_up([0, 1, 2]).tolist() == [True, False, False]
    ratings.observe([0], [2], [1])
    assert not ratings.given_up([0]).any()


def test_state_goes_on_to_the_bit() -> None:
    rng = np.random.default_rng(0)
    kept = PromptRatings(0.3, give_up=16)
    for _ in range(5):
        rows = rng.integers(0, 50, 12)
        kept.observe(rows, [4] * 12, rng.integers(0, 5, 12))
    state = json.loads(json.dumps(kept.state_dict()))
    restored = PromptRatings(0.3, give_up=16)
    restored.load_state_dict(state)
    for ratings in (kept, restored):
        ratings.observe([1, 60], [4, 4], [2, 0])
    assert (kept.predict(range(80)) == restored.predict(range(80))).all()
    assert json.dumps(kept.state_dict()) == json.dumps(restored.state_dict())


def test_state_of_counts_is_refused() -> None:
    with pytest.raises(ValueError, match="lack ability, ability_variance, ease"):
        PromptRatings(0.5).load_state_dict(PassRateCounts(50, 0.5, 2, 0).state_dict())


def test_impossible_evidence_is_refused() -> None:
    ratings = PromptRatings(0.5)
    with pytest.raises(ValueError, match="draw"):
        ratings.observe([0], [0], [0])
    with pytest.raises(ValueError, match="0 and all"):
        ratings.load_prior_counts([4], [5])
    ratings.observe([0], [1], [1])
    with pytest.raises(ValueError, match="first step"):
        ratings.load_prior_counts([4], [2])


def test_known_counts_order_prompts() -> None:
    ratings = PromptRatings(0.5)
    ratings.load_prior_counts([8, 8, 0, 8], [0, 4, 0, 8])
    low, middle, unseen, high = ratings.predict(range(4))
    assert low < 0.25 < middle < 0.75 < high
    assert low < unseen < high


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_predicts_an_improving_policy_better_than_counts(seed: int) -> None:
    """Ease N(0, 4), ability from -2 to 2 over 200 steps of 32 prompts of 512, one rollout each: 12 visits of each."""
    rng = np.random.default_rng(seed)
    ease = 2.0 * rng.standard_normal(512)
    ratings, counts = PromptRatings(0.2), PassRateCounts(50, 0.2, 2.0, 0)
    errors = np.zeros(2)
    for ability in np.linspace(-2.0, 2.0, 200):
        rows = rng.choice(512, 32, replace=False)
        p = rate(ability + ease[rows])
        errors += [float(((estimator.predict(rows) - p) ** 2).mean()) for estimator in (ratings, counts)]
        positives = rng.random(32) < p
        for estimator in (ratings, counts):
            estimator.observe(rows, np.ones(32), positives)
    assert errors[0] < 0.8 * errors[1]
