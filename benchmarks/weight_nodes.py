"""Seconds of an update over nodes, on paper: buckets pass gather, transfer and load in virtual time.

Nobody has run it on so many GPUs. Bandwidths are four fifths of what data sheets of H100 nodes say: a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from openrlhf_ada.weights.manifest import Bucket, Manifest

GPUS = 8
"""Of a node. Half of all GPUs train, half sample, and nodes do one of both if there are several."""

NVLINK, NIC, MEMORY = 360e9, 40e9, 2.7e12
"""Bytes per second of one GPU: to others in its node, to other nodes, and within."""

MESSAGE_S = 0.3e-3
"""Two messages over the key-value store, as measured on a CPU."""

TENSOR_S = 0.1e-3
"""vLLM's loader, in Python, for one tensor."""

CHANGED = 0.01
"""Share of numbers that an update changes, where only these are sent: 4 bytes of place with 2 of value."""

WAYS = ("apart, NCCL", "shared, IPC", "sharded pulls", "sparse, 1 % changed")


@dataclass(frozen=True)
class Layout:
    """`tensor_parallel`: GPUs of an engine."""

    nodes: int
    tensor_parallel: int

    def gather_s(self, size: float, nodes: int) -> float:
        """Shards of so many nodes to each of their GPUs (ZeRO-3)."""
        return size / NVLINK if nodes == 1 else size / (GPUS * NIC)

    def transfer_s(self, size: float) -> float:
        return size / (NVLINK if self.nodes == 1 else NIC)


def update_s(manifest: Manifest, way: str, layout: Layout) -> float:
    """Until the last bucket is loaded."""
    ends = [0.0, 0.0, 0.0]
    for bucket in manifest.buckets():
        for stage, seconds in enumerate(_stages(bucket, way, layout)):
            ends[stage] = max(ends[stage], ends[stage - 1] if stage else 0.0) + seconds
    return ends[-1]


def _stages(bucket: Bucket, way: str, layout: Layout) -> Iterator[float]:
    """Gather, transfer, load."""
    size, loading = bucket.size, TENSOR_S * len(bucket.tensors) + 4 * bucket.size / MEMORY
    trainers = max(layout.nodes // 2, 1)
    if way == "apart, NCCL":
        yield from (layout.gather_s(size, trainers), layout.transfer_s(size), loading)
    elif way == "shared, IPC":
        yield from (layout.gather_s(size, layout.nodes), MESSAGE_S + 6 * size / MEMORY, loading)
    elif way == "sharded pulls":
        part = size / layout.tensor_parallel
        yield from (layout.gather_s(size, trainers), layout.transfer_s(part), 4 * part / MEMORY)
    else:
        sent = size * CHANGED * 3
        # Compared with a copy of the last weights, which takes as much memory again.
        yield from (layout.gather_s(size, trainers) + 3 * size / MEMORY, layout.transfer_s(sent), loading)
