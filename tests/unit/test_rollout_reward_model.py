"""Answers to scores through OpenRLHF's group of reward actors: one pass each, in order, evenly dealt out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from openrlhf.trainer.ray.launcher import RayActorGroup
from ray.exceptions import ActorDiedError, GetTimeoutError
from run_flags import settings_with

from openrlhf_ada.rollout.reward_model import RewardModel


class Actor:
    """A process of the reward model: the score of an answer is the sum of its tokens. Remembers its passes."""

    def __init__(self) -> None:
        self.passes: list[list[int]] = []
        self.execute_batch = SimpleNamespace(remote=self._execute_batch)

    def _execute_batch(self, method: str, data: dict[str, list[Any]], start: int, end: int) -> list[torch.Tensor]:
        assert (method, start, end) == ("forward", 0, len(data["sequences"]))
        assert data["pad_sequence"] == [True] * end
        for sequence, mask in zip(data["sequences"], data["attention_mask"], strict=True):
            assert mask.tolist() == [[1] * sequence.shape[1]]
        self.passes += [sequence[0].tolist() for sequence in data["sequences"]]
        return [sequence.sum(dim=1).to(torch.bfloat16) for sequence in data["sequences"]]


def make_model(monkeypatch: pytest.MonkeyPatch, *, gpus: int = 1, copies: int = 1) -> tuple[RewardModel, list[Actor]]:
    """OpenRLHF's own dealing out; actors answer in this process."""
    monkeypatch.setattr(ray, "put", lambda value: value)
    monkeypatch.setattr(ray, "get", lambda refs, timeout: refs)
    group = RayActorGroup.__new__(RayActorGroup)
    group.duplicate_actors = copies
    group._actor_handlers = [Actor() for _ in range(gpus)]
    args = SimpleNamespace(
        ds=SimpleNamespace(ring_attn_size=copies, tensor_parallel_size=1),
        reward=SimpleNamespace(num_nodes=1, num_gpus_per_node=gpus),
        data=SimpleNamespace(max_len=6),
        ada=settings_with(timeout=60.0),
    )
    return RewardModel(group, args), group._actor_handlers


@pytest.mark.parametrize(("gpus", "copies"), [(1, 1), (2, 1), (4, 1), (4, 2), (2, 2)])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_every_answer_has_its_own_score(monkeypatch: pytest.MonkeyPatch, gpus: int, copies: int, count: int) -> None:
    model, actors = make_model(monkeypatch, gpus=gpus, copies=copies)
    answers = [[i, i + 1, 10] for i in range(count)]
    assert model(answers) == [2.0 * i + 11 for i in range(count)]
    passes = {len(actor.passes) for actor in actors}
    assert len(passes) == 1, "a model in parts needs every process at every pass"
    assert passes.pop() == -(-count // (gpus // copies))


def test_answer_is_scored_alone_as_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """No padding: a score must not depend on which answers end together. Cut at --data.max_len."""
    model, (actor,) = make_model(monkeypatch)
    model([[1], [1, 2, 3], list(range(9))])
    assert actor.passes == [[1], [1, 2, 3], [0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (GetTimeoutError(), r"\b60 s \(--ada_timeout\)"),
        (ActorDiedError(), "reward model died"),
    ],
    ids=["silent", "dead"],
)
def test_a_model_that_does_not_answer_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    model, _ = make_model(monkeypatch)

    def get(refs: Any, timeout: float) -> Any:
        raise error

    monkeypatch.setattr(ray, "get", get)
    with pytest.raises(RuntimeError, match=told):
        model([[1, 2]])
