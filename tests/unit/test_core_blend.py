"""Baseline `blend`: a prediction and the other rollouts, weighed by what they are worth."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from openrlhf_ada.core.grouping import GroupBuilder
from openrlhf_ada.core.objectives import effective_weight
from openrlhf_ada.core.selection import Selection

P = (0.01, 0.2, 0.5, 0.97)


def coefficients(scores: np.ndarray, predicted: float, strength: float) -> np.ndarray:
    builder = GroupBuilder(Selection("all", len(scores), 0.5), "flash_reinforce", "blend")
    return builder.weigh(scores, scores, tuple(range(len(scores))), predicted, strength=strength)[0]


def outcomes(n: int, p: float) -> list[tuple[np.ndarray, float]]:
    """Every way in which n rollouts can end, with its chance."""
    return [
        (scores, float(np.prod(np.where(scores > 0, p, 1.0 - p))))
        for scores in (np.array(bits, dtype=float) for bits in product((0, 1), repeat=n))
    ]


@pytest.mark.parametrize("p", P)
@pytest.mark.parametrize(
    ("n", "predicted", "strength"), [(1, 0.9, 3.0), (2, 0.3, 0.5), (4, 0.7, 20.0), (3, 0.1, 1e-6)]
)
def test_every_prompt_has_weight_one_whatever_was_predicted(
    n: int, predicted: float, strength: float, p: float
) -> None:
    weight = sum(
        chance * effective_weight(coefficients(scores, predicted, strength), scores > 0.5, p, n)
        for scores, chance in outcomes(n, p)
    )
    assert weight == pytest.approx(1.0, abs=1e-12)


def test_one_rollout_is_compared_with_the_prediction() -> None:
    assert coefficients(np.array([1.0]), 0.3, 5.0) == pytest.approx([0.7])


def test_without_evidence_it_is_leave_one_out() -> None:
    scores = np.array([1.0, 0.0, 0.0, 1.0])
    loo = GroupBuilder(Selection("all", 4, 0.5), "rloo", "loo").weigh(scores, scores, (0, 1, 2, 3))[0]
    assert coefficients(scores, 0.5, 1e-12) == pytest.approx(loo)


def test_a_sure_prediction_is_the_baseline() -> None:
    scores = np.array([1.0, 0.0, 0.0])
    assert coefficients(scores, 0.25, 1e12) == pytest.approx(scores - 0.25)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_noise_is_least_at_the_strength_of_the_prior(n: int) -> None:
    """Pass rates of Beta(1.2, 1.8): the mean square of r - b, over prompts and outcomes."""
    a, b = 1.2, 1.8
    grid = (np.arange(400) + 0.5) / 400
    density = grid ** (a - 1) * (1 - grid) ** (b - 1)
    density /= density.sum()

    def noise(strength: float) -> float:
        return sum(
            float((density * np.prod(np.where(scores[:, None] > 0, grid, 1 - grid), axis=0)).sum())
            * float((coefficients(scores, a / (a + b), strength) ** 2).mean())
            for scores, _ in outcomes(n, 0.5)
        )

    best = noise(a + b)
    assert all(best < noise(strength) for strength in (0.3, 1.5, 6.0, 30.0))
    # Against leave-one-out, which needs no prediction.
    assert best < noise(1e-9) * (1 - 0.5 / n / (n - 1))
