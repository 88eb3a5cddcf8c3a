"""What a weight update consists of: names, types and shapes of tensors, their buckets, their checksums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Any

import torch

BUCKET_BYTES = 64 << 20
"""Sender and receiver hold two buckets at a time: one in transfer, one that is packed or unpacked."""

ALIGNMENT = 16
"""Bytes. A tensor is read in place, so its start in the bucket must be aligned for its type."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor under the name that it has in a checkpoint; `dtype` as torch calls it ("bfloat16")."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * getattr(torch, self.dtype).itemsize

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

    def groups(self) -> Iterator[Sequence[TensorSpec]]:
        """Consecutive tensors that are gathered, and loaded, together; sender and receiver compute the same groups.

        A group is as many tensors as fit into one bucket, or a single tensor that is larger. The tensors of a module
        stay together where they fit, because vLLM keeps them until it has all of them: it joins those of attention
        and those of an MLP.
        """
        group: list[TensorSpec] = []
        size = 0
        for _, found in groupby(self.tensors, key=lambda tensor: tensor.name.rsplit(".", 2)[0]):
            module = list(found)
            fits = sum(tensor.padded_bytes for tensor in module) <= self.bucket_bytes
            for part in [module] if fits else [[tensor] for tensor in module]:
                part_size = sum(tensor.padded_bytes for tensor in part)
                if group and size + part_size > self.bucket_bytes:
                    yield group
                    group, size = [], 0
                group += part
                size += part_size
        if group:
            yield group

    def bucket_sizes(self) -> list[int]:
        """Bytes of each bucket: none has more than `bucket_bytes`. A larger tensor is cut into several."""
        return [size for group in self.groups() for size in cuts(group_bytes(group), self.bucket_bytes)]

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


def cuts(size: int, most: int) -> list[int]:
    """`size` bytes in parts of `most`; the last may be smaller."""
    return [min(most, size - start) for start in range(0, size, most)]


def group_bytes(group: Sequence[TensorSpec]) -> int:
    """Bytes of a packed group."""
    return sum(tensor.padded_bytes for tensor in group)


def packed_buckets(
    group: Sequence[TensorSpec], tensors: Sequence[torch.Tensor], most: int, device: torch.device
) -> Iterator[torch.Tensor]:
    """A group's tensors one after the other as bytes on `device`, in buckets of at most `most` bytes.

    Raises ValueError if one is not what the manifest says: the receiver would misread all tensors after it.
    """
    for spec, tensor in zip(group, tensors, strict=True):
        if tensor.shape != spec.shape or tensor.dtype != getattr(torch, spec.dtype):
            raise ValueError(f"{spec.name} is {tensor.dtype} {tuple(tensor.shape)}, announced was {spec}")
    size = group_bytes(group)
    if size <= most:
        packed = torch.empty(size, dtype=torch.uint8, device=device)
        for tensor, view in zip(tensors, unpack(group, packed), strict=True):
            view.copy_(tensor)
        yield packed
        return
    (whole,) = tensors
    data, start = whole.contiguous().view(-1).view(torch.uint8), 0
    for length in cuts(size, most):
        packed = torch.empty(length, dtype=torch.uint8, device=device)
        piece = data[start : start + length]
        # The padding of the last one stays as it is.
        packed[: len(piece)].copy_(piece)
        yield packed
        # Freed before the next is made: one more may be in transfer.
        del packed
        start += length


def assembled(group: Sequence[TensorSpec], arrivals: Iterator[torch.Tensor], most: int) -> list[torch.Tensor]:
    """The reverse of `packed_buckets`: takes as many `arrivals` as the group has buckets."""
    size = group_bytes(group)
    packed = next(arrivals)
    if size <= most:
        return unpack(group, packed)
    whole, start = torch.empty(size, dtype=torch.uint8, device=packed.device), 0
    while True:
        whole[start : start + len(packed)].copy_(packed)
        start += len(packed)
        # Freed before the next arrives.
        del packed
        if start == size:
            return unpack(group, whole)
        packed = next(arrivals)


def unpack(group: Sequence[TensorSpec], packed: torch.Tensor) -> list[torch.Tensor]:
    """Views of `packed`, one per tensor."""
    views: list[torch.Tensor] = []
    start = 0
    for spec in group:
        view = packed[start : start + spec.num_bytes].view(getattr(torch, spec.dtype))
        views.append(view.view(spec.shape))
        start += spec.padded_bytes
    return views


_ROW = 1024
_ROWS = {"cpu": 128, "cuda": 8192}
"""Rows at a time. Widened to 64 bits, they still fit into a CPU's cache; a GPU does better with few large kernels."""

_MIX = 0x9E3779B1
"""Odd, so that multiplying by it loses nothing."""

_MIX_64 = 0x5851F42D4C957F2D
"""Odd as well."""


def checksums(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Checksums of 64 bits of tensors' bytes and their positions; the same on every device."""
    if not tensors:
        return []
    # Read together: a device is waited for once.
    return torch.stack([checksum_on_device(tensor) for tensor in tensors]).tolist()


def checksum_on_device(tensor: torch.Tensor, rows_at_a_time: int | None = None) -> torch.Tensor:
    """A tensor's checksum, of no dimension. `rows_at_a_time` decides how fast it is computed, not what it is.

    The bytes are read as a table of integers. Each row is summed, weighted by column. The sums are mixed with their
    row numbers and added. Sums of integers do not depend on the order, even if they overflow.
    """
    data = tensor.detach().contiguous().view(-1)
    if data.data_ptr() % 4:
        # A half-precision parameter may begin in the middle of a word of its buffer.
        data = data.clone()
    data = data.view(torch.int32 if data.nbytes % 4 == 0 else torch.uint8)
    columns = _position_weights(torch.arange(_ROW, device=data.device)) | 1
    whole = data.numel() // _ROW * _ROW
    tables = [data[:whole].view(-1, _ROW)] if whole else []
    if whole < data.numel() or not whole:
        tables.append(torch.nn.functional.pad(data[whole:], (0, -data.numel() % _ROW)).view(-1, _ROW))
    most = rows_at_a_time or _ROWS[data.device.type]
    sums = torch.cat([(rows * columns).sum(1) for table in tables for rows in torch.split(table, most)])
    numbers = torch.arange(_ROW, _ROW + len(sums), device=data.device)
    return _mix(sums + _position_weights(numbers)).sum()


def _mix(sums: torch.Tensor) -> torch.Tensor:
    """One to one, but not linear. With a linear map, equal and opposite changes of two rows would cancel."""
    for _ in range(2):
        # The mask removes the copies of the sign bit that the shift fills in.
        sums = (sums ^ (sums >> 32 & 0xFFFFFFFF)) * _MIX_64
    return sums ^ (sums >> 32 & 0xFFFFFFFF)


def _position_weights(places: torch.Tensor) -> torch.Tensor:
    """A pseudo-random number of 31 bits for each position."""
    mixed = places * _MIX & 0xFFFFFFFF
    mixed = (mixed ^ (mixed >> 15)) * _MIX & 0xFFFFFFFF
    return (mixed ^ (mixed >> 13)) & 0x7FFFFFFF
