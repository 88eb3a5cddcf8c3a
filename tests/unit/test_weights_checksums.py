"""Checksums: every change is seen, every device says the same, and a GPU has few kernels to launch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from openrlhf_ada.weights.checksums import ROWS_ON_CPU, ROWS_ON_GPU, _column_weights, checksums, digest

pytestmark = pytest.mark.rehearsal


def checksum(tensor: torch.Tensor) -> int:
    (number,) = checksums([tensor])
    return number


@given(st.integers(1, 5000), st.integers(0, 10**9), st.sampled_from([torch.float32, torch.bfloat16, torch.uint8]))
def test_every_change_of_a_tensor_changes_its_checksum(size: int, seed: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensor = (torch.rand(size, generator=generator) * 100).to(dtype)
    before = checksum(tensor)
    assert checksum(tensor.clone()) == before
    i, j = torch.randint(size, (2,), generator=generator).tolist()
    changed = tensor.clone()
    changed[i] += 1
    assert checksum(changed) != before
    exchanged = tensor.clone()
    exchanged[i], exchanged[j] = tensor[j].clone(), tensor[i].clone()
    assert (checksum(exchanged) == before) == bool(tensor[i] == tensor[j])


def test_the_place_of_every_part_of_a_large_tensor_counts() -> None:
    tensor = torch.arange(3 << 20, dtype=torch.int32).view(torch.float32)
    before = checksum(tensor)
    assert checksum(tensor.roll(1)) != before
    assert checksum(tensor.flip(0)) != before
    assert checksum(tensor.view(3, -1)[[1, 0, 2]]) != before
    assert checksum(tensor.view(-1, 1024).T) == checksum(tensor.view(-1, 1024).T.contiguous())


def test_exchanges_that_keep_sums_are_detected() -> None:
    one, other = torch.zeros(2, 1024), torch.zeros(2, 1024)
    one[0, 0] = one[1, 1] = other[0, 1] = other[1, 0] = 1.5
    assert checksum(one) != checksum(other)


def test_a_tensor_may_begin_between_two_words() -> None:
    """As half-precision parameters do in DeepSpeed's flat buffers."""
    flat = torch.rand(9).bfloat16()
    assert checksum(flat[1:]) == checksum(flat[1:].clone())


def test_bytes_count_whatever_their_type() -> None:
    assert checksum(torch.zeros(8)) == checksum(torch.zeros(16, dtype=torch.bfloat16))
    assert checksum(torch.zeros(8)) != checksum(-torch.zeros(8)), "minus zero is another number"


def test_a_bucket_has_a_checksum_for_each_tensor() -> None:
    tensors = [torch.rand(3, 5), torch.zeros(0), torch.rand(4000).bfloat16()]
    assert checksums(tensors) == [checksum(tensor) for tensor in tensors]
    assert checksums([]) == []


# -- the same everywhere ----------------------------------------------------------------------------------------------


def plain_checksum(data: bytes) -> int:
    """The formula in Python's whole numbers, for a length that is a multiple of four."""

    def fold(value: int) -> int:
        return value ^ (value >> 32)

    def weight(place: int) -> int:
        mixed = place * 0x9E3779B1 & 0xFFFFFFFF
        mixed = (mixed ^ (mixed >> 15)) * 0x9E3779B1 & 0xFFFFFFFF
        return (mixed ^ (mixed >> 13)) & 0x7FFFFFFF

    whole = [int.from_bytes(data[i : i + 4], "little", signed=True) for i in range(0, len(data), 4)]
    total = 0
    for number, start in enumerate(range(0, len(whole), 1024)):
        row = whole[start : start + 1024]
        mixed = sum(value * (weight(column) | 1) for column, value in enumerate(row)) + weight(1024 + number)
        mixed %= 1 << 64
        for _ in range(2):
            mixed = fold(mixed) * 0x5851F42D4C957F2D % (1 << 64)
        total += fold(mixed)
    return (total + (1 << 63)) % (1 << 64) - (1 << 63)


@pytest.mark.parametrize("size", [1, 1023, 1024, 1025, 5000])
def test_checksum_is_its_formula(size: int) -> None:
    tensor = torch.rand(size, generator=torch.Generator().manual_seed(size)) - 0.5
    assert checksum(tensor) == plain_checksum(tensor.numpy().tobytes())


@given(st.integers(1, 9000), st.integers(1, 9), st.sampled_from([torch.float32, torch.bfloat16, torch.uint8]))
def test_rows_at_a_time_do_not_change_it(size: int, rows: int, dtype: torch.dtype) -> None:
    """What a GPU computes with more rows at a time is what a CPU computes."""
    tensor = (torch.rand(size, generator=torch.Generator().manual_seed(size)) * 100).to(dtype)
    expected = digest(tensor, ROWS_ON_CPU)
    assert torch.equal(digest(tensor, rows), expected)
    assert torch.equal(digest(tensor, ROWS_ON_GPU), expected)


def test_columns_have_different_weights() -> None:
    """So an exchange of two numbers in a row is always seen."""
    weights = _column_weights(torch.device("cpu"))
    assert len(weights.unique()) == len(weights) == 1024
    assert bool((weights % 2 == 1).all())


# -- how much a GPU has to launch -------------------------------------------------------------------------------------


class CountOperations(TorchDispatchMode):
    """Counts operations that compute. Views of tensors launch nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not function.is_view
        return function(*args, **(kwargs or {}))


def shapes(layers: int, hidden: int, inner: int, key_value: int, vocabulary: int) -> Iterator[tuple[int, ...]]:
    """A model of Llama's or Qwen's form."""
    yield (vocabulary, hidden)
    for _ in range(layers):
        yield from [(hidden, hidden), (key_value, hidden), (key_value, hidden), (hidden, hidden)]
        yield from [(inner, hidden), (inner, hidden), (hidden, inner), (hidden,), (hidden,)]
    yield (hidden,)
    yield (vocabulary, hidden)


MODELS = {
    "7B": (7.6e9, Counter(shapes(28, 3584, 18944, 512, 152064)), 10_000),
    "70B": (70.6e9, Counter(shapes(80, 8192, 28672, 1024, 128256)), 45_000),
}


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_checksums_of_a_model_take_few_operations(model: str) -> None:
    """26 for each half MiB, as before, would be 0.8 million for 7B and 7 million for 70B."""
    parameters, tensors, most = MODELS[model]
    assert sum(prod(shape) * count for shape, count in tensors.items()) == pytest.approx(parameters, rel=0.01)
    operations = 0
    for shape, count in tensors.items():
        tensor = torch.empty(shape, dtype=torch.bfloat16, device="meta")
        # The weights of rows and columns are computed once.
        digest(tensor)
        with CountOperations() as counted:
            digest(tensor)
        operations += count * counted.count
    assert 0 < operations <= most
