"""A critic that learns the pool, not the selection.

A balanced group is half positive whatever the prompt's pass rate: a critic fitted to it learns 1/2 for every prompt.
Each kept sample therefore counts with its stratum factor (N_c/N)/(k_c/n), which makes the weighted loss over the kept
samples an unbiased estimate of the loss over the whole pool.
"""

from __future__ import annotations

from functools import cached_property, partial
from pathlib import Path
from typing import Any

import ray
import torch
from openrlhf.models import ValueLoss
from openrlhf.trainer.ray import ppo_critic

from openrlhf_ada.host.checkpoints import CRITIC
from openrlhf_ada.host.models import HostCriticActor
from openrlhf_ada.trainer.experience_maker import CRITIC_WEIGHT, critic_weights
from openrlhf_ada.trainer.training_step import FiniteSteps, StepMeans, loss_totals, mark_boundary, seed_step


class StratumValueLoss(ValueLoss):
    """OpenRLHF's clipped value loss with one weight per sample, if any.

    The loss mask enters only as a weighted sum; the normaliser is the step's token count, given by OpenRLHF.
    """

    weights: torch.Tensor | None = None

    def forward(self, *values: torch.Tensor, action_mask: torch.Tensor | None = None, **info: Any) -> torch.Tensor:
        if self.weights is not None and action_mask is not None:
            action_mask = action_mask * self.weights.to(action_mask.device).unsqueeze(-1)
        return super().forward(*values, action_mask=action_mask, **info)


class AdaCriticTrainer(ppo_critic.CriticPPOTrainer):
    """OpenRLHF's critic trainer, which trains all micro-batches of a step, and only of finite numbers; in the adaptive
    modes with the stratum-weighted loss.

    It logs means over the tokens of the whole step, and rate and gradient norm of its last optimizer step: OpenRLHF
    logs means over micro-batches.
    """

    _last: dict[str, float]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.critic_loss_fn = StratumValueLoss(self.value_clip)

    @cached_property
    def _means(self) -> StepMeans:
        return StepMeans()

    @cached_property
    def _finite(self) -> FiniteSteps:
        return FiniteSteps("critic", self.critic_loss_fn, self.critic)

    def training_step(self, experience: Any, step: int, loss_batch_info: dict | None = None) -> dict[str, float]:
        mark_boundary(self, self.critic, step)
        self.critic_loss_fn.weights = critic_weights(experience) if CRITIC_WEIGHT in experience.info else None
        with self._finite.step(experience):
            status = super().training_step(experience, step, loss_batch_info)
        self._note_figures(status, experience, step, loss_batch_info)
        return status

    def ppo_train(self) -> dict[str, float]:
        status = super().ppo_train()
        return status and status | self._last | self._means.take(partial(self.strategy.all_reduce, op="sum"))

    def _note_figures(self, status: dict[str, float], experience: Any, step: int, loss_batch_info: Any) -> None:
        """Of one micro-batch."""
        mask = experience.action_mask
        totals = loss_batch_info or loss_totals(self, mask, step)
        self._means.add_loss("critic_loss", status["critic_loss"], mask, totals, by_token=True)
        tokens = float(mask.sum())
        self._means.add("values", status["values"] * tokens if tokens else 0.0, tokens)
        self._last = {name: status[name] for name in ("critic_lr", "critic_grad_norm")}


class UncommittedCheckpoints:
    """Of a critic's process, in place of OpenRLHF's, which removes older ones first: the policy's process does that
    when both are written (`trainer/checkpoints.py`)."""

    critic: Any
    strategy: Any
    disable_ds_ckpt: bool

    def save_checkpoint(self, tag: str, metric_value: float | None = None, metric_key: str | None = None) -> None:
        if not self.disable_ds_ckpt:
            self.critic.save_checkpoint(str(Path(self.strategy.args.ckpt.path) / CRITIC), tag, save_latest=False)


class AdaCriticModelActor(UncommittedCheckpoints, HostCriticActor):
    """OpenRLHF's critic actor with our trainer."""

    trainer_class = AdaCriticTrainer

    def begin_step(self, version: int) -> None:
        """A training step begins."""
        seed_step(self.strategy.args, version)


RayAdaCritic = ray.remote(num_gpus=1)(AdaCriticModelActor)
