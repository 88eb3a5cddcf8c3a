"""A training step in parts: gradients of some of its samples are computed before all are there (--ada_overlap).

A step's gradient is a sum over its samples, divided by a total that is known only at the end. So the first parts are
divided by an estimate and the last one by the total, and what the first ones have left is scaled in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from openrlhf_ada.host.models import HostPolicyTrainer, scaled_losses

OF_THE_OPTIMIZER = ("actor_grad_norm", "actor_lr")
"""Figures of its step, which it takes with the last part."""

LOSSES = ("policy_loss", "entropy_loss")


@dataclass(frozen=True, slots=True)
class LossTotals:
    """What the losses of a part are divided by: `tokens` and `samples` (of at least one token) of the whole optimizer
    step, over all processes; an estimate but for the last part. `scale`: the total / the estimate, in the last part.
    """

    tokens: float
    samples: float
    is_last: bool
    scale: float = 1.0


class TrainsInParts(HostPolicyTrainer):
    """The policy's trainer, whose replay buffer may hold a part of a step: `totals` are given then, for that part."""

    totals: LossTotals | None = None

    @cached_property
    def parts(self) -> StepStatus:
        """What was measured in the parts of the step so far."""
        return StepStatus()

    def of_whole_step(self, loss_batch_info: Any) -> Any:
        """The host's totals, which are of the samples that are there; of the whole step, where these are a part."""
        if self.totals is None:
            return loss_batch_info
        # DeepSpeed divides every loss by the number of micro-batches once more.
        device, micro_batches = loss_batch_info["batch_num_tokens"].device, self.strategy.accumulated_gradient
        return {
            "dp_size": loss_batch_info["dp_size"],
            "batch_num_tokens": torch.tensor(self.totals.tokens / micro_batches, device=device),
            "global_batch_size": torch.tensor(self.totals.samples / micro_batches, device=device),
        }

    def training_step(self, *args: Any) -> Any:
        """The host's, on one micro-batch."""
        status: Any = super().training_step(*args)
        if self.totals is not None:
            self.parts.kinds = status["weights"]
        return status

    def ppo_train(self, kl_ctl: float) -> dict[str, float]:
        """The host's. Of the last part of a step, the status of the whole step; of another one, none.

        Raises RuntimeError where the optimizer steps with another part than the last, or not at all.
        """
        totals, engine = self.totals, self.actor.model
        if totals is None:
            return super().ppo_train(kl_ctl)
        masks = [item.action_mask for item in self.replay_buffer.items]
        counts = {"token": float(sum(mask.sum() for mask in masks)), "sample": float(len(masks))}
        before = engine.global_steps
        with scaled_losses(engine, totals.scale):
            status = super().ppo_train(kl_ctl)
        self.totals = None
        if engine.global_steps != before + totals.is_last:
            raise RuntimeError(
                f"the optimizer took {engine.global_steps - before} steps in a part of a training step, and should "
                f"have taken {int(totals.is_last)}"
            )
        self.parts.add(status, self.strategy.all_reduce(counts, op="sum"))
        return self.parts.take(totals.scale) if totals.is_last else {}


class StepStatus:
    """Figures of a step, from those of its parts.

    `kinds`: of each figure, "token" where it is a mean over tokens; the others are means over samples.
    """

    def __init__(self) -> None:
        self.kinds: Mapping[str, str | None] = {}
        self._parts: list[tuple[dict[str, float], dict[str, float]]] = []

    def add(self, status: Mapping[str, float], counts: Mapping[str, float]) -> None:
        """`counts`: how many each "token" and "sample" stand for, over all processes."""
        self._parts.append((dict(status), dict(counts)))

    def take(self, scale: float) -> dict[str, float]:
        """Means over the parts so far; the next part begins a new step. `scale`: see LossTotals."""
        *early, (status, counts) = parts = self._parts
        self._parts = []
        for name in status.keys() - set(OF_THE_OPTIMIZER):
            kind = "token" if self.kinds.get(name) == "token" else "sample"
            divisor = scale if self._is_loss(name) else 1.0
            weighted = sum(figures.get(name, 0.0) / divisor * weight[kind] for figures, weight in early)
            total = sum(weight[kind] for _, weight in parts)
            status[name] = (weighted + status[name] * counts[kind]) / max(total, 1.0)
        return status

    def _is_loss(self, name: str) -> bool:
        """Was it divided by the step's totals? A KL divergence is where it is a loss, else a mean over samples."""
        return name in LOSSES or (name == "kl" and self.kinds.get(name) == "token")
