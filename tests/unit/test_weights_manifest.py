"""Buckets and packing of a weight update."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_ada.weights.manifest import ALIGNMENT, Bucket, Manifest, TensorSpec, as_bytes, pack, unpack

pytestmark = pytest.mark.rehearsal

MODULES = ("embed", "layers.0.attn", "layers.0.mlp", "layers.1.attn", "head")

specs = st.lists(
    st.builds(
        TensorSpec,
        st.tuples(st.sampled_from(MODULES), st.sampled_from("abc")).map(lambda t: f"model.{t[0]}.{t[1]}.weight"),
        st.sampled_from(["float32", "bfloat16", "uint8"]),
        st.lists(st.integers(1, 7), max_size=3).map(tuple),
        st.sampled_from(["", "", "model.experts"]),
    ),
    min_size=1,
    max_size=20,
    unique_by=lambda spec: spec.name,
)


def module_of(spec: TensorSpec) -> str:
    return spec.source or spec.name.rsplit(".", 2)[0]


def total(tensors: Iterable[TensorSpec]) -> int:
    return sum(spec.padded_bytes for spec in tensors)


@given(specs, st.integers(1, 600))
def test_no_bucket_is_larger_than_the_limit(tensors: list[TensorSpec], limit: int) -> None:
    """16 bytes are the smallest limit. A bucket holds whole tensors, or a part of one."""
    for bucket in Manifest(tuple(tensors), bucket_bytes=limit).buckets():
        assert 0 < bucket.size <= max(limit, ALIGNMENT)
        assert bucket.size % ALIGNMENT == 0
        if bucket.start is None:
            assert bucket.size == total(bucket.tensors)
        else:
            assert len(bucket.tensors) == 1 and total(bucket.tensors) > limit


@given(specs, st.integers(1, 600))
def test_batches_keep_order_and_modules_that_fit_together(tensors: list[TensorSpec], limit: int) -> None:
    """What is gathered at a time exceeds the limit only where a single parameter does."""
    batches = list(Manifest(tuple(tensors), bucket_bytes=limit).batches())
    assert [spec for batch in batches for spec in batch] == tensors
    assert all(total(batch) <= limit or len(batch) == 1 or batch[0].source for batch in batches)
    assert all(total(batch) <= limit or len(set(map(module_of, batch))) == 1 for batch in batches)
    runs = [list(group) for _, group in itertools.groupby(tensors, key=module_of)]
    for run in runs:
        if total(run) <= limit or run[0].source:
            assert any(set(run) <= set(batch) for batch in batches)


@given(specs, st.integers(1, 600))
def test_buckets_carry_every_byte_once(tensors: list[TensorSpec], limit: int) -> None:
    """Types side by side, sizes that fit no alignment, tensors of no dimension, parts that end anywhere."""
    torch.manual_seed(0)
    values = {spec.name: (torch.rand(spec.shape) * 100).to(getattr(torch, spec.dtype)) for spec in tensors}
    found = {spec.name: torch.zeros(spec.num_bytes, dtype=torch.uint8) for spec in tensors}
    for bucket in Manifest(tuple(tensors), bucket_bytes=limit).buckets():
        packed = torch.empty(bucket.size, dtype=torch.uint8)
        pack(bucket, [values[spec.name] for spec in bucket.tensors], packed)
        if bucket.start is None:
            for spec, tensor in zip(bucket.tensors, unpack(bucket, packed), strict=True):
                assert tensor.dtype == getattr(torch, spec.dtype) and tensor.shape == spec.shape
                found[spec.name] += as_bytes(tensor)
        else:
            part = bucket.part
            found[bucket.tensors[0].name][part] += packed[: part.stop - part.start]
    for name, value in values.items():
        assert torch.equal(found[name], as_bytes(value)), name


def test_a_large_tensor_is_cut_and_its_neighbours_are_not() -> None:
    """100 bytes at a time: 96 of them, since parts begin at multiples of 16."""
    small, large = TensorSpec("a.small.bias", "float32", (5,)), TensorSpec("a.large.weight", "float32", (50,))
    buckets = list(Manifest((small, large, small), bucket_bytes=100).buckets())
    assert buckets == [
        Bucket((small,), 32), Bucket((large,), 96, 0), Bucket((large,), 96, 96), Bucket((large,), 16, 192),
        Bucket((small,), 32),
    ]  # fmt: skip
    assert [bucket.part for bucket in buckets[1:4]] == [slice(0, 96), slice(96, 192), slice(192, 200)]


def test_a_part_is_read_from_a_tensor_that_is_not_contiguous() -> None:
    """A merged adapter's, transposed."""
    spec = TensorSpec("w", "float32", (3, 4))
    value = torch.arange(12.0).view(4, 3).T
    packed = [torch.empty(bucket.size, dtype=torch.uint8) for bucket in Manifest((spec,), bucket_bytes=16).buckets()]
    for bucket, into in zip(Manifest((spec,), bucket_bytes=16).buckets(), packed, strict=True):
        pack(bucket, [value], into)
    assert torch.equal(torch.cat(packed).view(torch.float32).view(3, 4), value)


@pytest.mark.parametrize("value", [torch.zeros(3, 2), torch.zeros(2, 3, dtype=torch.bfloat16)], ids=["shape", "type"])
def test_a_tensor_that_is_not_as_announced_is_refused(value: torch.Tensor) -> None:
    spec = TensorSpec("w", "float32", (2, 3))
    for start in (None, 16):
        with pytest.raises(ValueError, match=r"^w is torch\..*announced was"):
            pack(Bucket((spec,), 16, start), [value], torch.empty(32, dtype=torch.uint8))


def test_a_manifest_crosses_process_borders_as_plain_values() -> None:
    manifest = Manifest((TensorSpec("a.b", "bfloat16", (2, 3)), TensorSpec("c", "float32", (), "d")), False, 99)
    assert Manifest.from_plain(json.loads(json.dumps(manifest.to_plain()))) == manifest
