"""OpenRLHF's processes of policy and critic, and the trainers in them.

Contract: test_finite_steps.test_a_gradient_that_is_not_finite_ends_the_run_before_the_weights_change
Contract: test_openrlhf_facts.test_fact
Contract: test_ports.test_processes_of_models_meet_at_the_chosen_port
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from types import SimpleNamespace
from typing import Any

import torch
from openrlhf.trainer.ray import launcher, ppo_actor, ppo_critic

from openrlhf_ada.host.classes import substituted, unwrap_ray_class
from openrlhf_ada.host.model_code import check_model_code
from openrlhf_ada.host.ports import free_port


class HostPolicyTrainer(ppo_actor.ActorPPOTrainer):
    """OpenRLHF's trainer of the policy, without its group for sending weights."""

    def _init_vllm_sync_group(self, backend: str) -> None:
        """The constructor calls it, when engines may still be starting; our group is formed with the first update."""


class HostModelActor:
    """Mixed into OpenRLHF's processes of models: no code of a model runs that the user did not ask for, and the first
    process chooses the port on which they meet."""

    model_role: str
    """Whose model it is, for the message."""

    def init_model_from_pretrained(self, strategy: Any, pretrain: str, *args: Any, **kwargs: Any) -> None:
        """Checked here too: on another node the same path may be another folder. Raises ConfigError."""
        check_model_code(self.model_role, pretrain, trusted=strategy.args.ada.trust_remote_code)
        host: Any = super()
        host.init_model_from_pretrained(strategy, pretrain, *args, **kwargs)

    @staticmethod
    def _get_free_port() -> int:
        return free_port()


class HostPolicyActor(HostModelActor, unwrap_ray_class(ppo_actor.PolicyModelActor)):
    """OpenRLHF's process of the policy, with a trainer of `trainer_class`; without its average and its exports."""

    model_role = "the policy's model"
    trainer_class: type[HostPolicyTrainer] = HostPolicyTrainer

    def init_model_from_pretrained(self, strategy: Any, pretrain: str, *args: Any, **kwargs: Any) -> None:
        """It creates the trainer by its name in the module, and reads from the flags what it averages and exports."""
        with substituted(ppo_actor, ActorPPOTrainer=self.trainer_class):
            super().init_model_from_pretrained(_without_average_and_exports(strategy), pretrain, *args, **kwargs)


def _without_average_and_exports(strategy: Any) -> Any:
    """A copy of the strategy, with --train.enable_ema and --ckpt.save_hf off."""
    without, args = copy(strategy), strategy.args
    train = SimpleNamespace(**vars(args.train) | {"enable_ema": False})
    ckpt = SimpleNamespace(**vars(args.ckpt) | {"save_hf": False})
    without.args = SimpleNamespace(**vars(args) | {"train": train, "ckpt": ckpt})
    return without


class HostCriticActor(HostModelActor, unwrap_ray_class(ppo_critic.CriticModelActor)):
    """OpenRLHF's process of the critic, with a trainer of `trainer_class`."""

    model_role = "the critic's model"
    trainer_class: type[ppo_critic.CriticPPOTrainer] = ppo_critic.CriticPPOTrainer

    def init_model_from_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """It creates the trainer by its name in the module."""
        with substituted(ppo_critic, CriticPPOTrainer=self.trainer_class):
            super().init_model_from_pretrained(*args, **kwargs)


class HostReferenceActor(HostModelActor, unwrap_ray_class(launcher.ReferenceModelActor)):
    """OpenRLHF's process of the reference policy."""

    model_role = "the reference's model"


class HostRewardActor(HostModelActor, unwrap_ray_class(launcher.RewardModelActor)):
    """OpenRLHF's process of the reward model."""

    model_role = "the reward model"


def before_optimizer_steps(engine: Any, look: Callable[[], None] = lambda: None) -> None:
    """Call `look` before each step of a DeepSpeed engine that changes the weights. In single precision without ZeRO
    the gradient's norm, which DeepSpeed does not know then, is noted where OpenRLHF looks for it."""
    step = engine.step

    def watched(*args: Any, **kwargs: Any) -> Any:
        if engine.is_gradient_accumulation_boundary():
            if _is_plain(engine):
                gradients = [p.grad for p in engine.module.parameters() if p.grad is not None]
                engine._global_grad_norm = torch.nn.utils.get_total_norm(gradients)
            look()
        return step(*args, **kwargs)

    engine.step = watched


def is_gradient_finite(engine: Any) -> bool:
    """Of all processes, between the last backward pass and the step. True in bfloat16 without ZeRO, and in float16,
    where DeepSpeed leaves steps out itself. The norm does not tell: ZeRO 3 has a number also for one that is not
    finite."""
    if _is_plain(engine):
        return bool(torch.isfinite(engine.get_global_grad_norm()))
    if engine.fp16_enabled() or not engine.zero_optimization_stage():
        return True
    return not engine.optimizer.has_overflow()


def _is_plain(engine: Any) -> bool:
    """Is the optimizer none of DeepSpeed's?"""
    return not (engine.zero_optimization_stage() or engine.bfloat16_enabled() or engine.fp16_enabled())
