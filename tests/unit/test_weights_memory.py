"""Memory that an update takes for a moment: the arithmetic, and a measurement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from model_shapes import MODELS
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from vllm.config import VllmConfig, WeightTransferConfig, set_current_vllm_config
from vllm.model_executor.model_loader.reload import layerwise
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

from benchmarks.weight_memory import update_memory
from openrlhf_ada.weights.manifest import Manifest, TensorSpec, pack
from openrlhf_ada.weights.receiver import BACKEND, Update, WeightReceiver

pytestmark = pytest.mark.rehearsal


def test_a_large_layer_is_held_whole_and_made_anew() -> None:
    """70B: the output layer is 128,256 x 8,192 in two bytes, as large as the embedding; gate and up are smaller."""
    found = update_memory(MODELS["Llama-3.1-70B"].manifest(), backend="nccl", tensor_parallel=8, zero_stage=3)
    whole, bucket = 128_256 * 8_192 * 2, 32 << 20
    assert found.layer == "model.embed_tokens"
    assert found.engine == 6 * bucket + whole + whole // 8
    assert found.policy == (6 + 2) * bucket + whole


def test_all_experts_of_a_layer_are_one() -> None:
    found = update_memory(MODELS["Mixtral-8x7B (experts)"].manifest(), backend="gloo", tensor_parallel=1, zero_stage=2)
    assert found.layer == "model.layers.0.mlp.experts"
    assert found.engine == 2 * (32 << 20) + 2 * (8 * 3 * 4_096 * 14_336 * 2)


# -- measured ---------------------------------------------------------------------------------------------------------


class Live(TorchDispatchMode):
    """Bytes of the tensors that were made since it began and are still there; `most` of them at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if is_data(leaf)}
        result = func(*args, **kwargs or {})
        for leaf in tree_leaves(result):
            if is_data(leaf) and (storage := leaf.untyped_storage())._cdata not in before:
                self.seen[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.seen = {key: (ref, size) for key, (ref, size) in self.seen.items() if not ref.expired()}
        self.most = max(self.most, sum(size for _, size in self.seen.values()))
        return result


def is_data(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and not leaf.is_meta


class Model(torch.nn.Module):
    """One layer of 4 MB and two of 40 kB."""

    def __init__(self) -> None:
        super().__init__()
        self.small = torch.nn.Linear(100, 100, bias=False)
        self.large = torch.nn.Linear(1000, 1000, bias=False)
        self.last = torch.nn.Linear(100, 100, bias=False)

    def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            parameter = self.get_parameter(name)
            getattr(parameter, "weight_loader", default_weight_loader)(parameter, weight)


class TwoAtATime:
    """Hands out buckets as our gloo group does: the next one is there while one is loaded."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.values = {spec.name: torch.zeros(spec.shape) for spec in manifest.tensors}

    def receive(self, sizes: Sequence[int], take: Any) -> None:
        arriving: list[torch.Tensor] = []
        for bucket in self.manifest.buckets():
            arriving.append(torch.empty(bucket.size, dtype=torch.uint8))
            pack(bucket, [self.values[spec.name] for spec in bucket.tensors], arriving[-1])
            if len(arriving) == 2:
                take(arriving.pop(0))
        while arriving:
            take(arriving.pop(0))


@pytest.mark.parametrize("bucket_bytes", [50_000, 400_000])
def test_an_engine_takes_no_more_than_the_function_says(bucket_bytes: int) -> None:
    """Counted over vLLM's own layerwise reload, with buckets much smaller than the largest layer."""
    model = Model().requires_grad_(False)
    layerwise.record_metadata_for_reloading(model)
    receiver: Any = WeightReceiver(WeightTransferConfig(backend=BACKEND), VllmConfig(), torch.device("cpu"), model)
    specs = tuple(TensorSpec(name, "float32", tuple(p.shape)) for name, p in model.named_parameters())
    manifest = Manifest(specs, bucket_bytes=bucket_bytes)
    receiver._group = TwoAtATime(manifest)
    with set_current_vllm_config(receiver.vllm_config), Live() as live:
        receiver.start_weight_update()
        receiver.receive_weights(Update(manifest.to_plain(), False))
        receiver.finish_weight_update()
    expected = update_memory(manifest, backend="gloo", tensor_parallel=1, zero_stage=2).engine
    assert expected == 2 * bucket_bytes + 2 * 4_000_000
    assert 0.9 * expected < live.most < expected + 100
