"""Which prompts are taken: exact chances, nothing lost, nothing starved."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from openrlhf_ada.arena.choice import RULES, PromptQueue, chances, systematic


@pytest.mark.parametrize("count", [1, 3, 5])
def test_chances_are_proportional_up_to_one(count: int) -> None:
    values = np.array([0.1, 0.2, 0.4, 0.8, 1.6, 20.0])
    found = chances(values, count)
    assert found.sum() == pytest.approx(count)
    free = found < 1.0
    assert np.ptp(found[free] / values[free]) < 1e-12
    assert (found[~free] == 1.0).all()
    # One that is certain would get more than 1 in proportion.
    assert (values[~free] * (found[free] / values[free])[0] >= 1.0).all() if free.any() and (~free).any() else True


def test_each_is_taken_with_its_chance_and_none_twice() -> None:
    rng = np.random.default_rng(0)
    chance = chances(np.array([0.1, 0.3, 0.3, 0.7, 1.0, 5.0]), 3)
    taken = np.zeros(6)
    for _ in range(20_000):
        found = systematic(chance, rng)
        assert len(set(found.tolist())) == 3
        taken[found] += 1
    assert taken / 20_000 == pytest.approx(chance, abs=4 * 0.5 / 20_000**0.5)


def test_corrected_weights_give_the_mean_of_all_candidates() -> None:
    """Whatever is taken: the sum of weight x value has the mean count x mean value."""
    values = np.arange(1.0, 7.0)
    chance = chances(values, 2)
    rng = np.random.default_rng(1)
    sums = [(values[taken] / (3 * chance[taken])).sum() for taken in (systematic(chance, rng) for _ in range(5000))]
    assert np.mean(sums) == pytest.approx(2 * values.mean(), rel=0.01)
    assert len(set(map(tuple, combinations(range(6), 2)))) == 15


@pytest.mark.parametrize("rule", RULES)
def test_every_prompt_is_considered_once_an_episode(rule: str) -> None:
    queue = PromptQueue(64, 4, seed=0, rule=rule)
    for _ in range(3):
        seen: list[int] = []
        for _ in range(4):
            rows, weights = queue.take(4)
            assert len(set(rows)) == len(weights) == 4
            seen += rows
            queue.observe(rows, [8] * 4, [8] * 4)
        assert len(set(seen)) == 16


def test_mixed_prompts_are_preferred_to_solved_ones() -> None:
    queue = PromptQueue(40, 2, seed=0)
    for _ in range(20):
        rows, _ = queue.take(10)
        queue.observe(rows, [8] * 10, [4 if row < 20 else 8 for row in rows])
    mixed = sum(row < 20 for _ in range(20) for row in queue.take(10)[0])
    assert mixed > 0.8 * 200
