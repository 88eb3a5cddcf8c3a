"""A model's tensors as `save_pretrained` writes them. transformers joins a layer's experts when it loads them.

Contract: test_saved_model.test_conversions_that_were_not_needed_are_not_reverted
Contract: test_saved_model.test_experts_are_sent_as_save_pretrained_writes_them
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.core_model_loading import revert_weight_conversion


def as_in_checkpoint(model: Any, tensors: dict[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """What a checkpoint has, by name, of each of these tensors, which are on the meta device. Raises ValueError where
    a tensor of the checkpoint is made of several."""
    conversions = getattr(model, "_weight_conversions", None)
    if conversions is not None:
        # With ZeRO-3, transformers keeps conversions too that the checkpoint did not need, and would revert them.
        model._weight_conversions = [conversion for conversion in conversions if conversion.was_used()]
    whole = converted(model, tensors)
    renamed = {id(tensor): name for name, tensor in whole.items()}
    found = {
        name: {renamed[id(tensor)]: tensor} if id(tensor) in renamed else converted(model, {name: tensor})
        for name, tensor in tensors.items()
    }
    alone = {name: tensor.shape for parts in found.values() for name, tensor in parts.items()}
    if alone != {name: tensor.shape for name, tensor in whole.items()}:
        wrong = sorted(alone.keys() ^ whole.keys()) or sorted(alone)
        raise ValueError(
            f"{type(model).__name__} cannot be sent to engines: its checkpoint has tensors that are made of several "
            f"of the model's, the first: {wrong[0]}"
        )
    return found


def converted(model: Any, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What a checkpoint has of these tensors of the model."""
    return revert_weight_conversion(model, tensors)
