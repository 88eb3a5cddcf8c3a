"""Exports the whole policy, adapters merged. `save_pretrained` makes the names of a checkpoint of the model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel

from openrlhf_ada.weights.average import visit
from openrlhf_ada.weights.sender import WeightSource

MERGED = "merged"
"""Folder of the whole model, next to exported adapters."""


def whole_weights(source: WeightSource, *, is_first: bool) -> dict[str, torch.Tensor]:
    """All weights, in main memory of the policy's first process. Call it in the others too; they get none."""
    tensors: dict[str, torch.Tensor] = {}
    visit(
        source,
        lambda spec, tensor: tensors.update({spec.name: tensor.detach().to("cpu", copy=True)} if is_first else {}),
    )
    return tensors


def export_whole(model: Any, tokenizer: Any, tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Write a checkpoint that transformers and vLLM load. `model` gives the configuration, `tensors` the weights."""
    plain: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    # What a checkpoint has in addition to weights, such as the load balance of experts.
    names = plain.state_dict().keys()
    buffers = {name: buffer.detach().cpu() for name, buffer in plain.named_buffers() if name in names}
    # save_pretrained empties the dictionary that it gets.
    plain.save_pretrained(path, state_dict=tensors | buffers)
    tokenizer.save_pretrained(path)
