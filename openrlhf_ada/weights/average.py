"""An exponential moving average of the policy's weights (--train.enable_ema)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

# safetensors names `PathLike` without its parameter.
from safetensors.torch import load_file, save_file  # pyright: ignore[reportUnknownVariableType]

from openrlhf_ada.weights.manifest import TensorSpec
from openrlhf_ada.weights.sender import WeightSource


class AverageError(RuntimeError):
    """There is no saved average, or it is of another model."""


class WeightAverage:
    """A <- beta A + (1 - beta) W, which starts as the current weights W. A is in single precision, whatever W is in.

    In half precision it would not move: bfloat16 rounds away a change below 1/256 of a weight, and a step adds only
    1 - beta = 0.008 of what the weights have moved. Call its methods in all processes of the policy. The first process
    holds the average in main memory, 4 bytes per parameter.
    """

    def __init__(self, source: WeightSource, beta: float, *, is_first: bool) -> None:
        self._source = source
        self._beta = beta
        self._is_first = is_first
        self._tensors: dict[str, torch.Tensor] = {}
        self._visit(lambda spec, tensor: self._tensors.update({spec.name: _in_single_precision(tensor)}))

    def update(self) -> None:
        """Call this after every step of the optimizer."""
        self._visit(
            lambda spec, tensor: self._tensors[spec.name].lerp_(_in_single_precision(tensor), 1.0 - self._beta)
        )

    def tensors(self) -> dict[str, torch.Tensor]:
        """The average by names of a checkpoint, in the weights' types. Empty in all processes but the first."""
        types = {spec.name: getattr(torch, spec.dtype) for spec in self._source.manifest.tensors}
        return {name: tensor.to(types[name]) for name, tensor in self._tensors.items()}

    def save(self, path: Path) -> None:
        """Save the average for `load`."""
        if self._is_first:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file(self._tensors, path)

    def load(self, path: Path) -> None:
        """Replace the average with a saved one; raises AverageError."""
        if not self._is_first:
            return
        if not path.is_file():
            raise AverageError(
                f"{path} is missing: the checkpoint was made without --train.enable_ema. Leave out either "
                f"--train.enable_ema or --ckpt.load_enable"
            )
        found = load_file(path)
        if {name: t.shape for name, t in found.items()} != {name: t.shape for name, t in self._tensors.items()}:
            raise AverageError(f"{path} holds the average of another model")
        self._tensors = found

    def _visit(self, each: Callable[[TensorSpec, torch.Tensor], Any]) -> None:
        visit(self._source, each if self._is_first else lambda spec, tensor: None)


def visit(source: WeightSource, each: Callable[[TensorSpec, torch.Tensor], Any]) -> None:
    """Call `each` with every whole (unsharded) weight. To be called in all processes of the policy."""
    for batch in source.manifest.batches():
        with source.gathered(batch) as tensors:
            for spec, tensor in zip(batch, tensors, strict=True):
                each(spec, tensor)


def _in_single_precision(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", torch.float32, copy=True)
