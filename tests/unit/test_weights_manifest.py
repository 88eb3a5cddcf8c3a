"""Buckets and packing of a weight update."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_ada.weights.manifest import Manifest, TensorSpec, bucket_size, pack, unpack

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
