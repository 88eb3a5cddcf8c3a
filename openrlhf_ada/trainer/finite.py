"""Numbers that are not finite end a run before the weights change.

Looked at: the loss of every micro-batch, and the gradient before every optimizer step. One NaN in a loss makes all
weights NaN, and the run would go on sampling from these.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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

    `loss`: the host's loss module, whose first output is the loss. `engine`: its DeepSpeed engine.
    """

    def __init__(self, name: str, loss: torch.nn.Module, engine: Any) -> None:
        self._name, self._engine = name, engine
        loss.register_forward_hook(self._look_at_loss)
        before_optimizer_steps(engine, self._look_at_gradient)

    @contextmanager
    def step(self, experience: Any) -> Iterator[None]:
        """Around one micro-batch. Raises NotFiniteError, which says what is not finite."""
        try:
            yield
        except NotFiniteError as error:
            raise NotFiniteError(
                f"training of the {self._name} stopped: {error}. {_cause(experience)}. The weights are those of "
                f"before this step."
            ) from error

    @staticmethod
    def _look_at_loss(_module: Any, _inputs: Any, outputs: Any) -> None:
        loss = outputs[0] if isinstance(outputs, tuple) else outputs
        if not torch.isfinite(loss):
            raise NotFiniteError(f"its loss is {float(loss)}")

    def _look_at_gradient(self) -> None:
        if not is_gradient_finite(self._engine):
            raise NotFiniteError("its gradient is not finite")


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
