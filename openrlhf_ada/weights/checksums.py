"""Checksums of tensors: the same on every device, in few operations on a GPU.

The bytes are read as a table of integers with rows of 1,024. Each row is summed, weighted by column. The sums are
mixed with their row numbers and added. Sums of integers do not depend on the order, even if they overflow, so it makes
no difference how many rows are computed at a time.

What it detects: every change of one integer, and every exchange of two in a row, as weights are odd and differ. Any
other accidental change goes unnoticed with a probability of about 2**-62. It is no protection against somebody who
wants two tensors to have the same checksum.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

_ROW = 1024

_MIX = 0x9E3779B1
"""Odd, so that multiplying by it loses nothing."""

_MIX_64 = 0x5851F42D4C957F2D
"""Odd as well."""

ROWS_ON_CPU = 128
"""Rows at a time. Widened to 64 bits, they still fit into a cache."""

ROWS_ON_GPU = 16384
"""The same. Each operation is a kernel to launch; widened to 64 bits, so many rows take 128 MiB for a moment."""


def checksums(tensors: Sequence[torch.Tensor]) -> list[int]:
    """A checksum of 64 bits for each tensor's bytes and their positions. Waits for the device once."""
    if not tensors:
        return []
    numbers: Any = torch.stack([digest(tensor) for tensor in tensors])
    return numbers.tolist()


def digest(tensor: torch.Tensor, rows_at_a_time: int | None = None) -> torch.Tensor:
    """The checksum of one tensor on its device, int64, shape ()."""
    at_a_time = rows_at_a_time or (ROWS_ON_CPU if tensor.device.type == "cpu" else ROWS_ON_GPU)
    data = tensor.detach().contiguous().view(-1)
    if data.data_ptr() % 4:
        # A half-precision parameter may begin in the middle of a word of its buffer.
        data = data.clone()
    data = data.view(torch.int32 if data.nbytes % 4 == 0 else torch.uint8)
    whole = data.numel() // _ROW * _ROW
    parts = list(torch.split(data[:whole].view(-1, _ROW), at_a_time)) if whole else []
    if whole < data.numel():
        parts.append(torch.nn.functional.pad(data[whole:], (0, -data.numel() % _ROW)).view(1, _ROW))
    total = torch.zeros((), dtype=torch.int64, device=data.device)
    numbers = _row_weights(1 << max(sum(map(len, parts)) - 1, 0).bit_length(), data.device)
    columns = _column_weights(data.device)
    start = 0
    for rows in parts:
        sums = torch.mul(rows, columns).sum(1)
        total += _mix(sums.add_(numbers[start : start + len(rows)])).sum()
        start += len(rows)
    return total


def _mix(sums: torch.Tensor) -> torch.Tensor:
    """One to one, but not linear, in place. With a linear map, equal and opposite changes of two rows would cancel."""
    for _ in range(2):
        _fold(sums).mul_(_MIX_64)
    return _fold(sums)


def _fold(sums: torch.Tensor) -> torch.Tensor:
    # The mask removes the copies of the sign bit that the shift fills in.
    return sums.bitwise_xor_((sums >> 32).bitwise_and_(0xFFFFFFFF))


@lru_cache(maxsize=4)
def _column_weights(device: torch.device) -> torch.Tensor:
    """Shape (1024,), odd."""
    return _position_weights(torch.arange(_ROW, device=device)) | 1


@lru_cache(maxsize=32)
def _row_weights(count: int, device: torch.device) -> torch.Tensor:
    """Of the first `count` rows, shape (count,). Other numbers than the columns have."""
    return _position_weights(torch.arange(_ROW, _ROW + count, device=device))


def _position_weights(places: torch.Tensor) -> torch.Tensor:
    """A pseudo-random number of 31 bits for each position."""
    mixed = places * _MIX & 0xFFFFFFFF
    mixed = (mixed ^ (mixed >> 15)) * _MIX & 0xFFFFFFFF
    return (mixed ^ (mixed >> 13)) & 0x7FFFFFFF
