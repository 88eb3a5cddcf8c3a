"""What the log-probabilities of sampled tokens say: do policy and engines agree, and how certain is the policy?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from openrlhf_ada.trainer.skipped_rollouts import computed_actions


class LogprobGapError(RuntimeError):
    """The engines sample from something else than the policy; nothing was trained on it."""


@dataclass(frozen=True)
class LogprobGap:
    """Of sampled tokens: mean and maximum of |log π - log μ|, policy π by engine μ.

    The first token of an answer or turn is left out: OpenRLHF has vLLM sample at least one token, so none can be the
    end there, and μ is π without it. `ends_at_once`: by how much, so the mean probability that π gives to the end.
    """

    mean: float
    maximum: float
    ends_at_once: float = 0.0

    def __str__(self) -> str:
        return (
            f"policy and engines differ by {self.mean:.3g} per token in log-probability (at most {self.maximum:.3g})"
        )


def logprob_gap(experiences: Sequence[Any]) -> LogprobGap | None:
    """Of a batch in micro-batches with `action_log_probs`, `rollout_log_probs` and `action_mask`, shape (B, A) each.

    None where the engines were not asked for theirs, or all rollouts are hidden (`skipped_rollouts.hide`), or none has
    a second token.
    """
    if any(experience.rollout_log_probs is None for experience in experiences):
        return None
    by_batch = [(e.action_log_probs - e.rollout_log_probs).float() for e in experiences]
    computed = [computed_actions(e) for e in experiences]
    later = [of & torch.nn.functional.pad(of[:, :-1], (1, 0)) for of in computed]
    gaps = torch.cat([v[of] for v, of in zip(by_batch, later, strict=True)])
    if not len(gaps):
        return None
    first = torch.cat([v[of & ~after] for v, of, after in zip(by_batch, computed, later, strict=True)])
    ends = (1 - first.exp()).clamp(min=0.0)
    return LogprobGap(float(gaps.abs().mean()), float(gaps.abs().max()), float(ends.mean()))


def surprisal(experiences: Sequence[Any], weights: Sequence[torch.Tensor]) -> float | None:
    """Mean of -log π over the sampled tokens of micro-batches with `action_log_probs` and `action_mask`, shape (B, A)
    each, where rollouts count by `weights`, shape (B,) each: an estimate of the policy's entropy per token. None where
    nothing was sampled, or all is hidden."""
    counted = [computed_actions(e) * weight.unsqueeze(1) for e, weight in zip(experiences, weights, strict=True)]
    total = sum(float((e.action_log_probs.float() * c).sum()) for e, c in zip(experiences, counted, strict=True))
    tokens = sum(float(c.sum()) for c in counted)
    return -total / tokens if tokens else None


def check_gap(gap: LogprobGap, limit: float) -> None:
    """Raises LogprobGapError."""
    # Not a number is not below the limit either.
    if not gap.mean <= limit:
        raise LogprobGapError(
            f"{gap}, and --ada_logprob_stop is {limit:g}: the engines' weights are not the policy's, or they compute "
            f"something else. --ada_verify_sync always finds tensors that arrive wrongly."
        )
