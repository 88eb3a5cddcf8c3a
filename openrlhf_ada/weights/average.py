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

PIECE = 1 << 24
"""Numbers of each process that the first one gets at a time: 64 MiB."""


class WeightAverage:
    """A <- beta A + (1 - beta) W, which starts as the current weights W. A is in single precision, whatever W is in.

    In half precision it would not move: bfloat16 rounds away a change below 1/256 of a weight, and a step adds only
    1 - beta = 0.008 of what the weights have moved.

    Each process of the policy averages its part of every tensor, the `rank`-th of `count` equal ones, where the
    weights are: 4 bytes per parameter in all, and nothing is copied to main memory or to another process until the
    average is saved or exported. Call the methods in all processes.

    `in_main_memory`: keep it there, where the GPU has no room for it while the policy trains or engines sample. A step
    then copies this process's part of the weights, in their own type.
    """

    def __init__(
        self, source: WeightSource, beta: float, rank: int = 0, count: int = 1, *, in_main_memory: bool = False
    ) -> None:
        self._source = source
        self._beta = beta
        self._rank, self._count = rank, count
        self._in_main_memory = in_main_memory
        self._tensors: dict[str, torch.Tensor] = {}
        self._devices: dict[str, torch.device] = {}
        visit(source, self._start)

    def _size(self, numel: int) -> int:
        """Numbers in a part; the last parts of a tensor of `numel` numbers may have fewer, or none."""
        return -(-numel // self._count)

    def _part_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Shape (K,)."""
        size = self._size(tensor.numel())
        return tensor.detach().reshape(-1)[self._rank * size : (self._rank + 1) * size]

    def _start(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        self._devices[spec.name] = tensor.device
        place = "cpu" if self._in_main_memory else tensor.device
        self._tensors[spec.name] = self._part_of(tensor).to(place, torch.float32, copy=True)

    def update(self) -> None:
        """Call this after every step of the optimizer."""
        visit(self._source, self._follow)

    def _follow(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        average = self._tensors[spec.name]
        # First to where the average is, in the weights' smaller type.
        average.lerp_(self._part_of(tensor).to(average.device).float(), 1.0 - self._beta)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The average by the model's names, in the weights' types. Empty in all processes but the first."""
        return self._whole(lambda spec: getattr(torch, spec.dtype))

    def save(self, path: Path) -> None:
        """Save the average for `load`."""
        tensors = self._whole(lambda spec: torch.float32)
        if self._rank == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file(tensors, path)

    def load(self, path: Path) -> None:
        """Replace the average with a saved one, on any number of processes; raises RuntimeError.

        Each reads its part of the file, as DeepSpeed reads a checkpoint.
        """
        if not path.is_file():
            raise RuntimeError(
                f"{path} is missing: the checkpoint was made without --train.enable_ema. Leave out either "
                f"--train.enable_ema or --ckpt.load_enable"
            )
        # The file is mapped into memory: what is not copied is not read.
        found = load_file(path)
        expected = {spec.name: spec.shape for spec in self._source.manifest.tensors}
        if {name: tuple(tensor.shape) for name, tensor in found.items()} != expected:
            raise RuntimeError(f"{path} holds the average of another model")
        for name, part in self._tensors.items():
            part.copy_(self._part_of(found[name]))

    def _whole(self, dtype_of: Callable[[TensorSpec], torch.dtype]) -> dict[str, torch.Tensor]:
        """In main memory of the first process; empty in the others."""
        whole: dict[str, torch.Tensor] = {}
        for spec in self._source.manifest.tensors:
            flat = self._gather(spec, dtype_of(spec))
            if flat is not None:
                whole[spec.name] = flat.view(spec.shape)
        return whole

    def _gather(self, spec: TensorSpec, dtype: torch.dtype) -> torch.Tensor | None:
        """All parts of a tensor, piece by piece, shape (N,); None in all processes but the first."""
        part, size = self._tensors[spec.name], self._size(spec.numel)
        if self._count == 1:
            return part.to("cpu", dtype, copy=True)
        flat = torch.empty(size * self._count, dtype=dtype) if self._rank == 0 else None
        for start in range(0, size, PIECE):
            stop = min(start + PIECE, size)
            # As long as every process's, on the device over which they are sent.
            own = part[start:stop].to(self._devices[spec.name])
            own = torch.nn.functional.pad(own, (0, stop - start - len(own)))
            pieces = [torch.empty_like(own) for _ in range(self._count)] if flat is not None else None
            torch.distributed.gather(own, pieces)
            for rank, piece in enumerate(pieces or ()):
                assert flat is not None
                flat[rank * size + start : rank * size + stop] = piece.to("cpu", dtype)
        if flat is None or len(flat) == spec.numel:
            return flat
        # Without the padding, also in memory.
        return flat[: spec.numel].clone()


def visit(source: WeightSource, each: Callable[[TensorSpec, torch.Tensor], Any]) -> None:
    """Call `each` with every whole (unsharded) weight. To be called in all processes of the policy."""
    for batch in source.manifest.batches():
        with source.gathered(batch) as tensors:
            for spec, tensor in zip(batch, tensors, strict=True):
                each(spec, tensor)
