"""platforms/resources.py says how many slots OpenRLHF's `train` will ask Ray for: compared with what it does ask for.

OpenRLHF's own function runs, up to the point where it starts its trainer; placement groups and actors are recorded
instead of created.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from openrlhf.cli import train_ppo_ray as host
from openrlhf.trainer import ppo_trainer, ppo_trainer_async

from openrlhf_ada.platforms.resources import CONTROLLER_CPUS, MissingResourcesError, Slots, required_slots


class TrainerReachedError(Exception):
    """All placement is done when OpenRLHF creates its trainer."""


class Demand:
    """Counts the GPUs of every placement group and of every actor group outside of one."""

    def __init__(self) -> None:
        self.gpus = 0

    def placement_group(self, bundles: list[dict[str, int]], strategy: str) -> SimpleNamespace:
        self.gpus += sum(bundle["GPU"] for bundle in bundles)
        return SimpleNamespace(ready=lambda: None)

    def actor_group(self, nodes: int, gpus: int, _kind: Any, *, pg: Any, num_gpus_per_actor: float, **_: Any) -> None:
        if pg is None:
            assert num_gpus_per_actor == 1
            self.gpus += nodes * gpus

    def engines(self, num_engines: int, tensor_parallel: int, *args: Any, **_: Any) -> None:
        shared = args[6]
        self.gpus += 0 if shared else num_engines * tensor_parallel


def host_demand(args: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> int:
    demand = Demand()

    def reached(*_: Any, **__: Any) -> None:
        raise TrainerReachedError

    monkeypatch.setattr(host, "placement_group", demand.placement_group)
    monkeypatch.setattr(host, "RayActorGroup", demand.actor_group)
    monkeypatch.setattr(host, "create_vllm_engines", demand.engines)
    monkeypatch.setattr(host, "get_strategy", lambda _: SimpleNamespace(print=lambda _: None))
    monkeypatch.setattr(host, "ray", SimpleNamespace(is_initialized=lambda: True, get=lambda _: None))
    monkeypatch.setattr(ppo_trainer, "PPOTrainer", SimpleNamespace(remote=reached))
    monkeypatch.setattr(ppo_trainer_async, "PPOTrainerAsync", SimpleNamespace(remote=reached))
    with pytest.raises(TrainerReachedError):
        host.train(args)
    return demand.gpus


def make_args(
    *,
    actor: int = 2,
    engines: int = 2,
    tensor_parallel: int = 1,
    kl: float = 0.0,
    critic: bool = False,
    reward_model: bool = False,
    **train: bool,
) -> SimpleNamespace:
    switches = {"colocate_all": False, "colocate_actor_ref": False, "colocate_critic_reward": False}
    group = {"num_nodes": 1, "num_gpus_per_node": 2}
    return SimpleNamespace(
        actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=actor, model_name_or_path="model"),
        ref=SimpleNamespace(**group),
        critic=SimpleNamespace(**group, model_name_or_path="model" if critic else None),
        reward=SimpleNamespace(**group, remote_url=None if reward_model else ["r.py"]),
        vllm=SimpleNamespace(
            num_engines=engines,
            tensor_parallel_size=tensor_parallel,
            enable_prefix_caching=False,
            enforce_eager=True,
            gpu_memory_utilization=0.5,
            enable_sleep=False,
        ),
        train=SimpleNamespace(
            **(
                switches
                | {"async_enable": False, "seed": 0, "full_determinism_enable": False, "agent_func_path": None}
                | train
            )
        ),
        algo=SimpleNamespace(kl=SimpleNamespace(init_coef=kl), advantage=SimpleNamespace(is_correction_level="off")),
        data=SimpleNamespace(max_len=64),
        rollout=SimpleNamespace(max_new_tokens=4, temperature=1.0, top_p=1.0),
        ds=SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1),
    )


def test_equals_what_the_host_asks_for_in_every_combination(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("critic", "reward_model", "colocate_all", "colocate_actor_ref", "colocate_critic_reward", "async_enable")
    for kl, *switches in itertools.product((0.0, 0.01), *[(False, True)] * len(names)):
        options = dict(zip(names, switches, strict=True))
        args = make_args(kl=kl, **options)
        assert required_slots(args).gpus == host_demand(args, monkeypatch), options | {"kl": kl}


@pytest.mark.parametrize(
    ("options", "roles"),
    [
        ({}, {"policy": 2, "vLLM engine": 2}),
        ({"actor": 1, "engines": 1}, {"policy": 1, "vLLM engine": 1}),
        ({"tensor_parallel": 4}, {"policy": 2, "vLLM engine": 8}),
        ({"kl": 0.01}, {"policy": 2, "vLLM engine": 2, "reference": 2}),
        ({"kl": 0.01, "colocate_actor_ref": True}, {"policy": 2, "vLLM engine": 2}),
        ({"critic": True, "reward_model": True}, {"policy": 2, "vLLM engine": 2, "critic": 2, "reward model": 2}),
        (
            {"critic": True, "reward_model": True, "colocate_critic_reward": True},
            {"policy": 2, "vLLM engine": 2, "critic and reward": 2},
        ),
        ({"kl": 0.01, "critic": True, "colocate_all": True}, {"policy": 2}),
    ],
    ids=str,
)
def test_by_role(options: dict[str, Any], roles: dict[str, int]) -> None:
    slots = required_slots(make_args(**options))
    assert slots.by_role == roles
    assert slots.gpus == sum(roles.values())
    assert slots.cpus == slots.gpus + CONTROLLER_CPUS


def test_engines_left_out_need_no_slot() -> None:
    args = make_args()
    args.vllm.num_engines = None
    assert required_slots(args).by_role == {"policy": 2}


# -- the message --------------------------------------------------------------------------------------------------

SLOTS = Slots({"policy": 2, "vLLM engine": 1})


@pytest.mark.parametrize("available", [{"GPU": 3, "CPU": 4}, {"GPU": 8.0, "CPU": 64.0, "memory": 1e9}])
def test_enough_is_silent(available: dict[str, float]) -> None:
    SLOTS.check(available, free=available)


def test_slots_of_other_jobs_are_awaited_with_note(caplog: pytest.LogCaptureFixture) -> None:
    SLOTS.check({"GPU": 8, "CPU": 64}, free={"GPU": 1, "CPU": 64})
    assert "GPU 3 needed, 1 free. Waiting for them" in caplog.text


@pytest.mark.parametrize(
    ("available", "missing", "present"),
    [
        ({"GPU": 2, "CPU": 64}, "GPU 3 needed, 2 present", "CPU"),
        ({"CPU": 64}, "GPU 3 needed, 0 present", "CPU"),
        ({"GPU": 3, "CPU": 3}, "CPU 4 needed, 3 present", "GPU"),
        ({}, "GPU 3 needed, 0 present; CPU 4 needed, 0 present", None),
    ],
)
def test_too_few_resources_error_names_remedy(available: dict[str, float], missing: str, present: str | None) -> None:
    with pytest.raises(MissingResourcesError) as error:
        SLOTS.check(available, free={})
    message = str(error.value)
    assert missing in message
    assert "2 policy + 1 vLLM engine" in message
    assert "--vllm.num_engines" in message
    assert "--train.colocate_all" in message
    assert present is None or f"{present} {SLOTS.gpus}" not in message, "what suffices is not named as missing"
