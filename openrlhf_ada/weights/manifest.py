"""What a weight update consists of: names, types and shapes of tensors, and their buckets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from math import prod
from typing import Any

import torch

BUCKET_BYTES = 32 << 20
"""No bucket is larger. Sender and receiver hold few of them at a time (benchmarks/weight_memory.py)."""

ALIGNMENT = 16
"""Bytes. A tensor is read in place, so its start in the bucket must be aligned for its type."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor under the name that it has in a checkpoint; `dtype` as torch calls it ("bfloat16").

    `source`: the policy's parameter, where that makes several tensors of a checkpoint. They are gathered together.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: str = ""

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.numel * getattr(torch, self.dtype).itemsize

    @property
    def padded_bytes(self) -> int:
        return -(-self.num_bytes // ALIGNMENT) * ALIGNMENT


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
        """Consecutive tensors that are gathered together: `bucket_bytes` at most, or one parameter that is larger.

        The tensors of a module stay together where they fit, because vLLM keeps them until it has all of them: it
        joins those of attention and those of an MLP.
        """
        return self._filled(self._modules())

    def _modules(self) -> Iterator[list[TensorSpec]]:
        """What stays together."""
        for _, group in groupby(self.tensors, key=lambda tensor: tensor.source or tensor.name.rsplit(".", 2)[0]):
            module = list(group)
            if module[0].source or _size(module) <= self.bucket_bytes:
                yield module
            else:
                yield from ([tensor] for tensor in module)

    def _filled(self, groups: Iterable[list[TensorSpec]]) -> Iterator[tuple[TensorSpec, ...]]:
        """As many groups at a time as `bucket_bytes` hold, or one that is larger."""
        filled: list[TensorSpec] = []
        for group in groups:
            if filled and _size(filled) + _size(group) > self.bucket_bytes:
                yield tuple(filled)
                filled = []
            filled += group
        if filled:
            yield tuple(filled)

    def cut(self, batch: tuple[TensorSpec, ...]) -> Iterator[Bucket]:
        """The buckets of a batch: one, or as many as its tensors need."""
        step = max(self.bucket_bytes // ALIGNMENT, 1) * ALIGNMENT
        for tensors in self._filled([tensor] for tensor in batch):
            size = _size(tensors)
            if size <= self.bucket_bytes:
                yield Bucket(tensors, size)
            else:
                starts = range(0, tensors[0].num_bytes, step)
                yield from (Bucket(tensors, min(step, size - start), start) for start in starts)

    def buckets(self) -> Iterator[Bucket]:
        """All buckets, in the order in which they are sent; sender and receiver compute the same."""
        return chain.from_iterable(self.cut(batch) for batch in self.batches())

    def to_plain(self) -> dict[str, Any]:
        """As strings, numbers and lists, which need no pickle between processes."""
        return {
            "tensors": [[tensor.name, tensor.dtype, list(tensor.shape), tensor.source] for tensor in self.tensors],
            "is_whole": self.is_whole,
            "bucket_bytes": self.bucket_bytes,
        }

    @staticmethod
    def from_plain(plain: dict[str, Any]) -> Manifest:
        """The reverse of `to_plain`."""
        tensors = tuple(TensorSpec(name, dtype, tuple(shape), *rest) for name, dtype, shape, *rest in plain["tensors"])
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


def _size(tensors: Iterable[TensorSpec]) -> int:
    return sum(tensor.padded_bytes for tensor in tensors)
