"""The policy's end of an engine's return: which engines a broadcast reaches, over which group, and how new it is.

With the real stack: tests/e2e/test_engine_death.py.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from engines import Remote

from openrlhf_ada.trainer.policy import AdaPolicyActor


class World:
    """A policy of one process and two engines; `sent` has what went out: a group was formed, or weights were sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, uses_ipc: bool = False) -> None:
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
        monkeypatch.setattr(ray, "get", lambda ref, timeout=None: ref)
        self.names = ["a0", "b0"]
        self.engines = [SimpleNamespace(ready=Remote(lambda i=i: self.names[i]), number=i) for i in range(2)]
        self.sent: list[tuple[str, list[int], int]] = []
        self.policy: Any = AdaPolicyActor.__new__(AdaPolicyActor)
        self.flags = SimpleNamespace(num_engines=2, sync_backend="gloo")
        self.policy.strategy = SimpleNamespace(args=SimpleNamespace(vllm=self.flags))
        self.policy.vllm_engines = self.engines
        self.policy.trainer = SimpleNamespace(
            vllm_engines=self.engines,
            strategy=self.policy.strategy,
            use_cuda_ipc=uses_ipc,
            broadcast_to_vllm=lambda: self._note("weights"),
            _init_vllm_sync_group=lambda backend: self._note("group"),
        )
        self.policy._members = ["a0", "b0"]

    def _note(self, what: str) -> None:
        engines = [engine.number for engine in self.policy.trainer.vllm_engines]
        self.sent.append((what, engines, self.flags.num_engines))

    def take(self) -> list[tuple[str, list[int], int]]:
        sent, self.sent = self.sent, []
        return sent


def test_a_broadcast_forms_the_group_anew_where_an_engine_is_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.policy.broadcast_to_vllm()
    assert world.take() == [("weights", [0, 1], 2)]
    world.names[1] = "b1"
    for _ in range(2):
        world.policy.broadcast_to_vllm()
    assert world.take() == [("group", [0, 1], 2), ("weights", [0, 1], 2), ("weights", [0, 1], 2)]


@pytest.mark.parametrize("alone", [False, True])
def test_one_engine_gets_its_weights_and_the_next_broadcast_is_for_all(
    monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    world = World(monkeypatch)
    world.names[1] = "b1"
    assert world.policy.restore_engine(1, alone=alone) is False
    assert world.take() == [("group", [1], 1), ("weights", [1], 1)]
    assert world.flags.num_engines == 2
    world.policy.broadcast_to_vllm()
    assert world.take() == [("group", [0, 1], 2), ("weights", [0, 1], 2)]


def test_weights_between_training_and_broadcast_are_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    monkeypatch.setattr(AdaPolicyActor.__mro__[1], "fit", lambda self: {})
    world.policy.fit()
    assert world.policy.restore_engine(0) is True
    world.policy.broadcast_to_vllm()
    assert world.policy.restore_engine(0) is False


def test_a_failed_restoration_leaves_the_flags_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)

    def fail() -> None:
        raise RuntimeError("the engine died again")

    world.policy.trainer.broadcast_to_vllm = fail
    with pytest.raises(RuntimeError, match="died again"):
        world.policy.restore_engine(0)
    assert (world.flags.num_engines, world.policy.trainer.vllm_engines) == (2, world.engines)


def test_on_one_gpu_there_is_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, uses_ipc=True)
    world.names[0] = "a1"
    world.policy.restore_engine(0)
    world.policy.broadcast_to_vllm()
    assert world.take() == [("weights", [0], 1), ("weights", [0, 1], 2)]
