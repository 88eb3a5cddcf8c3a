"""What fills training batches: no rollout lost, no training process left waiting."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from openrlhf_ada.core.batches import BatchPlan, thinned
from openrlhf_ada.core.types import TrainingGroup

GRID = list(itertools.product((2, 4), (2, 4, 8, 16), (1, 3, 8), (1, 2, 3)))


def equal_shares(rollouts: int, micro: int, processes: int) -> bool:
    """Micro-batches in slices of equal length to the processes: how many rollouts does each get?"""
    batches = [min(micro, rollouts - start) for start in range(0, rollouts, micro)]
    length = math.ceil(len(batches) / processes)
    shares = {sum(batches[i * length : (i + 1) * length]) for i in range(processes)}
    return len(shares) == 1


@pytest.mark.parametrize("prompts", [1, 2, 4])
def test_trainable_is_the_largest_number_that_loses_nothing(prompts: int) -> None:
    for group, batch, micro, processes in GRID:
        plan = BatchPlan(prompts, group, batch, micro, processes)
        for available in range(12):
            whole = (n for n in range(available + 1) if n * group % batch == 0)
            fits = [n for n in whole if equal_shares(n * group, micro, processes)]
            assert plan.trainable(available) == max(fits), plan


def test_steps_count_full_batches_and_trainable_rest() -> None:
    plan = BatchPlan(prompts=4, group_size=2, train_batch=4, micro_batch=4, processes=1)
    assert [plan.steps(n) for n in range(10)] == [0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert [plan.optimizer_steps(n) for n in range(10)] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_a_rest_that_processes_cannot_share_is_not_trained() -> None:
    plan = BatchPlan(prompts=4, group_size=2, train_batch=4, micro_batch=4, processes=2)
    assert plan.trainable(4) == 4  # two micro-batches for two processes
    assert plan.trainable(3) == 0  # one micro-batch would leave a process without work


def test_a_short_micro_batch_is_not_shared() -> None:
    """28 rollouts in micro-batches of 8, 8, 8 and 4 would be 16 for one process and 12 for the other."""
    assert not BatchPlan(prompts=7, group_size=4, train_batch=4, micro_batch=8, processes=2).is_even(7)
    assert BatchPlan(prompts=7, group_size=4, train_batch=4, micro_batch=8, processes=1).is_even(7)


def group(key: int, coefficients: list[float]) -> TrainingGroup:
    return TrainingGroup(key, tuple(range(len(coefficients))), tuple(coefficients), (1.0,) * len(coefficients), True)


GROUPS = [group(0, [1.0, -1.0]), group(1, [-0.5, -0.5, -0.5, 0.5]), group(2, [0.25])]


@pytest.mark.parametrize(("unit", "left"), [(1, 7), (2, 6), (3, 6), (4, 4), (7, 7)])
def test_as_few_as_possible_are_left_out(unit: int, left: int) -> None:
    thin = thinned(GROUPS, unit, np.random.default_rng(0))
    assert [g.key for g in thin] == [0, 1, 2], "a prompt that has lost all its samples keeps its place"
    assert sum(len(g.indices) for g in thin) == left
    for before, after in zip(GROUPS, thin, strict=True):
        assert after.coefficients == tuple(before.coefficients[i] for i in after.indices)


@pytest.mark.slow
def test_all_are_left_out_equally_often() -> None:
    """3 of 7 in each of 7,000 steps: 3,000 times each, with a standard deviation of 41."""
    out: Counter[tuple[int, int]] = Counter()
    for seed in range(7000):
        thin = thinned(GROUPS, 4, np.random.default_rng(seed))
        out.update((a.key, i) for a, b in zip(GROUPS, thin, strict=True) for i in set(a.indices) - set(b.indices))
    assert len(out) == 7
    assert all(abs(count - 3000) < 4 * 41 for count in out.values())


def test_too_few_are_refused() -> None:
    with pytest.raises(ValueError, match="7 rollouts cannot be trained in batches of 8"):
        thinned(GROUPS, 8, np.random.default_rng(0))


@pytest.mark.parametrize(("micro", "processes", "unit"), [(4, 1, 8), (4, 2, 8), (4, 4, 16), (4, 3, 24)])
def test_unit_is_what_all_processes_can_share(micro: int, processes: int, unit: int) -> None:
    assert BatchPlan(64, 2, 8, micro, processes, varies=True).unit == unit


def test_steps_of_varying_size_need_one_unit_at_least() -> None:
    plan = BatchPlan(prompts=8, group_size=2, train_batch=8, micro_batch=4, processes=1, varies=True)
    assert [plan.trainable(n) for n in range(9)] == [0, 0, 0, 0, 4, 5, 6, 7, 8]
