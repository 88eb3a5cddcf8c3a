"""Closed groups on their way to be trained while others are sampled.

That their gradients are those of the whole step: tests/contract/test_dynamic_batches.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from openrlhf_ada.rollout.records import SampleTag
from openrlhf_ada.trainer.overlap import Overlap, estimated_totals, exact_totals
from openrlhf_ada.trainer.step_parts import LossTotals, StepStatus


def group(key: int, coefficient: float = 1.0) -> list[Any]:
    return [SimpleNamespace(tag=SampleTag(key, index, coefficient, 1.0)) for index in range(2)]


def groups(*keys: int) -> list[list[Any]]:
    return [group(key) for key in keys]


def keys_of(samples: Sequence[Any]) -> list[int]:
    """Of whole groups of two, each once."""
    keys = [sample.tag.key for sample in samples]
    assert keys[::2] == keys[1::2]
    return keys[::2]


class Trainer:
    """Trains a part as soon as it may."""

    def __init__(self) -> None:
        self.parts: list[list[int]] = []
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()
        self.may_go_on.set()

    def __call__(self, samples: list[Any]) -> None:
        self.has_begun.set()
        assert self.may_go_on.wait(10)
        self.parts.append(keys_of(samples))


def wait_for_part(overlap: Overlap) -> None:
    overlap.in_turn(lambda: None)


def test_parts_are_whole_units_and_the_last_one_is_left() -> None:
    train = Trainer()
    overlap = Overlap(2, 8, train)
    for closed in ([5], [3, 1], [0], [7, 6, 2], [4]):
        overlap.offer(groups(*closed))
        wait_for_part(overlap)
    assert train.parts == [[5, 3], [1, 0], [7, 6]]
    samples = [sample for key in range(8) for sample in group(key)]
    assert keys_of(overlap.rest(samples)) == [2, 4]


def test_what_is_closed_meanwhile_makes_one_part() -> None:
    train = Trainer()
    train.may_go_on.clear()
    overlap = Overlap(1, 8, train)
    overlap.offer(groups(0))
    train.has_begun.wait(10)
    for key in range(1, 5):
        overlap.offer(groups(key))
    train.may_go_on.set()
    wait_for_part(overlap)
    assert train.parts == [[0], [1, 2, 3, 4]], "without another call: the last rollouts may take long"


def test_rest_waits_for_the_part_that_runs_and_begins_a_new_step() -> None:
    train = Trainer()
    overlap = Overlap(1, 2, train)
    for _ in range(3):
        train.may_go_on.clear()
        train.has_begun.clear()
        overlap.offer(groups(1, 0))
        assert train.has_begun.wait(10)
        threading.Timer(0.05, train.may_go_on.set).start()
        assert keys_of(overlap.rest(group(0) + group(1))) == [0]
    assert train.parts == [[1]] * 3


def test_a_step_without_early_parts_is_left_whole() -> None:
    samples = group(0) + group(1)
    overlap = Overlap(1, 2, Trainer())
    assert overlap.rest(samples) == samples
    overlap.offer(groups(0))
    wait_for_part(overlap)
    assert keys_of(overlap.rest(samples)) == [1]


@pytest.mark.parametrize("call", [lambda o: o.offer([]), lambda o: o.rest(group(0) + group(1))], ids=["offer", "rest"])
def test_what_goes_wrong_with_a_part_is_raised(call: Callable[[Overlap], object]) -> None:
    def fail(samples: list[Any]) -> None:
        raise RuntimeError("out of memory")

    overlap = Overlap(1, 2, fail)
    overlap.offer(groups(0))
    wait_for_part(overlap)
    with pytest.raises(RuntimeError, match="out of memory"):
        call(overlap)


def test_no_part_is_trained_after_one_that_failed() -> None:
    train, begun = Trainer(), threading.Event()

    def fail(samples: list[Any]) -> None:
        begun.set()
        train(samples)
        raise RuntimeError("out of memory")

    train.may_go_on.clear()
    overlap = Overlap(1, 4, fail)
    overlap.offer(groups(0))
    assert begun.wait(10)
    overlap.offer(groups(1))
    train.may_go_on.set()
    wait_for_part(overlap)
    assert train.parts == [[0]]


@pytest.mark.parametrize("change", ["another sample", "another coefficient"])
def test_a_part_that_the_step_does_not_train_is_noticed(change: str) -> None:
    """A policy of a user's own may decide by what else the step has sampled."""
    overlap = Overlap(1, 2, Trainer())
    overlap.offer(groups(1))
    wait_for_part(overlap)
    changed = group(2) if change == "another sample" else group(1, coefficient=0.5)
    with pytest.raises(RuntimeError, match=r"2 of 2 samples .* are not trained so in the step, the first of key 1"):
        overlap.rest(group(0) + changed)


def test_other_calls_take_their_turn_between_parts() -> None:
    train, order = Trainer(), list[str]()
    overlap = Overlap(1, 4, lambda samples: (train(samples), order.append("part"))[-1])
    train.may_go_on.clear()
    overlap.offer(groups(0))
    threading.Timer(0.05, train.may_go_on.set).start()
    assert overlap.in_turn(lambda: order.append("weights") or 7) == 7
    assert order == ["part", "weights"]


def experience(*lengths: int) -> Any:
    return SimpleNamespace(action_mask=torch.tensor([[i < length for i in range(9)] for length in lengths]))


def test_totals_by_hand() -> None:
    """An answer without a token counts as no sample, as in OpenRLHF's totals."""
    estimate = estimated_totals([experience(2, 4), experience(6)], samples=8)
    assert estimate == LossTotals(tokens=32.0, samples=8.0, is_last=False)
    all_of_them = [experience(2, 4), experience(6), experience(9, 9, 0), experience(9, 9)]
    assert exact_totals(all_of_them, estimate, by_token=True) == LossTotals(48.0, 7.0, is_last=True, scale=1.5)
    assert exact_totals(all_of_them, estimate, by_token=False) == LossTotals(48.0, 7.0, is_last=True, scale=7 / 8)


def test_status_of_a_step_is_that_of_all_its_samples() -> None:
    """Losses of the first part were divided by half of the step's tokens, so they are twice as large."""
    status = StepStatus()
    first = {"policy_loss": 2.0, "ppo_kl": 1.0, "return": 1.0, "actor_lr": 0.1, "actor_grad_norm": 0.0}
    last = {"policy_loss": 5.0, "ppo_kl": 5.0, "return": 4.0, "actor_lr": 0.2, "actor_grad_norm": 3.0}
    for _ in range(2):
        status.kinds = {"policy_loss": "token", "ppo_kl": "token", "return": "sample", "actor_lr": None}
        status.add(first, {"token": 30.0, "sample": 2.0})
        status.add(last, {"token": 10.0, "sample": 1.0})
        assert status.take(scale=2.0) == last | {"policy_loss": 2.0, "ppo_kl": 2.0, "return": 2.0}


@pytest.mark.parametrize(("kind", "mean"), [("token", 2.0), ("sample", 3.0)])
def test_kl_is_scaled_where_it_is_a_loss(kind: str, mean: float) -> None:
    status = StepStatus()
    status.kinds = {"kl": kind}
    for value in (4.0, 2.0):
        status.add({"kl": value}, {"token": 1.0, "sample": 1.0})
    assert status.take(scale=2.0) == {"kl": mean}
