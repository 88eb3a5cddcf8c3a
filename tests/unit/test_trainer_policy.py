"""The policy's end of weight updates: over which group, to which engines, and as which version.

With the real stack: tests/e2e/test_weight_sync.py and test_engine_death.py.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from engines import Remote
from openrlhf.trainer.ray import ppo_actor
from run_flags import settings_with

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.host.classes import unwrap_ray_class
from openrlhf_ada.trainer import policy as module
from openrlhf_ada.trainer.critic import RayAdaCritic
from openrlhf_ada.trainer.policy import (
    AdaActorTrainer,
    AdaPolicyActor,
    RayAdaPolicyActor,
    RayReferenceActor,
    RayRewardActor,
)
from openrlhf_ada.trainer.prompt_critic import RayPassRateCritic
from openrlhf_ada.weights.sender import EngineGoneError


class Sync:
    """Notes which engines a group was formed with, and which version went to them."""

    def __init__(self, sent: list[tuple[str, Any]]) -> None:
        self.sent = sent
        self.deaths: list[Any] = []
        self.dies_for_good = False

    def connect(self, engines: dict[int, Any]) -> None:
        self.sent.append(("group", list(engines)))
        self.membership = f"{len(engines)} engines"

    def begin(self) -> None:
        if self.dies_for_good:
            raise EngineGoneError
        if self.deaths:
            self.deaths.pop()()
            raise EngineGoneError

    def update(self, weights: Any, version: int) -> None:
        self.sent.append(("weights", version))


class World:
    """The first process of a policy, and two engines; `sent` has what went out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, rank: int = 0, uses_ipc: bool = False) -> None:
        self.sent: list[tuple[str, Any]] = []
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
        monkeypatch.setattr(ray, "get", lambda ref, timeout=None: ref)
        monkeypatch.setattr(ray, "wait", lambda refs, num_returns, timeout, **_: (refs, []))
        monkeypatch.setattr(module, "torch_dist_barrier_and_cuda_sync", lambda: self.sent.append(("barrier", None)))
        self.names = ["a0", "b0"]
        self.engines = [
            SimpleNamespace(
                ready=Remote(lambda i=i: self.names[i]),
            )
            for i in range(2)
        ]
        self.model: Any = torch.nn.Sequential(torch.nn.Linear(2, 2))
        self.model.config = SimpleNamespace(to_dict=lambda: {"model_type": "custom"})
        args = SimpleNamespace(ds=SimpleNamespace(zero_stage=2, tensor_parallel_size=1))
        args.ada = settings_with(verify_sync="first")
        self.trainer: Any = AdaActorTrainer.__new__(AdaActorTrainer)
        self.trainer.strategy = SimpleNamespace(args=args)
        self.trainer.actor = SimpleNamespace(model=SimpleNamespace(module=self.model))
        self.trainer.vllm_engines, self.trainer.use_cuda_ipc = self.engines, uses_ipc
        self.trainer._sync = Sync(self.sent)
        self.policy: Any = AdaPolicyActor.__new__(AdaPolicyActor)
        self.policy.trainer = self.trainer

    def take(self) -> list[tuple[str, Any]]:
        sent, self.sent[:] = list(self.sent), []
        return sent


BARRIER = ("barrier", None)


def test_group_is_formed_anew_for_a_new_engine_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.trainer._init_vllm_sync_group("gloo")
    assert world.take() == [], "engines may still be starting"
    for _ in range(2):
        world.trainer.broadcast_to_vllm()
    assert world.take() == [("group", [0, 1]), ("weights", 0), BARRIER, ("weights", 0), BARRIER]
    world.names[1] = "b1"
    world.trainer.broadcast_to_vllm()
    assert world.take() == [("group", [0, 1]), ("weights", 0), BARRIER]


def test_engine_that_dies_before_sending_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.trainer.broadcast_to_vllm()
    world.take()
    world.trainer._sync.deaths.append(lambda: world.names.__setitem__(1, "b1"))
    world.trainer.broadcast_to_vllm()
    assert world.take() == [("group", [0, 1]), ("weights", 0), BARRIER]


@pytest.mark.parametrize("alone", [False, True])
def test_one_engine_is_updated_alone_then_all_again(monkeypatch: pytest.MonkeyPatch, alone: bool) -> None:
    world = World(monkeypatch)
    world.policy.restore_engine(1, alone=alone)
    assert world.take() == [("group", [1]), ("weights", 0), *([] if alone else [BARRIER])]
    world.trainer.broadcast_to_vllm()
    assert world.take() == [("group", [0, 1]), ("weights", 0), BARRIER]


@pytest.mark.parametrize("alone", [False, True])
def test_second_engine_death_is_raised_together(monkeypatch: pytest.MonkeyPatch, alone: bool) -> None:
    world = World(monkeypatch)
    world.trainer._sync.dies_for_good = True
    with pytest.raises(EngineGoneError):
        world.policy.restore_engine(1, alone=alone)
    assert world.take() == [("group", [1]), *([] if alone else [BARRIER])], "nothing was sent"


