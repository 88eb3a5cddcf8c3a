"""Policy and critics tell DeepSpeed where an optimizer step ends, before each micro-batch by tokens.

With the real DeepSpeed: tests/contract/test_dynamic_batches.py.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from openrlhf.trainer.ray import ppo_actor, ppo_critic
from run_flags import settings_with

from openrlhf_ada.trainer.critic import AdaCriticTrainer
from openrlhf_ada.trainer.experience_maker import CRITIC_WEIGHT
from openrlhf_ada.trainer.policy import AdaActorTrainer

pytestmark = pytest.mark.rehearsal

ENDS = [0, 0, 1, 0, 1]


class Engine:
    global_steps = 0

    def __init__(self) -> None:
        self.ends: list[bool] = []

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        self.ends.append(is_boundary)


def trainer_of(cls: Any, *, dynamic: bool) -> Any:
    trainer = cls.__new__(cls)
    trainer.args = SimpleNamespace(
        train=SimpleNamespace(dynamic_batch_enable=dynamic), ada=settings_with(loss="host", mode="off")
    )
    trainer.replay_buffer = SimpleNamespace(dynamic_optimizer_step=ENDS)
    trainer.critic = Engine()
    trainer.actor = SimpleNamespace(model=trainer.critic)
    trainer.critic_loss_fn = SimpleNamespace()
    trainer._finite = SimpleNamespace(step=lambda _: nullcontext())
    trainer._note_figures = lambda *_: None
    return trainer


@pytest.mark.parametrize("cls", [AdaActorTrainer, AdaCriticTrainer])
@pytest.mark.parametrize("dynamic", [True, False])
def test_the_last_micro_batch_of_a_step_is_its_end(monkeypatch: pytest.MonkeyPatch, cls: Any, dynamic: bool) -> None:
    for host in (ppo_actor.ActorPPOTrainer, ppo_critic.CriticPPOTrainer):
        monkeypatch.setattr(host, "training_step", lambda *call: {"loss": len(call)})
    trainer = trainer_of(cls, dynamic=dynamic)
    experience = SimpleNamespace(info={CRITIC_WEIGHT: torch.ones(1)})
    for step in range(len(ENDS)):
        arguments = (0.0, step) if cls is AdaActorTrainer else (step,)
        assert trainer.training_step(experience, *arguments) == {"loss": 3 + len(arguments)}
    assert trainer.critic.ends == ([bool(end) for end in ENDS] if dynamic else [])
