"""--ada_zeros skip: the policy does not compute rollouts whose coefficient is 0.

Such a rollout adds nothing to a gradient but its place in the average, which OpenRLHF takes from masks of the whole
micro-batch, before a row is left out. So the gradient is the same, at the price of the other rollouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

SHORT = 2
"""Tokens of what is computed where nothing has to be: all processes take part in every pass."""

IDLE = 1e-6
"""How many rollouts and tokens a micro-batch counts for in a step's figures where nothing had to be computed: above 0,
since all processes' micro-batches may be such."""


def hide(samples: Sequence[Any], coefficients: Sequence[float]) -> None:
    """Mark these rollouts for `log_probs_of_rest`, where the coefficient is 0: nothing of theirs is attended to.

    Their lengths stay: OpenRLHF deals rollouts out to processes and updates by them, and these are to be the same.
    """
    for sample, coefficient in zip(samples, coefficients, strict=True):
        if coefficient == 0.0:
            sample.attention_mask = torch.zeros_like(sample.attention_mask)


def computed_actions(experience: Any) -> Tensor:
    """Which actions of a micro-batch are of rollouts that are not hidden, shape (B, A), bool."""
    return experience.action_mask.bool() & experience.attention_mask.any(dim=1, keepdim=True)


def show(experience: Any, lengths: Sequence[int]) -> None:
    """Undo `hide` in a micro-batch. `lengths`: tokens of each of its rows, from the left."""
    positions = torch.arange(experience.attention_mask.shape[1])
    shown = positions < torch.tensor(lengths).unsqueeze(1)
    experience.attention_mask = shown.to(experience.attention_mask.dtype)


def shorten(items: Sequence[Any]) -> None:
    """Let micro-batches by tokens (--train.dynamic_batch_enable) count SHORT tokens for rollouts that are not to be
    computed. `items`: one rollout each, when they are dealt out to processes."""
    for item in items:
        if not (item.advantages * item.action_mask).any():
            item.total_length = torch.full_like(item.total_length, SHORT)


def log_probs_of_rest(
    forward: Callable[..., Tensor], sequences: Tensor, action_mask: Tensor, attention_mask: Tensor, images: list[Any]
) -> Tensor:
    """What `forward` gives of the rows that are not hidden, and 0 for the others; shape (B, A).

    `forward`: of these tensors and images, whose columns of padding may be missing. `images`: none, or B.
    """
    values = torch.zeros(action_mask.shape)
    rows = attention_mask.any(dim=1).nonzero().flatten()
    if not len(rows):
        # An image has its place in the tokens.
        length = sequences.shape[1] if images else SHORT
        masks = torch.ones_like(action_mask[:1, : length - 1]), torch.ones_like(attention_mask[:1, :length])
        forward(sequences[:1, :length], *masks, images[:1])
        return values
    unused = attention_mask.shape[1] - _width(attention_mask[rows])
    shown = [tensor[rows, : tensor.shape[1] - unused] for tensor in (sequences, action_mask, attention_mask)]
    computed = forward(*shown, [images[row] for row in rows.tolist()] if images else images)
    values[rows, : computed.shape[1]] = computed.float()
    return values


def rest_of_training(experience: Any) -> Any:
    """The rows of a training micro-batch whose advantages are not all 0, without columns of padding.

    Where all are 0: one of them, cut down to its first action unless it has an image, which has a place in the tokens.
    A batch without any action stays as it is.
    """
    rows = (experience.advantages * experience.action_mask).any(dim=1).nonzero().flatten()
    if not len(rows):
        return _idle(experience)
    if len(rows) == len(experience.advantages):
        return experience
    rest = _of_rows(experience, rows)
    width = _width(rest.attention_mask)
    return _of_columns(rest, 0, width, rest.attention_mask.shape[1])


def as_idle(status: dict[str, Any]) -> dict[str, Any]:
    """OpenRLHF's status of a micro-batch of which nothing had to be computed: what stood in for it is in no figure."""
    metrics = {name: value if status["weights"][name] is None else 0.0 for name, value in status["metrics"].items()}
    return status | {"metrics": metrics, "num_samples": IDLE, "num_action_tokens": IDLE}


def _width(attention_mask: Tensor) -> int:
    """Columns up to the last that a row attends to."""
    return int(attention_mask.any(dim=0).nonzero().max()) + 1


def _idle(experience: Any) -> Any:
    """One row with an action, of those with an image if there are any."""
    acting = experience.action_mask.any(dim=1).nonzero().flatten()
    if not len(acting):
        return experience
    images = experience.mm_train_inputs or [None] * len(experience.sequences)
    seeing = [row for row in acting.tolist() if images[row]]
    one = _of_rows(experience, acting.new_tensor(seeing[:1]) if seeing else acting[:1])
    one = one if seeing else _first_action(one)
    # The policy has computed nothing of it, and no ratio may become infinite.
    one.action_log_probs = torch.zeros_like(one.action_log_probs)
    if one.rollout_log_probs is not None:
        one.rollout_log_probs = torch.zeros_like(one.rollout_log_probs)
    return one


def _first_action(experience: Any) -> Any:
    """One row, of two tokens: the first action and the one before it."""
    tokens, actions = experience.sequences.shape[1], experience.action_mask.shape[1]
    first = int(experience.action_mask.long().argmax(dim=1)) + tokens - actions - 1
    return _of_columns(experience, first, first + SHORT, tokens)


def _of_columns(experience: Any, start: int, stop: int, tokens: int) -> Any:
    """Tokens from `start` to `stop` of so many. What belongs to actions has no column for the first token."""
    short: dict[str, Any] = {}
    for field in fields(experience):
        value = getattr(experience, field.name)
        if experience.is_step_tensor_field(field.name) and isinstance(value, Tensor):
            before = tokens - value.shape[1]
            short[field.name] = value[:, start : stop - before]
    return replace(experience, **short)


def _of_rows(experience: Any, rows: Tensor) -> Any:
    """These rows of everything that has one."""
    size, chosen = len(experience.sequences), rows.tolist()

    def of(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: of(inner) for name, inner in value.items()}
        if isinstance(value, Tensor) and value.dim() and len(value) == size:
            return value[rows.to(value.device)]
        if isinstance(value, list) and len(value) == size:
            return [value[row] for row in chosen]
        return value

    return replace(experience, **{field.name: of(getattr(experience, field.name)) for field in fields(experience)})
