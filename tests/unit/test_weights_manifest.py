"""Buckets, packing and checksums of a weight update."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_ada.weights.manifest import Manifest, TensorSpec, bucket_size, checksum, pack, unpack

pytestmark = pytest.mark.rehearsal

MODULES = ("embed", "layers.0.attn", "layers.0.mlp", "layers.1.attn", "head")

specs = st.lists(
    st.builds(
        TensorSpec,
        st.tuples(st.sampled_from(MODULES), st.sampled_from("abc")).map(lambda t: f"model.{t[0]}.{t[1]}.weight"),
        st.sampled_from(["float32", "bfloat16", "uint8"]),
        st.lists(st.integers(1, 7), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=20,
    unique_by=lambda spec: spec.name,
)


@given(specs, st.integers(16, 2000))
def test_buckets_keep_order_and_modules_together(tensors: list[TensorSpec], limit: int) -> None:
    manifest = Manifest(tuple(tensors), bucket_bytes=limit)
    buckets = list(manifest.buckets())
    assert [spec for bucket in buckets for spec in bucket] == tensors
    for bucket in buckets:
        modules = {spec.name.rsplit(".", 2)[0] for spec in bucket}
        assert bucket_size(bucket) <= limit or len(modules) == 1
    for left, right in itertools.pairwise(buckets):
        assert left[-1].name.rsplit(".", 2)[0] != right[0].name.rsplit(".", 2)[0]


@given(specs)
def test_unpacked_tensors_equal_packed_ones(tensors: list[TensorSpec]) -> None:
    """Types side by side, sizes that fit no alignment."""
    torch.manual_seed(0)
    values = [(torch.rand(spec.shape) * 100).to(getattr(torch, spec.dtype)) for spec in tensors]
    packed = torch.empty(bucket_size(tensors), dtype=torch.uint8)
    pack(tensors, values, packed)
    read = unpack(tensors, packed)
    assert all(torch.equal(one, other) and one.dtype == other.dtype for one, other in zip(read, values, strict=True))


@pytest.mark.parametrize("value", [torch.zeros(3, 2), torch.zeros(2, 3, dtype=torch.bfloat16)], ids=["shape", "type"])
def test_a_tensor_that_is_not_as_announced_is_refused(value: torch.Tensor) -> None:
    spec = TensorSpec("w", "float32", (2, 3))
    with pytest.raises(ValueError, match=r"^w is torch\..*announced was"):
        pack([spec], [value], torch.empty(bucket_size([spec]), dtype=torch.uint8))


def test_a_manifest_crosses_process_borders_as_plain_values() -> None:
    manifest = Manifest((TensorSpec("a.b", "bfloat16", (2, 3)), TensorSpec("c", "float32", ())), False, 99)
    assert Manifest.from_plain(json.loads(json.dumps(manifest.to_plain()))) == manifest


# -- checksums --------------------------------------------------------------------------------------------------------


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
