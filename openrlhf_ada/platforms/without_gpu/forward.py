"""The policy's forward pass on a CPU, where every token costs: logits for the answers only, each prompt once.

Both give OpenRLHF's log-probabilities and gradients up to rounding (tests/contract/test_cpu_forward_shim.py). OpenRLHF
computes logits over the vocabulary at every position and then cuts the prompt off, and it computes a prompt once per
answer. Prompts are shared where the model attends to everything before a token and nothing else distinguishes rows;
all other models, packed samples and `--actor.entropy_coef` take OpenRLHF's own way.
"""

from __future__ import annotations

import inspect
import os
from contextlib import nullcontext
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

SHARE_VARIABLE = "OPENRLHF_ADA_SHARE_PROMPTS"
"""Set to 0, every row is computed with its own prompt, as OpenRLHF does."""

_FULL_ATTENTION = {"llama", "qwen2", "qwen3"}
"""Model types whose layers see a token's whole past through the mask that they are given."""

_FIXED_ROPE = {"default", "linear", "llama3", "yarn"}
"""Rotary embeddings that depend on a token's position alone; others look at the longest position of the batch."""

SHORT_ROW = 128
"""Tokens up to which torch's plain attention trains faster in bfloat16 than its flash attention for CPUs
(benchmarks/cpu_attention.py)."""


