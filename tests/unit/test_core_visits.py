"""Ways to choose prompts: each against its published formula, and what earlier visits say of a prompt."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from openrlhf_ada.core.choice import chances
from openrlhf_ada.core.criteria import CHOICES, Candidates, of_rates
from openrlhf_ada.core.types import PromptPool, Sample
from openrlhf_ada.core.visits import VisitHistory

RATES = np.linspace(0.0, 1.0, 101)


def pool_of(row: int, outcomes: Sequence[float]) -> PromptPool:
    return PromptPool(0, [Sample(0, i, score, score, 1) for i, score in enumerate(outcomes)], row=row)


def known(**columns: Sequence[float]) -> Candidates:
    size = len(next(iter(columns.values())))
    plain = {"rate": [0.5] * size, "last": [np.nan] * size, "run": [0.0] * size}
    return Candidates(**{name: np.array(value, dtype=float) for name, value in (plain | columns).items()})


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "best"), [("std", 0.5), ("vade", 1 / 3), ("mopps", 0.5)])
def test_values_are_between_0_and_1(name: str, best: float) -> None:
    values = CHOICES[name].function(of_rates(RATES))
    assert values.min() == pytest.approx(0.0, abs=1e-12) and values.max() == pytest.approx(1.0, abs=1e-3)
    assert RATES[values.argmax()] == pytest.approx(best, abs=0.005)


@pytest.mark.parametrize("name", CHOICES)
def test_no_value_is_above_1(name: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        size = int(rng.integers(1, 20))
        candidates = known(
            rate=rng.random(size),
            last=rng.choice([np.nan, 0, 0.1, 0.5, 1], size),
            run=rng.integers(0, 6, size),
        )
        value = CHOICES[name].function(candidates)
        assert value.shape == (size,) and (value >= 0).all() and (value <= 1 + 1e-12).all()


def test_vade_is_its_published_gain() -> None:
    """p (1-p)^2, as shares of the largest, which is 4/27."""
    rates = np.array([0.0, 0.1, 1 / 3, 0.5, 0.9, 1.0])
    expected = [0.0, 0.1 * 0.81, 4 / 27, 0.125, 0.9 * 0.01, 0.0]
    assert CHOICES["vade"].function(of_rates(rates)) * 4 / 27 == pytest.approx(expected)


def test_mmr1_mixes_half_and_half() -> None:
    """Chances are those of count/2 places in proportion to p (1-p) and count/2 at random."""
    rates = np.array([0.2, 0.5, 0.5, 0.7, 0.9, 0.05])
    learnability = rates * (1 - rates)
    expected = 0.5 * 2 * learnability / learnability.sum() + 0.5 * 2 / len(rates)
    assert chances(CHOICES["mmr1"].function(of_rates(rates)), 2) == pytest.approx(expected)


def test_greso_keeps_prompts_with_the_published_chance() -> None:
    last = [1, 1, 1, 0, 0, 0.5, 0.875, np.nan]
    run = [1, 2, 3, 1, 4, 0, 0, 0]
    value = CHOICES["greso"].function(known(last=last, run=run))
    assert value == pytest.approx([0.5, 0.25, 0.125, 0.5, 0.0625, 1, 1, 1])
    moved = Candidates(*(np.array(c, float) for c in ([0.5] * 2, [1, 0], [2, 2])), easy=0.9, hard=0.1)
    assert CHOICES["greso"].function(moved) == pytest.approx([0.81, 0.01])


def test_pools_are_those_of_prime_rl() -> None:
    """Its defaults: hard up to .25 and easy above .75 have weight .2, the others and unseen ones 1."""
    last = [0.0, 0.25, 0.26, 0.75, 0.76, 1.0, np.nan]
    assert CHOICES["pools"].function(known(last=last)).tolist() == [0.2, 0.2, 1.0, 1.0, 0.2, 0.2, 1.0]


# -- runs of one outcome ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [(0, 0), (1, 0), (1, 1)])
def test_run_counts_the_last_visits_of_one_outcome(last: Sequence[int]) -> None:
    for before in itertools.product([(0, 0), (1, 0), (1, 1)], repeat=3):
        check_run([*before, last])


def check_run(visits_of_row: Sequence[Sequence[int]]) -> None:
    visits = VisitHistory(0.5)
    for step, outcomes in enumerate(visits_of_row):
        visits.observe([pool_of(5, outcomes)] if step % 2 else [pool_of(5, outcomes), pool_of(1, [1, 0])])
    expected = 0
    for outcomes in reversed(visits_of_row):
        if sum(outcomes) == 1 or outcomes != visits_of_row[-1]:
            break
        expected += 1
    found = visits.known([5, 9], np.array([0.5, 0.5]))
    assert (found.last[0], found.run[0]) == (sum(visits_of_row[-1]) / 2, expected)
    assert np.isnan(found.last[1]) and found.run[1] == 0


def test_greso_moves_its_chances_as_published() -> None:
    """By .01 a step towards 1/12 of prompts all right and 1/6 all wrong, between .05 and .95; not before prompts come
    again."""
    visits = VisitHistory(0.5)
    wrong = [pool_of(row, [0, 0]) for row in range(3)]
    mixed = [pool_of(row, [0, 1]) for row in range(3, 12)]
    visits.observe([*wrong, *mixed])
    assert (visits.easy, visits.hard) == (0.5, 0.5), "nobody was seen before"
    visits.observe([*wrong, *mixed])
    assert (visits.easy, visits.hard) == pytest.approx((0.51, 0.49)), "none all right, a quarter all wrong"
    visits.observe([pool_of(0, [0, 0]), pool_of(1, [1, 1]), *mixed, *mixed])
    assert (visits.easy, visits.hard) == pytest.approx((0.52, 0.50)), "1/20 each, fewer than wanted"
    for _ in range(100):
        visits.observe([pool_of(0, [0, 0])])
    assert (visits.easy, visits.hard) == pytest.approx((0.95, 0.05))


def test_prompts_with_both_outcomes_have_been_seen() -> None:
    visits = VisitHistory(0.5)
    for _ in range(2):
        visits.observe([pool_of(row, [0, 1]) for row in range(4)])
    assert (visits.easy, visits.hard) == pytest.approx((0.51, 0.51)), "no prompt had one outcome only"
