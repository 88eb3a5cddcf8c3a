"""What weight updates stand on in vLLM: transfer machinery, layerwise reload, and the worker that we extend."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm
from vllm.config import VllmConfig, WeightTransferConfig, set_current_vllm_config
from vllm.distributed import utils as vllm_distributed
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader.reload import layerwise
from vllm.model_executor.model_loader.weight_utils import default_weight_loader
from vllm.v1.engine.async_llm import AsyncLLM

from openrlhf_ada.host.vllm_engine import pack_experts_anew
from openrlhf_ada.weights.checksums import checksums
from openrlhf_ada.weights.engine_side import ReceivesWeights
from openrlhf_ada.weights.manifest import Manifest, TensorSpec, pack
from openrlhf_ada.weights.receiver import (
    BACKEND,
    PolicyWeightsExtension,
    Update,
    WeightReceiver,
)
from openrlhf_ada.weights.transport import Take

pytestmark = pytest.mark.rehearsal


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("init_weight_transfer_engine", ["self", "request"]),
        ("start_weight_update", ["self"]),
        ("update_weights", ["self", "request"]),
        ("finish_weight_update", ["self", "weight_version"]),
        ("reset_prefix_cache", ["self", "reset_running_requests", "reset_connector"]),
        ("reset_encoder_cache", ["self"]),
        ("is_paused", ["self"]),
    ],
)
def test_vllm_has_the_calls_of_an_update(name: str, parameters: list[str]) -> None:
    call = getattr(AsyncLLM, name)
    assert inspect.iscoroutinefunction(call)
    assert list(inspect.signature(call).parameters) == parameters


def test_gloo_group_is_made_by_vllm() -> None:
    function = vllm_distributed.stateless_init_torch_distributed_process_group
    assert list(inspect.signature(function).parameters)[:5] == ["host", "port", "rank", "world_size", "backend"]


def test_our_machinery_is_found_by_its_names() -> None:
    arguments = ReceivesWeights().with_receiver({})
    module, _, name = arguments["worker_extension_cls"].rpartition(".")
    assert getattr(importlib.import_module(module), name) is PolicyWeightsExtension
    assert arguments["weight_transfer_config"] == {"backend": BACKEND}
    assert WeightTransferEngineFactory._registry[BACKEND]() is WeightReceiver
    assert set(arguments) <= set(inspect.signature(vllm.AsyncEngineArgs).parameters)


def test_worker_extension_hides_nothing_of_vllms_worker() -> None:
    """vLLM refuses an extension that has an attribute of the worker. (Importing the worker would change torch.)"""
    ours = {name for name in dir(PolicyWeightsExtension) if not name.startswith("__")}
    workers = Path(vllm.__file__).parent / "v1" / "worker"
    for file, name in (("cpu_worker.py", "CPUWorker"), ("gpu_worker.py", "Worker"), ("worker_base.py", "WorkerBase")):
        (worker,) = [n for n in ast.parse((workers / file).read_text()).body if getattr(n, "name", None) == name]
        theirs = {n.name for n in ast.walk(worker) if isinstance(n, ast.FunctionDef)}
        assert theirs, f"vLLM's {file} has no methods in {name}"
        assert not ours & theirs


class TinyModel(torch.nn.Module):
    """Three parameters in two layers, and vLLM's way to load them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 5)
        self.second = torch.nn.Linear(5, 1, bias=False)

    def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            parameter = self.get_parameter(name)
            getattr(parameter, "weight_loader", default_weight_loader)(parameter, weight)


class Group:
    """Hands out these buckets, and counts them."""

    def __init__(self, packed: Sequence[torch.Tensor]) -> None:
        self.packed = packed
        self.num_taken = 0

    def receive(self, sizes: Sequence[int], take: Take) -> None:
        assert list(sizes) == [p.numel() for p in self.packed]
        for packed in self.packed:
            self.num_taken += 1
            take(packed.clone())


def values(seed: float) -> dict[str, torch.Tensor]:
    model = TinyModel()
    return {name: torch.full(p.shape, seed + i) for i, (name, p) in enumerate(model.named_parameters())}


def make_receiver() -> Any:
    model = TinyModel().requires_grad_(False)
    layerwise.record_metadata_for_reloading(model)
    return WeightReceiver(WeightTransferConfig(backend=BACKEND), VllmConfig(), torch.device("cpu"), model)