def adapt_actor(actor_module: Any) -> None:
    """Also takes OpenRLHF's entropy as it is written: compiled (torch.compile) it would need a C++ compiler.

    Contract: test_cpu_forward_shim.test_forward_and_log_probs_keep_their_signatures
    """
    forward = actor_module.Actor.forward
    log_probs_from_logits = actor_module.log_probs_from_logits

    def forward_on_cpu(
        self: Any, sequences: Any, action_mask: Any = None, attention_mask: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        has_own_needs = self.packing_samples or getattr(self, "is_vlm", False) or kwargs.get("return_entropy")
        if action_mask is None or has_own_needs or not _keeps_logits(self.model):
            return forward(self, sequences, action_mask, attention_mask, *args, **kwargs)
        if attention_mask is not None and _shares_prompts(self.model):
            merged = merge_prompts(sequences, attention_mask, action_mask)
            if merged is not None:
                log_probs, output = _forward_merged(self, merged, action_mask, log_probs_from_logits)
                return (log_probs, output) if kwargs.get("return_output") else log_probs
        kept = sequences.shape[1] - int(action_mask.long().any(dim=0).long().argmax())
        return forward(self, sequences, action_mask, attention_mask, *args, logits_to_keep=kept, **kwargs)

    def log_probs_of_tail(logits: Any, labels: Any, temperature: float = 1.0) -> Any:
        import torch

        missing = labels.shape[1] - logits.shape[1]
        tail = log_probs_from_logits(logits, labels[:, missing:], temperature)
        return torch.nn.functional.pad(tail, (missing, 0))

    actor_module.Actor.forward = forward_on_cpu
    actor_module.log_probs_from_logits = log_probs_of_tail
    actor_module.compute_entropy = inspect.unwrap(actor_module.compute_entropy)


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


def _forward_merged(actor: Any, merged: MergedBatch, action_mask: Any, log_probs_from_logits: Any) -> tuple[Any, Any]:
    """Log-probabilities [B, A] as OpenRLHF's, and the model's output, whose logits are those of the merged rows."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    dtype = next(actor.model.parameters()).dtype
    bias = torch.zeros(merged.visible.shape, dtype=dtype).masked_fill_(~merged.visible, torch.finfo(dtype).min)
    is_short = merged.tokens.shape[1] <= SHORT_ROW and torch.is_grad_enabled() and dtype is torch.bfloat16
    with sdpa_kernel(SDPBackend.MATH) if is_short else nullcontext():
        output = actor.model(
            merged.tokens,
            attention_mask=bias,
            position_ids=merged.positions,
            logits_to_keep=merged.logits_to_keep,
        )
    output["logits"] = output["logits"].to(torch.float32)
    group, place, row, column = merged.where
    predicted = output["logits"][group, place] / actor.temperature
    log_probs = log_probs_from_logits(predicted[None], merged.labels[None])[0]
    return log_probs.new_zeros(action_mask.shape).index_put((row, column), log_probs) * action_mask.float(), output


# -- rows with the same prompt, merged --------------------------------------------------------------------------------
#
# The rows that GRPO trains on repeat each prompt. Merged, a group is one row `prompt | answer 1 | answer 2 ...` whose
# mask hides the answers from each other and whose positions continue from the prompt in every answer. The model
# computes the same values with fewer tokens: with 23 of prompt and 4 x 5 of answers, 39 instead of 112.


class MergedBatch(NamedTuple):
    """G merged rows of L tokens, prompts padded on the left to the same width, for B original rows.

    `tokens`, `positions`: [G, L]. `visible`: [G, 1, L, L], query and key; padding sees only itself. `labels`: [T], the
    answers' tokens, answer after answer. `where`: [4, T]; with (group, place, row, column) = where[:, i], token i is
    predicted at logits[group, place], where only the last `logits_to_keep` positions have logits, and belongs at
    [row, column] of the action mask.
    """

    tokens: Tensor
    positions: Tensor
    visible: Tensor
    logits_to_keep: int
    labels: Tensor
    where: Tensor


def merge_prompts(sequences: Tensor, attention_mask: Tensor, action_mask: Tensor) -> MergedBatch | None:
    """Layout for `sequences` and `attention_mask` [B, S], `action_mask` [B, A] that ends with the last token.

    A row's answer goes from its first action to its last attended token, so that the turns of an environment within it
    are part of it. Rows without an action are left out. None where merging would not pay (neither tokens nor pairs of
    them may become more), where an answer has no prompt to be predicted from, and where its attention has a gap.
    """
    (batch, before), shift = sequences.shape, sequences.shape[1] - action_mask.shape[1]
    # By prompt: index of the row, column of its first action, answer.
    groups: dict[tuple[int, ...], list[tuple[int, int, list[int]]]] = {}
    columns = zip(sequences.tolist(), attention_mask.bool().tolist(), action_mask.bool().tolist(), strict=True)
    for row, (tokens, attended, actions) in enumerate(columns):
        if not any(actions):
            continue
        start = actions.index(True) + shift
        end = start + sum(attended[start:])
        if not all(attended[start:end]) or any(actions[end - shift :]):
            return None
        prompt = tuple(compress(tokens[:start], attended[:start]))
        groups.setdefault(prompt, []).append((row, start - shift, tokens[start:end]))
    if not groups or () in groups:
        return None
    width = max(map(len, groups))
    # An answer's last token predicts nothing.
    length = width + max(sum(len(answer) - 1 for _, _, answer in rows) for rows in groups.values())
    if len(groups) * length >= batch * before or len(groups) * length**2 > batch * before**2:
        return None
    # By place: token, position, segment (0 is the prompt, 1, 2, ... are its answers, -1 is padding).
    cells: list[list[tuple[int, int, int]]] = []
    where: list[tuple[int, int, int, int]] = []
    for group, (prompt, rows) in enumerate(groups.items()):
        line = [(0, 0, -1)] * (width - len(prompt)) + [(token, i, 0) for i, token in enumerate(prompt)]
        for number, (row, column, answer) in enumerate(rows, start=1):
            # The prompt's last token predicts every answer's first; position width - 1 is the first with logits.
            places = [0, *range(len(line) - width + 1, len(line) - width + len(answer))]
            where += [(group, place, row, column + i) for i, place in enumerate(places)]
            line += [(token, len(prompt) + i, number) for i, token in enumerate(answer[:-1])]
        cells.append(line + [(0, 0, -1)] * (length - len(line)))
    laid, found = sequences.new_tensor(cells), sequences.new_tensor(where).T
    labels = sequences[found[2], found[3] + shift]
    return MergedBatch(laid[..., 0], laid[..., 1], _visibility(laid[..., 2]), length - width + 1, labels, found)


def _visibility(segments: Tensor) -> Tensor:
    """A token sees what is before it in its own segment and in the prompt; [G, L] -> [G, 1, L, L]."""
    query, key = segments[:, :, None], segments[:, None, :]
    places = segments.new_tensor(range(segments.shape[1]))
    earlier, same = places[:, None] >= places[None, :], places[:, None] == places[None, :]
    visible = earlier & (query >= 0) & ((key == 0) | (key == query))
    return (visible | same)[:, None]
