"""The policy's forward pass on a CPU, where every token costs: logits for the answers only, each prompt once.

Both give the host's log-probabilities and gradients up to rounding (tests/contract/test_cpu_forward_shim.py). The host
computes logits over the vocabulary at every position and then cuts the prompt off, and it computes a prompt once per
answer. Prompts are shared where the model attends to everything before a token and nothing else distinguishes rows;
all other models, packed samples and `--actor.entropy_coef` take the host's own way.
"""

from __future__ import annotations

import inspect
import os
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openrlhf_ada.platforms.shared_prompts import MergedBatch

SHARE_VARIABLE = "OPENRLHF_ADA_SHARE_PROMPTS"
"""Set to 0, every row is computed with its own prompt, as the host does."""

_FULL_ATTENTION = {"llama", "qwen2", "qwen3"}
"""Model types whose layers see a token's whole past through the mask that they are given."""

_FIXED_ROPE = {"default", "linear", "llama3", "yarn"}
"""Rotary embeddings that depend on a token's position alone; others look at the longest position of the batch."""

SHORT_ROW = 128
"""Tokens up to which torch's plain attention trains faster in bfloat16 than its flash attention for CPUs
(benchmarks/cpu_attention.py)."""


def adapt_actor(actor_module: Any) -> None:
    """Also takes the host's entropy as it is written: compiled (torch.compile) it would need a C++ compiler.

    Contract: test_cpu_forward_shim.test_forward_and_log_probs_keep_their_signatures
    """
    forward = actor_module.Actor.forward
    log_probs_from_logits = actor_module.log_probs_from_logits

    def forward_on_cpu(self: Any, sequences: Any, action_mask: Any = None, *args: Any, **kwargs: Any) -> Any:
        has_own_needs = self.packing_samples or _sees_images(self) or kwargs.get("return_entropy")
        if action_mask is None or has_own_needs or not _keeps_logits(self.model):
            return forward(self, sequences, action_mask, *args, **kwargs)
        merged = _merge(self.model, sequences, action_mask, *args, **kwargs)
        if merged is not None:
            log_probs, output = _forward_merged(self, merged, action_mask, log_probs_from_logits)
            return (log_probs, output) if kwargs.get("return_output") else log_probs
        first = int(action_mask.long().any(dim=0).long().argmax())
        return forward(self, sequences, action_mask, *args, logits_to_keep=sequences.shape[1] - first, **kwargs)

    def log_probs_of_tail(logits: Any, labels: Any, temperature: float = 1.0) -> Any:
        import torch

        missing = labels.shape[1] - logits.shape[1]
        tail = log_probs_from_logits(logits, labels[:, missing:], temperature)
        return torch.nn.functional.pad(tail, (missing, 0))

    actor_module.Actor.forward = forward_on_cpu
    actor_module.log_probs_from_logits = log_probs_of_tail
    actor_module.compute_entropy = inspect.unwrap(actor_module.compute_entropy)


def _sees_images(actor: Any) -> bool:
    return getattr(actor, "is_vlm", False)  # set by the host for such models only


def _unwrapped(model: Any) -> Any:
    return getattr(model, "module", model)  # DeepSpeed's engine, or the bare model


def _keeps_logits(model: Any) -> bool:
    return "logits_to_keep" in inspect.signature(_unwrapped(model).forward).parameters


def _shares_prompts(model: Any) -> bool:
    """Does this model attend to everything before a token, through the mask that it is given?

    Contract: test_cpu_forward_shim.test_other_attention_and_opt_out_keep_host_rows
    """
    if os.environ.get(SHARE_VARIABLE) == "0":
        return False
    config = _unwrapped(model).config
    layers = config.to_dict().get("layer_types") or ["full_attention"]
    return (
        config.model_type in _FULL_ATTENTION
        and config.rope_parameters["rope_type"] in _FIXED_ROPE
        and config._attn_implementation in ("sdpa", "eager")
        and set(layers) == {"full_attention"}
    )


def _merge(
    model: Any, sequences: Any, action_mask: Any, attention_mask: Any = None, *_: Any, **__: Any
) -> MergedBatch | None:
    from openrlhf_ada.platforms.shared_prompts import merge_prompts

    if attention_mask is None or not _shares_prompts(model):
        return None
    return merge_prompts(sequences, attention_mask, action_mask)


def _forward_merged(actor: Any, merged: MergedBatch, action_mask: Any, log_probs_from_logits: Any) -> tuple[Any, Any]:
    """Log-probabilities [B, A] as the host's, and the model's output, whose logits are those of the merged rows."""
    import torch

    dtype = next(actor.model.parameters()).dtype
    bias = torch.zeros(merged.visible.shape, dtype=dtype).masked_fill_(~merged.visible, torch.finfo(dtype).min)
    with _attention(merged.tokens.shape[1], dtype):
        output = actor.model(
            merged.tokens,
            attention_mask=bias,
            position_ids=merged.positions,
            logits_to_keep=merged.logits_to_keep,
        )
    output["logits"] = output["logits"].to(torch.float32)
    predicted = output["logits"][merged.group, merged.place] / actor.temperature
    log_probs = log_probs_from_logits(predicted[None], merged.labels[None])[0]
    result = log_probs.new_zeros(action_mask.shape).index_put((merged.row, merged.column), log_probs)
    return result * action_mask.float(), output


def _attention(num_tokens: int, dtype: Any) -> AbstractContextManager[object]:
    """The faster of torch's kernels, for rows of so many tokens."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if torch.is_grad_enabled() and dtype is torch.bfloat16 and num_tokens <= SHORT_ROW:
        return sdpa_kernel(SDPBackend.MATH)
    return nullcontext()
