"""What the training steps of policy and critic do beyond OpenRLHF's.

- Numbers that are not finite end a run before the weights change: the loss of every micro-batch is looked at, and the
  gradient before every optimizer step. One NaN in a loss makes all weights NaN, and the run would sample from these.
- All micro-batches are trained. With --train.dynamic_batch_enable OpenRLHF tells DeepSpeed that every backward pass is
  a whole step, and leaves out the calls of `step()` in between; ZeRO stages 1 and 2 then train the last micro-batch
  alone, without a word (tests/contract/test_dynamic_batches.py).
- Logged losses are means over all that a step trains. OpenRLHF divides the losses of a micro-batch by the totals of
  the whole optimizer step, and then averages them as if each were the mean of its micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from openrlhf.utils.loss_utils import get_loss_batch_info

from openrlhf_ada.host.models import before_optimizer_steps, is_gradient_finite

STRIDE = 1_000_003
"""Runs of neighbouring seeds share no step's numbers."""


def seed_step(args: Any, version: int) -> None:
    """Random numbers of a process of policy or critic in the step that makes this version: the order of its
    micro-batches, dropout. OpenRLHF's go on from the last step's, so a resumed run has others; mode off keeps that."""
    if args.ada.mode != "off":
        torch.manual_seed(args.train.seed + STRIDE * version)


def mark_boundary(trainer: Any, engine: Any, step: int) -> None:
    """To be called before micro-batch `step` of a pass over the replay buffer: does an optimizer step end with it?

    `trainer`: OpenRLHF's, of policy or critic; `engine`: its DeepSpeed engine.
    """
    if trainer.args.train.dynamic_batch_enable:
        engine.set_gradient_accumulation_boundary(bool(trainer.replay_buffer.dynamic_optimizer_step[step]))


def loss_totals(trainer: Any, mask: torch.Tensor, step: int) -> dict[str, Any]:
    """By what OpenRLHF's trainer, of policy or critic, divides losses: with micro-batches by tokens, only it knows."""
    return get_loss_batch_info(
        trainer.strategy,
        mask,
        replay_buffer=trainer.replay_buffer,
        step=step,
        dynamic_batch=trainer.args.train.dynamic_batch_enable,
    )


def loss_length(args: SimpleNamespace) -> int:
    """The constant of --ada_loss sequence-constant, in tokens: given, or the longest response that may be sampled."""
    return args.ada.loss_length or args.rollout.max_new_tokens or args.data.max_len


def advantage_factors(
    experience: Any, loss_batch_info: dict[str, Any], args: SimpleNamespace, *, by_token: bool
) -> torch.Tensor:
    """By which factor each sample's losses differ from OpenRLHF's average with --ada_loss sequence-constant (Dr. GRPO,
    arXiv 2503.20783), shape (B, 1), positive.

    A positive factor on a token's advantage is the same factor on its PPO loss: both clips compare ratios, and an
    importance correction multiplies the result. KL loss, entropy bonus and auxiliary loss keep OpenRLHF's average.

    With S samples (of at least one token) and T tokens in the optimizer step, over all processes, OpenRLHF divides a
    token's loss by T, or if not `by_token` (GSPO) by S x length of the sample; here it is S x constant.

    Args:
        loss_batch_info: OpenRLHF's totals. S and T are both divided by the number of micro-batches where DeepSpeed
            divides by it once more, so their ratio is that of the step.
    """
    samples = loss_batch_info["global_batch_size"]
    mask = experience.action_mask
    divisor = loss_batch_info["batch_num_tokens"] if by_token else samples * mask.sum(dim=-1)
    return (divisor / (samples * loss_length(args))).expand(len(mask)).unsqueeze(-1)


def without_negative(advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """0 for rollouts whose coefficient is negative, which all their tokens have as the advantage; shapes (B, A)."""
    return advantages.masked_fill((advantages * mask).sum(dim=-1, keepdim=True) < 0.0, 0.0)


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
    """A number of a training step is NaN or infinite; the weights are those of before it."""


class FiniteSteps:
    """Watches the training steps of one model in this process.

    `loss`: OpenRLHF's loss module, whose first output is the loss. `engine`: its DeepSpeed engine.
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
