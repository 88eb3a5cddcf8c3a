"""--ada_loss: an average of the policy's token losses that OpenRLHF does not have, by a factor on the advantages.

A positive factor on a token's advantage is the same factor on its PPO loss: both clips compare ratios, and an
importance correction multiplies the result. So the host's own code can go on to compute the losses. KL loss, entropy
bonus and auxiliary loss have no advantage in them and keep the host's average.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch


def loss_length(args: SimpleNamespace) -> int:
    """The constant of --ada_loss sequence-constant, in tokens: given, or the longest response that may be sampled."""
    return args.ada.loss_length or args.rollout.max_new_tokens or args.data.max_len


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
    return (divisor / (samples * loss_length(args))).expand(len(mask)).unsqueeze(-1)
