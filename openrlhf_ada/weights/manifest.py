"""What a weight update consists of: names, types and shapes of tensors, and their buckets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from math import prod
from typing import Any

import torch

BUCKET_BYTES = 32 << 20
"""No bucket is larger, whatever the model. Sender and receiver hold few of them at a time (`weights/memory.py`)."""

ALIGNMENT = 16
"""Bytes. A tensor is read in place, so its start in the bucket must be aligned for its type."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor under the name that it has in a checkpoint; `dtype` as torch calls it ("bfloat16")."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.numel * getattr(torch, self.dtype).itemsize

    @property
    def padded_bytes(self) -> int:
        return _padded(self.num_bytes)


@dataclass(frozen=True, slots=True)
class Bucket:
    """What is sent at a time: whole tensors one after the other, or a part of one tensor.

    `size`: bytes as sent. `start`: where the part begins in the tensor's bytes; None for whole tensors.
    """

    tensors: tuple[TensorSpec, ...]
    size: int
    start: int | None = None

    @property
    def part(self) -> slice:
        """The bytes of the tensor that are sent, if it is a part."""
        start = self.start or 0
        return slice(start, min(start + self.size, self.tensors[0].num_bytes))


@dataclass(frozen=True)
class Manifest:
    """All tensors of an update, in the order in which they are sent.

    `is_whole`: an engine has no weights beyond these. (A frozen image encoder is not sent.)
    """

    tensors: tuple[TensorSpec, ...]
    is_whole: bool = True
    bucket_bytes: int = BUCKET_BYTES

    def batches(self) -> Iterator[tuple[TensorSpec, ...]]:
        """Consecutive tensors that are gathered together: `bucket_bytes` at most, or one tensor that is larger.

        The tensors of a module stay together where they fit, because vLLM keeps them until it has all of them: it
        joins those of attention and those of an MLP.
        """
        batch: list[TensorSpec] = []
        size = 0
        for _, group in groupby(self.tensors, key=lambda tensor: tensor.name.rsplit(".", 2)[0]):
            module = list(group)
            fits = sum(tensor.padded_bytes for tensor in module) <= self.bucket_bytes
            for tensors in [module] if fits else [[tensor] for tensor in module]:
                more = sum(tensor.padded_bytes for tensor in tensors)
                if batch and size + more > self.bucket_bytes:
                    yield tuple(batch)
                    batch, size = [], 0
                batch += tensors
                size += more
        if batch:
            yield tuple(batch)

    def cut(self, batch: tuple[TensorSpec, ...]) -> list[Bucket]:
        """The buckets of a batch: one, or as many as a large tensor needs."""
        size = sum(tensor.padded_bytes for tensor in batch)
        if size <= self.bucket_bytes:
            return [Bucket(batch, size)]
        (tensor,) = batch
        step = max(self.bucket_bytes // ALIGNMENT, 1) * ALIGNMENT
        return [
            Bucket(batch, min(step, tensor.padded_bytes - start), start) for start in range(0, tensor.num_bytes, step)
        ]

    def buckets(self) -> Iterator[Bucket]:
        """All buckets, in the order in which they are sent; sender and receiver compute the same."""
        return chain.from_iterable(self.cut(batch) for batch in self.batches())

    def to_plain(self) -> dict[str, Any]:
        """As strings, numbers and lists, which need no pickle between processes."""
        return {
            "tensors": [[tensor.name, tensor.dtype, list(tensor.shape)] for tensor in self.tensors],
            "is_whole": self.is_whole,
            "bucket_bytes": self.bucket_bytes,
        }

    @staticmethod
    def from_plain(plain: dict[str, Any]) -> Manifest:
        """The reverse of `to_plain`."""
        tensors = tuple(TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in plain["tensors"])
        return Manifest(tensors, plain["is_whole"], plain["bucket_bytes"])


def pack(bucket: Bucket, tensors: Sequence[torch.Tensor], packed: torch.Tensor) -> None:
    """The bucket's tensors, or the part of its one tensor, into `packed`, shape (bucket.size,) of bytes.

    Raises ValueError if one is not what the manifest says: the receiver would misread all tensors after it.
    """
    for spec, tensor in zip(bucket.tensors, tensors, strict=True):
        if tensor.shape != spec.shape or tensor.dtype != getattr(torch, spec.dtype):
            raise ValueError(f"{spec.name} is {tensor.dtype} {tuple(tensor.shape)}, announced was {spec}")
    if bucket.start is None:
        for tensor, view in zip(tensors, unpack(bucket, packed), strict=True):
            view.copy_(tensor)
    else:
        data = as_bytes(tensors[0].contiguous())[bucket.part]
        packed[: len(data)].copy_(data)


def unpack(bucket: Bucket, packed: torch.Tensor) -> list[torch.Tensor]:
    """Views of `packed`, one per whole tensor."""
    views: list[torch.Tensor] = []
    start = 0
    for spec in bucket.tensors:
        view = packed[start : start + spec.num_bytes].view(getattr(torch, spec.dtype))
        views.append(view.view(spec.shape))
        start += spec.padded_bytes
    return views


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A view of a contiguous tensor, shape (number of bytes,)."""
    return tensor.view(-1).view(torch.uint8)


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
