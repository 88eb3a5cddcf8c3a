"""How much GPU memory an update takes for a moment, beyond what policy and engines hold anyway. Arithmetic."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from openrlhf_ada.weights.manifest import Manifest

BUCKETS = {"gloo": 2, "nccl": 6, "ipc": 3}
"""At each end. Gloo: one on its way, one that is packed or loaded. NCCL: vLLM holds two chunks and makes a third; a
chunk is two buckets at most. IPC: the one that both ends see, one that was packed or copied, and the next."""

JOINED = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj"} | {
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}
"""Modules of a checkpoint that are one layer in vLLM."""


@dataclass(frozen=True)
class UpdateMemory:
    """Bytes on one GPU at the worst moment. `layer`: the engine's layer that is loaded then."""

    policy: int
    engine: int
    layer: str


def update_memory(manifest: Manifest, *, backend: str, tensor_parallel: int, zero_stage: int) -> UpdateMemory:
    """An upper bound, without what kernels need while they re-pack. `tensor_parallel`: workers per engine.

    A worker receives whole tensors, whatever its share: vLLM's loaders cut them. It keeps those of a layer until the
    layer is complete, and then makes the layer anew, before it copies that over the old one.
    """
    buckets = BUCKETS[backend] * manifest.bucket_bytes
    layers: dict[str, int] = defaultdict(int)
    for tensor in manifest.tensors:
        layers[_layer_of(tensor.name)] += tensor.num_bytes
    layer, size = max(layers.items(), key=lambda item: item[1])
    # Without ZeRO-3 the first process has the tensors anyway. It copies experts to cut them apart.
    whole = max(sum(t.num_bytes * ((zero_stage == 3) + bool(t.source)) for t in batch) for batch in manifest.batches())
    # vLLM joins buckets to a chunk by a copy.
    packing = 2 * manifest.bucket_bytes if backend == "nccl" else 0
    return UpdateMemory(buckets + packing + whole, buckets + size + size // tensor_parallel, layer)


def _layer_of(name: str) -> str:
    if ".experts." in name:
        # All experts are one layer.
        return name.split(".experts.")[0] + ".experts"
    module = name.rpartition(".")[0]
    parent, _, last = module.rpartition(".")
    return f"{parent}.{JOINED[last]}" if last in JOINED else module
