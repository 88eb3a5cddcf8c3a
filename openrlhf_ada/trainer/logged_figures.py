"""Logged losses: means over all that a training step trains, however it is cut into micro-batches.

OpenRLHF divides the losses of a micro-batch by the totals of the whole optimizer step. Then it averages them as if
each were the mean of its micro-batch, so what it logs depends on --train.micro_batch_size; what it trains does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from openrlhf.utils.loss_utils import get_loss_batch_info


def loss_totals(trainer: Any, mask: torch.Tensor, step: int) -> dict[str, Any]:
    """By what OpenRLHF's trainer, of policy or critic, divides losses: with micro-batches by tokens, only it knows."""
    return get_loss_batch_info(
        trainer.strategy,
        mask,
        replay_buffer=trainer.replay_buffer,
        step=step,
        dynamic_batch=trainer.args.train.dynamic_batch_enable,
    )


class StepMeans:
    """Sums of a training step in this process, and of how many tokens or samples they are."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}

    def add(self, name: str, total: float, count: float) -> None:
        for key, value in ((name, total), (f"{name}/count", count)):
            self._sums[key] = self._sums.get(key, 0.0) + value

    def add_loss(self, name: str, loss: Any, mask: torch.Tensor, totals: dict[str, Any], *, by_token: bool) -> None:
        """A micro-batch's loss as OpenRLHF has computed it. `totals`: its own, by which that was divided."""
        divisor = totals["batch_num_tokens" if by_token else "global_batch_size"] / totals["dp_size"]
        count = mask.sum() if by_token else mask.any(dim=-1).sum()
        self.add(name, float(loss) * float(divisor), float(count))

    def add_policy(self, status: Any, mask: torch.Tensor, totals: dict[str, Any], loss: Any, kl: Any) -> None:
        """The losses of a micro-batch of the policy. `status`: OpenRLHF's; `loss`: its module; `kl`: its flags."""
        by_token = {"policy_loss": loss.token_level_loss, "entropy_loss": True} | ({"kl": True} if kl.use_loss else {})
        for name in by_token.keys() & status["metrics"].keys():
            self.add_loss(name, status["metrics"][name], mask, totals, by_token=by_token[name])
        if loss.is_correction_level == "seq" and "is_filter_ratio" in status["weights"]:
            # A share of samples, which OpenRLHF counts by their tokens.
            status["weights"]["is_filter_ratio"] = "sample"

    def take(self, add_up: Callable[[dict[str, float]], dict[str, float]]) -> dict[str, float]:
        """The means; the next step begins anew. `add_up`: over all processes, which all have the same names."""
        sums, self._sums = add_up(self._sums), {}
        counts = {name: sums[f"{name}/count"] for name in sums if not name.endswith("/count")}
        return {name: sums[name] / count if count else 0.0 for name, count in counts.items()}
