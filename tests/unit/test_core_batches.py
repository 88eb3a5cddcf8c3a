"""What fills training batches: no rollout lost, no training process left waiting."""

from __future__ import annotations

import itertools
import math

import pytest

from openrlhf_ada.core.batches import BatchPlan

GRID = list(itertools.product((1, 2, 4), (2, 4), (2, 4, 8, 16), (1, 3, 8), (1, 2, 3)))


@pytest.mark.parametrize("sizes", GRID, ids=str)
def test_trainable_is_the_largest_number_that_loses_nothing(sizes: tuple[int, int, int, int, int]) -> None:
    prompts, group, batch, micro, processes = sizes
    plan = BatchPlan(prompts, group, batch, micro, processes)
    for available in range(12):
        chosen = plan.trainable(available)
        fits = [
            n for n in range(available + 1) if n * group % batch == 0 and math.ceil(n * group / micro) % processes == 0
        ]
        assert chosen == max(fits)


def test_steps_count_full_batches_and_what_is_trainable_of_the_rest() -> None:
    plan = BatchPlan(prompts=4, group_size=2, train_batch=4, micro_batch=4, processes=1)
    assert [plan.steps(n) for n in range(10)] == [0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert [plan.optimizer_steps(n) for n in range(10)] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_a_rest_that_processes_cannot_share_is_not_trained() -> None:
    plan = BatchPlan(prompts=4, group_size=2, train_batch=4, micro_batch=4, processes=2)
    assert plan.trainable(4) == 4  # two micro-batches for two processes
    assert plan.trainable(3) == 0  # one micro-batch would leave a process without work
