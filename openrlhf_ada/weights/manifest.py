"""What a weight update consists of: names, types and shapes of tensors, and their buckets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Any

import torch

BUCKET_BYTES = 64 << 20
"""Sender and receiver hold two buckets at a time: one in transfer, one that is packed or loaded."""

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
        return -(-self.num_bytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Manifest:
    """All tensors of an update, in the order in which they are sent.

    `is_whole`: an engine has no weights beyond these. (A frozen image encoder is not sent.)
    """

    tensors: tuple[TensorSpec, ...]
    is_whole: bool = True
    bucket_bytes: int = BUCKET_BYTES

    def buckets(self) -> Iterator[Sequence[TensorSpec]]:
        """Consecutive tensors of `bucket_bytes` at most; sender and receiver compute the same buckets.

        The tensors of a module stay together, because vLLM keeps them until it has all of them: it joins those of
        attention and those of an MLP. A bucket is larger only if a single module is.
        """
        bucket: list[TensorSpec] = []
        size = 0
        for _, group in groupby(self.tensors, key=lambda tensor: tensor.name.rsplit(".", 2)[0]):
            module = list(group)
            module_size = sum(tensor.padded_bytes for tensor in module)
            if bucket and size + module_size > self.bucket_bytes:
                yield bucket
                bucket, size = [], 0
            bucket += module
            size += module_size
        if bucket:
            yield bucket

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


def bucket_size(bucket: Sequence[TensorSpec]) -> int:
    """Bytes of a packed bucket."""
    return sum(tensor.padded_bytes for tensor in bucket)


def pack(bucket: Sequence[TensorSpec], tensors: Sequence[torch.Tensor], packed: torch.Tensor) -> None:
    """The tensors one after the other into `packed`, shape (bucket_size(bucket),) of bytes.

    Raises ValueError if one is not what the manifest says: the receiver would misread all tensors after it.
    """
    for spec, tensor, view in zip(bucket, tensors, unpack(bucket, packed), strict=True):
        if tensor.shape != spec.shape or tensor.dtype != view.dtype:
            raise ValueError(f"{spec.name} is {tensor.dtype} {tuple(tensor.shape)}, announced was {spec}")
        view.copy_(tensor)


def unpack(bucket: Sequence[TensorSpec], packed: torch.Tensor) -> list[torch.Tensor]:
    """Views of `packed`, one per tensor."""
    views: list[torch.Tensor] = []
    start = 0
    for spec in bucket:
        view = packed[start : start + spec.num_bytes].view(getattr(torch, spec.dtype))
        views.append(view.view(spec.shape))
        start += spec.padded_bytes
    return views
