"""The policy's forward pass on a CPU, where every token costs: logits for the answers only, each prompt once.

Both give the host's log-probabilities and gradients up to rounding (tests/contract/test_cpu_forward_shim.py). The host
computes logits over the vocabulary at every position and then cuts the prompt off, and it computes a prompt once per
answer. Prompts are shared where the model attends to everything before a token and nothing else distinguishes rows;
all other models, packed samples and `--actor.entropy_coef` take the host's own way.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

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
        has_own_needs = self.packing_samples or getattr(self, "is_vlm", False) or kwargs.get("return_entropy")
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


# -- rows with the same prompt, merged --------------------------------------------------------------------------------
#
# The rows that GRPO trains on repeat each prompt. Merged, a group is one row `prompt | answer 1 | answer 2 ...` whose
# mask hides the answers from each other and whose positions continue from the prompt in every answer. The model
# computes the same values with fewer tokens: with 23 of prompt and 4 x 5 of answers, 39 instead of 112.


@dataclass(frozen=True, slots=True)
class MergedBatch:
    """G merged rows of L tokens, prompts padded on the left to the same width, for B original rows.

    The T predicted tokens are the answers' tokens, answer after answer. Token i is predicted at
    `logits[group[i], place[i]]`, where only the last `logits_to_keep` positions have logits, and belongs at
    `[row[i], column[i]]` of a tensor with the shape of the action mask.
    """

    tokens: Tensor
    """[G, L] int64."""
    positions: Tensor
    """[G, L] int64."""
    visible: Tensor
    """[G, 1, L, L] bool: query, key. Padding sees only itself."""
    logits_to_keep: int
    labels: Tensor
    """[T] int64."""
    group: Tensor
    place: Tensor
    row: Tensor
    column: Tensor


_Row = tuple[int, tuple[int, ...], tuple[int, ...], int]
"""Its index, prompt and answer, and the column of the answer's first token in the action mask."""


def merge_prompts(sequences: Tensor, attention_mask: Tensor, action_mask: Tensor) -> MergedBatch | None:
    """Layout for `sequences` and `attention_mask` [B, S], `action_mask` [B, A] that ends with the last token.

    A row's answer goes from its first action to its last attended token, so that the turns of an environment within it
    are part of it. Rows without an action are left out. None where merging would not pay (neither tokens nor pairs of
    them may become more), where an answer has no prompt to be predicted from, and where its attention has a gap.
    """
    rows = _split(sequences, attention_mask, action_mask)
    groups: dict[tuple[int, ...], list[_Row]] = {}
    for row in rows or ():
        groups.setdefault(row[1], []).append(row)
    if not groups or () in groups:
        return None
    width = max(map(len, groups))
    # An answer's last token predicts nothing.
    length = width + max(sum(len(answer) - 1 for _, _, answer, _ in group) for group in groups.values())
    batch, before = sequences.shape
    if len(groups) * length >= batch * before or len(groups) * length**2 > batch * before**2:
        return None
    return _lay_out(list(groups.values()), width, length, sequences)


def _split(sequences: Tensor, attention_mask: Tensor, action_mask: Tensor) -> list[_Row] | None:
    """None for a row whose answer is not attended from its first action to its end without a gap."""
    shift = sequences.shape[1] - action_mask.shape[1]
    rows: list[_Row] = []
    columns = zip(sequences.tolist(), attention_mask.tolist(), action_mask.tolist(), strict=True)
    for index, (tokens, attended, actions) in enumerate(columns):
        if not any(actions):
            continue
        column = next(i for i, action in enumerate(actions) if action)
        start = column + shift
        end = start + sum(attended[start:])
        if not all(attended[start:end]) or any(actions[end - shift :]):
            return None
        prompt = tuple(token for token, seen in zip(tokens[:start], attended[:start], strict=True) if seen)
        rows.append((index, prompt, tuple(tokens[start:end]), column))
    return rows


def _lay_out(groups: Sequence[Sequence[_Row]], width: int, length: int, like: Tensor) -> MergedBatch:
    tokens, positions = like.new_zeros(len(groups), length), like.new_zeros(len(groups), length)
    # 0 is a prompt, 1, 2, ... are its answers, -1 is padding.
    segments = like.new_full((len(groups), length), -1)
    labels: list[int] = []
    places: list[tuple[int, int, int, int]] = []

    def put(g: int, at: int, values: Sequence[int], position: int, segment: int) -> None:
        part = slice(at, at + len(values))
        tokens[g, part] = like.new_tensor(values)
        positions[g, part] = like.new_tensor(range(position, position + len(values)))
        segments[g, part] = segment

    for g, group in enumerate(groups):
        prompt, at = group[0][1], width
        put(g, width - len(prompt), prompt, 0, 0)
        for number, (row, _, answer, column) in enumerate(group, start=1):
            put(g, at, answer[:-1], len(prompt), number)
            # The prompt's last token predicts every answer's first; position width - 1 is the first with logits.
            sources = [0, *range(at - width + 1, at - width + len(answer))]
            labels.extend(answer)
            places.extend((g, source, row, column + i) for i, source in enumerate(sources))
            at += len(answer) - 1
    group_index, place, row_index, column_index = like.new_tensor(places).T
    return MergedBatch(
        tokens=tokens,
        positions=positions,
        visible=_visibility(segments),
        logits_to_keep=length - width + 1,
        labels=like.new_tensor(labels),
        group=group_index,
        place=place,
        row=row_index,
        column=column_index,
    )


def _visibility(segments: Tensor) -> Tensor:
    """A token sees what is before it in its own segment and in the prompt; [G, L] -> [G, 1, L, L]."""
    query, key = segments[:, :, None], segments[:, None, :]
    places = segments.new_tensor(range(segments.shape[1]))
    earlier, same = places[:, None] >= places[None, :], places[:, None] == places[None, :]
    visible = earlier & (query >= 0) & ((key == 0) | (key == query))
    return (visible | same)[:, None]
