"""Ways to choose prompts: each against its published formula, and what earlier visits say of a prompt."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from openrlhf_ada.core.choice import PromptChooser, chances
from openrlhf_ada.core.choice_shares import shares
from openrlhf_ada.core.criteria import CHOICES, LEAST_VALUE, Candidates, of_rates
from openrlhf_ada.core.types import PromptPool, Sample
from openrlhf_ada.core.visits import VisitHistory

RATES = np.linspace(0.0, 1.0, 101)


def history(**options: float) -> VisitHistory:
    return VisitHistory(**{"threshold": 0.5, "half_life": 50.0, "strength": 2.0} | options)


def pool_of(row: int, outcomes: Sequence[float], tokens: Sequence[int] | int = 1) -> PromptPool:
    lengths = [tokens] * len(outcomes) if isinstance(tokens, int) else tokens
    return PromptPool(
        0, [Sample(0, i, s, s, t) for i, (s, t) in enumerate(zip(outcomes, lengths, strict=True))], row=row
    )


def known(**columns: Sequence[float]) -> Candidates:
    size = len(next(iter(columns.values())))
    plain = {"rate": [0.5] * size, "length": [1.0] * size, "last": [np.nan] * size, "run": [0.0] * size}
    return Candidates(**{name: np.array(value, dtype=float) for name, value in (plain | columns).items()})


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "best"), [("std", 0.5), ("std_per_token", 0.5), ("vade", 1 / 3), ("mopps", 0.5)])
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
            length=rng.lognormal(0, 1, size),
            last=rng.choice([np.nan, 0, 0.1, 0.5, 1], size),
            run=rng.integers(0, 6, size),
        )
        value = CHOICES[name].function(candidates)
        assert value.shape == (size,) and (value >= 0).all() and (value <= 1 + 1e-12).all()


def test_value_per_token_falls_with_the_length() -> None:
    """Half as long is worth twice as much; the best of these is then 1."""
    value = CHOICES["std_per_token"].function(known(length=[0.5, 1.0, 2.0, 4.0, 40.0]))
    assert value == pytest.approx([1.0, 0.5, 0.25, 0.125, 0.125])
    alike = CHOICES["std_per_token"].function(of_rates(RATES))
    assert alike == pytest.approx(CHOICES["std"].function(of_rates(RATES)))


def test_a_short_prompt_is_worth_no_more_than_its_spread_allows() -> None:
    """A prompt that is never right stays at the least value, however short; long mixed ones are above it."""
    value = CHOICES["std_per_token"].function(known(rate=[0.0, 0.5], length=[0.25, 1.5]))
    assert np.maximum(value, LEAST_VALUE) == pytest.approx([LEAST_VALUE, 1 / 1.5])


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
    moved = Candidates(*(np.array(c, float) for c in ([0.5] * 2, [1] * 2, [1, 0], [2, 2])), easy=0.9, hard=0.1)
    assert CHOICES["greso"].function(moved) == pytest.approx([0.81, 0.01])


def test_pools_are_those_of_prime_rl() -> None:
    """Its defaults: hard up to .25 and easy above .75 have weight .2, the others and unseen ones 1."""
    last = [0.0, 0.25, 0.26, 0.75, 0.76, 1.0, np.nan]
    assert CHOICES["pools"].function(known(last=last)).tolist() == [0.2, 0.2, 1.0, 1.0, 0.2, 0.2, 1.0]


# -- lengths ----------------------------------------------------------------------------------------------------------


def test_expected_length_is_shrunk_to_the_mean() -> None:
    """Prompt 0 has answers of 30 tokens, prompt 1 of 10; the mean prompt has 20, worth 2 rollouts."""
    visits = history(half_life=1e9)
    assert visits.lengths([0, 1, 2]).tolist() == [1.0, 1.0, 1.0]
    visits.observe([pool_of(0, [1, 0], [20, 40]), pool_of(1, [1, 0, 0, 1], 10)])
    assert visits.lengths([0, 1, 2]) == pytest.approx([(60 / 20 + 2) / 4, (40 / 20 + 2) / 6, 1.0])


def test_old_lengths_fade() -> None:
    """A half-life of one step: after a second step, in which others were seen, half of the rollouts count."""
    visits = history(half_life=1.0)
    visits.observe([pool_of(0, [1] * 4, 40), pool_of(1, [1] * 4, 20)])
    visits.observe([pool_of(1, [1] * 4, 20)])
    mean = (0.5 * 60 + 20) / (0.5 * 2 + 1)
    assert visits.lengths([0])[0] == pytest.approx((160 / 4 / mean + 2) / (4 / 4 + 2))
    assert visits.lengths([1])[0] == pytest.approx(((80 / 4 + 80 / 2) / mean + 2) / (4 / 4 + 4 / 2 + 2))


def test_length_of_all_prompts_cancels() -> None:
    """A policy that comes to say ten times as much: prompts keep their lengths relative to each other."""
    visits = history(half_life=2.0)
    for step in range(60):
        factor = 1 if step < 30 else 10
        visits.observe([pool_of(0, [1] * 8, 15 * factor), pool_of(1, [1] * 8, 5 * factor)])
    assert visits.lengths([0, 1]) == pytest.approx([1.5, 0.5], abs=0.05)


# -- runs of one outcome ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("visits_of_row", list(itertools.product([(0, 0), (1, 0), (1, 1)], repeat=4)))
def test_run_counts_the_last_visits_of_one_outcome(visits_of_row: Sequence[Sequence[int]]) -> None:
    visits = history()
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
    visits = history()
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


# -- how often in the long run ----------------------------------------------------------------------------------------


def visits_of(rates: Sequence[float], n: int) -> list[dict[tuple[int, int], float]]:
    return [{(n, k): math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)} for p in rates]


def test_shares_by_hand() -> None:
    """Prompts that are never right, and prompts that are always mixed: with `pools` the first have a fifth of the
    chance. C = 2 of equally many: chances c/5 and c with mean 1/2, but c is at most 1."""
    visits = [{(4, 0): 1.0}, {(4, 2): 1.0}]
    assert shares("pools", 2, np.array([0.0, 0.5]), lambda: visits) == pytest.approx([1 / 3, 5 / 3])
    assert shares("pools", 4, np.array([0.0, 0.5]), lambda: visits) == pytest.approx([1 / 3, 5 / 3])


@pytest.mark.parametrize("inverse", [False, True])
def test_shares_per_token_are_those_of_the_chooser(inverse: bool) -> None:
    """Twelve prompts, half of them with answers twice as long. All are candidates, so chances are exact; inverse
    weights undo them."""
    rates, long = np.tile([0.02, 0.1, 0.3, 0.5, 0.7, 0.9], 2), np.repeat([1, 2], 6)
    visits = history(half_life=1e9, strength=1e-9)
    visits.observe([pool_of(row, [0, 1], 10 * int(long[row])) for row in range(12)])
    expected = shares("std_per_token", 4, rates, lambda: [], lengths=long / 1.5)
    draws = SimpleNamespace(draw=lambda rows, rng: rates[rows])
    chooser = PromptChooser(12, 4, np.random.default_rng(0), draws, visits, value="std_per_token", inverse=inverse)
    found: dict[int, float] = {}
    while len(found) < 12:
        found |= {choice.row: 4 * choice.chance * (choice.weight if inverse else 1.0) for choice in chooser.take(3)}
    assert [found[row] for row in range(12)] == pytest.approx(np.ones(12) if inverse else expected)
    # Above the least value, half as long is twice as often.
    assert expected[2:5] == pytest.approx(2 * expected[8:11])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["greso", "pools"])
def test_shares_are_those_of_the_chooser(name: str) -> None:
    """400 prompts of four pass rates, 4 rollouts a visit, one in 3 taken: counted over 1,200 steps."""
    rates = np.array([0.02, 0.2, 0.5, 0.95])
    expected = shares(name, 3, rates, lambda: visits_of(rates.tolist(), 4))
    rng = np.random.default_rng(0)
    of_row = np.repeat(rates, 100)
    visits = history()
    # GRESO's chances stay where the enumeration has them.
    visits._explore = lambda shares: None  # type: ignore[method-assign]
    draws = SimpleNamespace(draw=lambda rows, rng: of_row[rows])
    chooser = PromptChooser(400, 3, np.random.default_rng(1), draws, visits, value=name)
    taken = np.zeros(4)
    for step in range(1_500):
        rows = [choice.row for choice in chooser.take(40)]
        if step >= 300:
            taken += np.bincount(np.array(rows) // 100, minlength=4)
        chooser.end_step([pool_of(row, (rng.random(4) < of_row[row]).astype(float)) for row in rows])
    assert 4 * taken / taken.sum() == pytest.approx(expected, rel=0.03)
