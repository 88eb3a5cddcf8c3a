"""Seconds of an update over nodes, on paper."""

from __future__ import annotations

import pytest

from benchmarks.weight_nodes import MEMORY, NIC, TENSOR_S, Layout, update_s
from openrlhf_ada.weights.manifest import Manifest, TensorSpec

MANIFEST = Manifest(tuple(TensorSpec(f"layers.{n}.mlp.weight", "bfloat16", (1 << 24,)) for n in range(10)))
"""Ten buckets of 32 MiB."""


def test_the_slowest_stage_sets_the_time() -> None:
    """Of ten buckets; the others' stages are seen once, at the beginning and at the end."""
    size = 32 << 20
    found = update_s(MANIFEST, "apart, NCCL", Layout(nodes=4, tensor_parallel=8))
    assert found == pytest.approx(size / (8 * NIC) + 10 * size / NIC + TENSOR_S + 4 * size / MEMORY)


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_pulls_pay_by_the_size_of_an_engine(nodes: int) -> None:
    ways = [update_s(MANIFEST, "sharded pulls", Layout(nodes, workers)) for workers in (1, 2, 4)]
    assert ways == sorted(ways, reverse=True)
    assert ways[0] <= update_s(MANIFEST, "apart, NCCL", Layout(nodes, 1))
