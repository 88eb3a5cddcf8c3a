"""Numbers that are not finite end a run before the weights change.

Looked at: the loss of every micro-batch, and the gradient before every optimizer step. One NaN in a loss makes all
weights NaN, and the run would go on sampling from these.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from openrlhf_ada.host.models import before_optimizer_steps, is_gradient_finite

INPUTS = {
    "action_log_probs": "the policy's log-probabilities",
    "base_action_log_probs": "the reference model's log-probabilities",
    "rollout_log_probs": "the engines' log-probabilities",
    "values": "the critic's values",
    "returns": "the returns",
    "advantages": "the advantages",
}
"""Attributes of OpenRLHF's Experience, shapes (B, A), that a loss may be computed from."""


class NotFiniteError(RuntimeError):
    """A number of a training step is NaN or infinite."""


class FiniteSteps:
    """Watches the training steps of one model in this process.

    `loss`: the host's loss module, whose first output is the loss. `engine`: its DeepSpeed engine. `folder`: where a
    micro-batch is kept that ends the run.
    """

    @classmethod
    def of_run(cls, name: str, loss: torch.nn.Module, engine: Any, args: Any) -> FiniteSteps:
        """With the run directory as the folder. `args`: the run's flags."""
        return cls(name, loss, engine, args.ada.resolved_run_dir(args.logger.wandb.run_name))

    def __init__(self, name: str, loss: torch.nn.Module, engine: Any, folder: Path) -> None:
        self._name, self._engine, self._folder = name, engine, folder
        loss.register_forward_hook(self._look_at_loss)
        before_optimizer_steps(engine, self._look_at_gradient)

    @contextmanager
    def step(self, experience: Any) -> Iterator[None]:
        """Around one micro-batch. Raises NotFiniteError, which says what is not finite, and keeps the batch."""
        try:
            yield
        except NotFiniteError as error:
            raise NotFiniteError(self._message(error, experience)) from error

    @staticmethod
    def _look_at_loss(_module: Any, _inputs: Any, outputs: Any) -> None:
        loss = outputs[0] if isinstance(outputs, tuple) else outputs
        if not torch.isfinite(loss):
            raise NotFiniteError(f"its loss is {float(loss)}")

    def _look_at_gradient(self) -> None:
        if not is_gradient_finite(self._engine):
            raise NotFiniteError("its gradient is not finite")

    def _message(self, error: NotFiniteError, experience: Any) -> str:
        kept = self._keep(experience)
        return (
            f"training of the {self._name} stopped: {error}. {_cause(experience)}. The micro-batch is kept in {kept} "
            f"on {socket.gethostname()} (torch.load). The weights are those of before this step."
        )

    def _keep(self, experience: Any) -> Path:
        """A file of tensors by name: readable without this package."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / f"not_finite_{self._name}_{os.getpid()}.pt"
        tensors = {name: value.detach().cpu() for name, value in vars(experience).items() if torch.is_tensor(value)}
        torch.save(tensors, file)
        return file


def _cause(experience: Any) -> str:
    """Which of the numbers that the loss is computed from are not finite."""
    found = {
        words: int((~torch.isfinite(values)).flatten(1).any(dim=1).sum())
        for name, words in INPUTS.items()
        if torch.is_tensor(values := getattr(experience, name))
    }
    bad = [f"{words} ({count} of {len(experience.action_mask)} rollouts)" for words, count in found.items() if count]
    if bad:
        return f"Not finite before it: {', '.join(bad)}"
    return "All that it is computed from is finite: the learning rate, a reward or an advantage is too large"