def receive(
    receiver: Any,
    sent: dict[str, torch.Tensor],
    *,
    sums: bool = True,
    is_whole: bool = True,
    is_untrained: bool = False,
    bucket_bytes: int = 1,
) -> None:
    specs = tuple(TensorSpec(n, str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in sent.items())
    manifest = Manifest(specs, is_whole, bucket_bytes)
    packed = []
    for bucket in manifest.buckets():
        packed.append(torch.empty(bucket.size, dtype=torch.uint8))
        pack(bucket, [sent[spec.name] for spec in bucket.tensors], packed[-1])
    receiver._group = Group(packed)
    with set_current_vllm_config(receiver.vllm_config):
        receiver.start_weight_update()
        receiver.receive_weights(Update(manifest.to_plain(), sums, is_untrained))
        receiver.finish_weight_update()


def test_weights_that_the_model_drops_are_known() -> None:
    receiver = make_receiver()
    load = receiver.model.load_weights
    receiver.model.load_weights = lambda weights: load((n, w) for n, w in weights if n in values(0))
    sent = values(0.5) | {"third.weight": torch.ones(4, 4), "third.bias": torch.ones(4)}
    receive(receiver, sent, bucket_bytes=1000)
    assert receiver.unused == ["third.weight", "third.bias"]
    receive(receiver, values(0.5))
    assert receiver.unused == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_untrained_policy_leaves_the_engine_as_it_was(dtype: str) -> None:
    """Weights of more digits than are sent cannot be compared."""
    receiver = make_receiver()
    same = {name: p.data.clone() for name, p in receiver.model.named_parameters()}
    receive(receiver, same, is_untrained=True)
    other = {name: (t + (name == "second.weight")).to(getattr(torch, dtype)) for name, t in same.items()}
    receive(receiver, other)
    receive(receiver, other, is_untrained=True)
    with (
        pytest.raises(RuntimeError, match=r"1 of .* the first: second\.weight")
        if dtype == "float32"
        else nullcontext()
    ):
        receive(receiver, same | {name: t.to(getattr(torch, dtype)) for name, t in same.items()}, is_untrained=True)


@pytest.mark.parametrize("backend", [UnquantizedMoeBackend.CPU, UnquantizedMoeBackend.TRITON])
def test_a_cpus_experts_are_packed_where_they_have_no_kernel(backend: UnquantizedMoeBackend) -> None:
    """What becomes of them: tests/e2e/test_experts.py. Kernels of GPUs stay: graphs have captured them."""
    assert "is_weight_update = self.moe_kernel is not None" in inspect.getsource(
        UnquantizedFusedMoEMethod._setup_kernel
    )
    model: Any = TinyModel()
    model.second.quant_method = SimpleNamespace(unquantized_backend=backend, moe_kernel="kernel")
    pack_experts_anew(model)
    assert model.second.quant_method.moe_kernel == (None if backend is UnquantizedMoeBackend.CPU else "kernel")


def held(receiver: Any) -> dict[str, list[Any]]:
    return {name: p.tolist() for name, p in receiver.model.named_parameters()}


@pytest.mark.parametrize("bucket_bytes", [1, 32, 1000])
@pytest.mark.parametrize("sums", [False, True])
def test_updates_go_through_vllms_layerwise_reload(sums: bool, bucket_bytes: int) -> None:
    """With every tensor in parts, with some, and with none; vLLM and the checksums see whole ones."""
    receiver = make_receiver()
    for seed in (0.5, 7.5):
        sent = values(seed)
        receive(receiver, sent, sums=sums, bucket_bytes=bucket_bytes)
        assert held(receiver) == {name: t.tolist() for name, t in sent.items()}
        assert receiver.sums == (checksums(list(sent.values())) if sums else [])


class Bytes(QuantizeMethodBase):
    """Stands for vLLM's quantisation as weights load, whose kernels are a GPU's: a byte a weight, and one scale."""

    def create_weights(self, layer: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    def apply(self, layer: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.Tensor:
        raise NotImplementedError

    def process_weights_after_loading(self, layer: Any) -> None:
        scale = layer.weight.abs().max() / 127
        layer.weight_scale = torch.nn.Parameter(scale[None].detach(), requires_grad=False)
        rounded = (layer.weight / scale).round().to(torch.int8)
        layer.weight = torch.nn.Parameter(rounded, requires_grad=False)


def test_an_engine_that_quantises_its_weights_does_so_in_every_update() -> None:
    """--ada_engine_args quantization: what a kernel, or a CUDA graph, reads stays where it is."""
    receiver = make_receiver()
    layer = receiver.model.second
    layer.quant_method = Bytes()
    layer.quant_method.process_weights_after_loading(layer)
    places = layer.weight.data_ptr(), layer.weight_scale.data_ptr()
    for seed in (0.5, 7.5):
        sent = values(seed) | {"second.weight": torch.arange(5.0)[None] * seed}
        receive(receiver, sent)
        assert receiver.unused == []
        assert layer.weight.tolist() == [[0, 32, 64, 95, 127]]
        assert layer.weight_scale.item() == pytest.approx(4 * seed / 127)
        assert (layer.weight.data_ptr(), layer.weight_scale.data_ptr()) == places
    receive(receiver, sent, is_untrained=True)


@pytest.mark.parametrize(
    ("dropped", "told"),
    [("second.weight", "no weights came for second. Where"), ("first.bias", "not all weights came for first$")],
)
def test_a_layer_without_all_of_its_weights_is_named(dropped: str, told: str) -> None:
    """vLLM would keep the old weights of the one, and fill up the other with what memory holds."""
    sent = values(1.0)
    del sent[dropped]
    with pytest.raises(RuntimeError, match=told):
        receive(make_receiver(), sent)


def test_tensors_left_out_on_purpose_stay() -> None:
    """A frozen image encoder."""
    receiver = make_receiver()
    receive(receiver, values(1.0))
    sent = values(5.0)
    del sent["second.weight"]
    receive(receiver, sent, is_whole=False)
    assert held(receiver) == {n: t.tolist() for n, t in (values(1.0) | sent).items()}


def test_engine_that_cannot_load_receives_the_rest_first() -> None:
    """The policy and the other engines would wait for it."""
    receiver = make_receiver()
    sent = {"no.such.weight": torch.zeros(3)} | values(1.0)
    with pytest.raises(AttributeError):
        receive(receiver, sent)
    assert receiver._group.num_taken == len(receiver._group.packed) == 9