def test_other_processes_of_the_policy_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold some of the weights, or nothing more than the barrier."""
    world = World(monkeypatch, rank=1)
    world.trainer.broadcast_to_vllm()
    world.policy.restore_engine(1)
    assert world.take() == [BARRIER, BARRIER]


def test_training_steps_make_versions_checkpoints_keep_them(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    host = unwrap_ray_class(ppo_actor.PolicyModelActor)
    monkeypatch.setattr(host, "fit", lambda self: {"loss": 1.0})
    monkeypatch.setattr(host, "init_model_from_pretrained", lambda self, strategy, pretrain: None)
    flags = {"train": SimpleNamespace(enable_ema=False, seed=42)}
    flags |= {"ckpt": SimpleNamespace(save_hf=True, save_steps=-1)}
    flags |= {
        "ada": SimpleNamespace(trust_remote_code=True, mode="seq"),
    }
    strategy = SimpleNamespace(args=SimpleNamespace(**flags))
    world.policy.checkpoint_states = {"global_step": 7}
    world.policy.init_model_from_pretrained(strategy, "model")
    world.policy.strategy = strategy
    world.policy.begin_step(8)
    world.policy.restore_engine(0, alone=True)
    assert world.policy.fit() == {"loss": 1.0}
    world.policy.restore_engine(0, alone=True)
    world.trainer.broadcast_to_vllm()
    assert [version for what, version in world.take() if what == "weights"] == [7, 8, 8], "before it, ahead, in time"
    world.policy.begin_step(9)
    world.trainer.broadcast_to_vllm()
    assert world.take() == [("weights", 9), BARRIER], "a step that trained the critic alone (--critic.freezing_steps)"
    world.policy.checkpoint_states = {}
    world.policy.init_model_from_pretrained(strategy, "model")
    assert world.trainer.version == 0


@pytest.mark.parametrize(
    "actor", [RayAdaPolicyActor, RayReferenceActor, RayRewardActor, RayAdaCritic, RayPassRateCritic]
)
def test_code_of_a_model_is_refused_where_it_would_run(actor: Any, tmp_path: Path) -> None:
    """On another node the same path may be another folder."""
    (tmp_path / "config.json").write_text('{"auto_map": {"AutoConfig": "own.Own"}}')
    off = SimpleNamespace(enable_ema=False, save_hf=False)
    args = SimpleNamespace(ada=settings_with(trust_remote_code=False), train=off, ckpt=off)
    strategy = SimpleNamespace(args=args)
    process: Any = unwrap_ray_class(actor).__new__(unwrap_ray_class(actor))
    with pytest.raises(ConfigError, match=r"names code of its own \(own\.Own\)"):
        process.init_model_from_pretrained(strategy, str(tmp_path))


def test_over_ipc_the_first_process_tells_the_others_with_whom_to_send(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(torch.distributed, "broadcast_object_list", lambda objects: told.extend(objects))
    world = World(monkeypatch, uses_ipc=True)
    world.trainer.broadcast_to_vllm()
    world.policy.restore_engine(1)
    assert told == ["2 engines", "1 engines"]
    assert world.take() == [("group", [0, 1]), ("weights", 0), BARRIER, ("group", [1]), ("weights", 0), BARRIER]
    world.trainer._sync.dies_for_good = True
    with pytest.raises(EngineGoneError):
        world.policy.restore_engine(1)
    assert told[2:] == [None], "nothing is sent"
    assert world.take() == [("group", [1]), BARRIER]


@pytest.mark.parametrize("group", ["a group", None], ids=["engines are there", "an engine is gone"])
def test_over_ipc_the_other_processes_send_too(monkeypatch: pytest.MonkeyPatch, group: str | None) -> None:
    world = World(monkeypatch, rank=1, uses_ipc=True)
    monkeypatch.setattr(torch.distributed, "broadcast_object_list", lambda objects: objects.__setitem__(0, group))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    monkeypatch.setattr(module, "send_along", lambda weights, *told: world.sent.append(("along", told)))
    monkeypatch.setattr(module, "take_part", lambda weights: world.sent.append(("gathered", None)))
    world.trainer.broadcast_to_vllm()
    part = ("gathered", None) if group is None else ("along", (group, 1, torch.device("cpu")))
    assert world.take() == [part, BARRIER]


@pytest.mark.parametrize(("uses_ipc", "senders"), [(True, 4), (False, 1)])
def test_as_many_processes_send_as_share_gpus(monkeypatch: pytest.MonkeyPatch, uses_ipc: bool, senders: int) -> None:
    world = World(monkeypatch, uses_ipc=uses_ipc)
    del world.trainer._sync
    world.trainer.strategy.args.vllm = SimpleNamespace(sync_backend="nccl", tensor_parallel_size=2)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    made: dict[str, Any] = {}
    monkeypatch.setattr(module, "WeightSync", lambda *args, **kwargs: made.update({"args": args} | kwargs))
    assert world.trainer._sync is None
    assert made == {"args": ("ipc" if uses_ipc else "nccl", torch.device("cpu"), 2, "first"), "senders": senders}
