"""The arena's paired tests of several methods, against their definition and against chance."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from benchmarks.arena.statistics import SEEDS_FOR_TEST, corrected_p, kendall_tau


def test_one_method_by_hand() -> None:
    """Of the 8 ways, those of at least the mean 2 are itself and its mirror image."""
    assert corrected_p(np.array([[1.0, 2.0, 3.0]])) == [2 / 8]
    assert corrected_p(np.array([[1.0, -1.0]])) == [1.0]
    assert corrected_p(np.full((1, 40), 1.0))[0] < 0.001


def test_method_equal_to_the_reference_is_not_told_apart() -> None:
    assert corrected_p(np.array([np.zeros(8), np.ones(8)])) == [1.0, 2 / 2**8]


def by_definition(differences: np.ndarray) -> list[float]:
    """Loops: the strongest first, each among those that are left."""
    scale = [float(np.sqrt(np.mean(row**2))) for row in differences]
    observed = [abs(float(np.mean(row))) / s for row, s in zip(differences, scale, strict=True)]
    left, found, least = set(range(len(differences))), [0.0] * len(differences), 0.0
    while left:
        strongest = max(left, key=lambda at: observed[at])
        ways = list(product((1, -1), repeat=differences.shape[1]))
        as_large = sum(
            any(abs(float(np.mean(differences[at] * signs))) / scale[at] >= observed[strongest] - 1e-12 for at in left)
            for signs in ways
        )
        least = found[strongest] = max(least, as_large / len(ways))
        left.remove(strongest)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_equals_its_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    differences = rng.normal(rng.normal(0, 0.7, (4, 1)), 1.0, (4, 7))
    assert corrected_p(differences) == pytest.approx(by_definition(differences))


def test_any_false_alarm_is_as_rare_as_it_says() -> None:
    """Six methods like the reference, whose runs they share: one of them has p < 0.05 in at most 5 % of 600 worlds.

    The bound is three standard errors above that.
    """
    rng = np.random.default_rng(3)
    alarms = 0
    for _ in range(600):
        differences = rng.normal(0, 1, (6, 8)) - rng.normal(0, 1, 8)
        alarms += min(corrected_p(differences)) < 0.05
    assert 0.01 < alarms / 600 < 0.05 + 3 * (0.05 * 0.95 / 600) ** 0.5


@pytest.mark.parametrize("methods", [1, 60])
def test_fewest_seeds_can_show_a_difference_among_any_number_of_methods(methods: int) -> None:
    rng = np.random.default_rng(0)
    differences = rng.normal(0, 1, (methods, SEEDS_FOR_TEST))
    differences[0] = 1.0
    assert corrected_p(differences)[0] == 2 / 2**SEEDS_FOR_TEST < 0.05


def test_tau_counts_pairs_in_the_same_order() -> None:
    up = np.array([[1.0, 1.1, 0.9], [2.0, 2.1, 1.9], [3.0, 3.1, 2.9]])
    assert kendall_tau(up, 10 * up).low == kendall_tau(up, up).mean == 1.0
    assert kendall_tau(up, -up).high == -1.0
    assert kendall_tau(up, up[[0, 2, 1]]).mean == pytest.approx(1 / 3)
    assert kendall_tau(up[:, :2], up).low is None
