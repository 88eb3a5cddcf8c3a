"""--ada_loss: averages of the policy's token losses that the host does not have, by a factor on the advantages.

A positive factor on a token's advantage is the same factor on its PPO loss: both clips compare ratios, and an
importance correction multiplies the result. So the host's own code can go on to compute the losses. KL loss, entropy
bonus and auxiliary loss have no advantage in them and keep the host's average.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

GROUP_TOKENS = "ada_group_tokens"
"""Key in Experience.info: response tokens of all trained samples of a sample's prompt, shape (B,)."""


def loss_length(args: SimpleNamespace) -> int:
    """The constant of --ada_loss sequence-constant, in tokens: given, or the longest response that may be sampled."""
    return args.ada.loss_length or args.rollout.max_new_tokens or args.data.max_len


def info_column(experience: Any, key: str) -> torch.Tensor:
    """One number per sample from Experience.info, shape (B,); the host's collation makes a list of scalars of it."""
    values = experience.info[key]
    return values if isinstance(values, torch.Tensor) else torch.stack(list(values))


def note_group_tokens(experiences: Sequence[Any], group_of: Callable[[int], object]) -> None:
    """Write GROUP_TOKENS into all experiences of a step: micro-batches and optimizer steps may split a group.

    `group_of`: from a sample's position in the batch of rollouts (`experience.index`) to its group.
    """
    totals: dict[object, float] = {}
    for experience in experiences:
        for position, tokens in zip(experience.index, experience.action_mask.sum(dim=-1).tolist(), strict=True):
            group = group_of(position)
            totals[group] = totals.get(group, 0.0) + tokens
    for experience in experiences:
        experience.info[GROUP_TOKENS] = torch.tensor([totals[group_of(position)] for position in experience.index])


def advantage_factors(
    experience: Any, loss_batch_info: dict[str, Any], args: SimpleNamespace, *, by_token: bool
) -> torch.Tensor:
    """By which factor each sample's losses differ from the host's average, shape (B, 1), positive.

    With S samples (of at least one token) and T tokens in the optimizer step, over all processes, a token's loss is
    divided by

    | | |
    |---|---|
    | host, token-mean | T |
    | host, GSPO | S x length of the sample |
    | sequence-constant (arXiv 2503.20783, Dr. GRPO) | S x constant |
    | prompt-mean (arXiv 2510.13786, section 3.2) | S / n x tokens of the prompt's group |

    Args:
        experience: a training micro-batch.
        loss_batch_info: the host's totals. S and T are both divided by the number of micro-batches where DeepSpeed
            divides by it once more, so their ratio is that of the step.
        args: the host's namespace with our flags.
        by_token: is the host's own average over tokens (not over samples)?
    """
    samples = loss_batch_info["global_batch_size"]
    mask = experience.action_mask
    divisor = loss_batch_info["batch_num_tokens"] if by_token else samples * mask.sum(dim=-1)
    if args.ada.loss == "sequence-constant":
        wanted = samples * loss_length(args)
    else:
        # A group without a token has no loss either; infinity times its mask would be no number.
        group_tokens = info_column(experience, GROUP_TOKENS).to(mask.device).clamp(min=1)
        wanted = samples / args.rollout.n_samples_per_prompt * group_tokens
    return (divisor / wanted).expand(len(mask)).unsqueeze(-1)
