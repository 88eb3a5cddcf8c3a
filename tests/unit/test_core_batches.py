"""What fills training batches: no rollout lost, no training process left waiting."""

from __future__ import annotations

import itertools
import math

import pytest

from openrlhf_ada.core.batches import BatchPlan

GRID = list(itertools.product((1, 2, 4), (2, 4), (2, 4, 8, 16), (1, 3, 8), (1, 2, 3)))


def equal_shares(rollouts: int, micro: int, processes: int) -> bool:
    """Micro-batches in slices of equal length to the processes: how many rollouts does each get?"""
    batches = [min(micro, rollouts - start) for start in range(0, rollouts, micro)]
    length = math.ceil(len(batches) / processes)
    shares = {sum(batches[i * length : (i + 1) * length]) for i in range(processes)}
    return len(shares) == 1


@pytest.mark.parametrize("sizes", GRID, ids=str)
def test_trainable_is_the_largest_number_that_loses_nothing(sizes: tuple[int, int, int, int, int]) -> None:
    prompts, group, batch, micro, processes = sizes
    plan = BatchPlan(prompts, group, batch, micro, processes)
    for available in range(12):
        chosen = plan.trainable(available)
        fits = [
            n for n in range(available + 1) if n * group % batch == 0 and equal_shares(n * group, micro, processes)
        ]
        assert chosen == max(fits)


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
