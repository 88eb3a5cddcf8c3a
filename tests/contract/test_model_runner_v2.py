"""What our code takes for granted of vLLM's model runner, held against Model Runner V2, which GPUs use.

CPUs have V1, so no run on a CPU shows any of this. The code that is called here is V2's own, without a GPU. Sampling:
test_model_runner_v2_sampling.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm
from like_qwen import write_config
from vllm.config import VllmConfig, WeightTransferConfig
from vllm.config import vllm as vllm_config
from vllm.model_executor.model_loader import base_loader
from vllm.model_executor.model_loader.reload import layerwise
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.v1.worker import gpu_worker
from vllm.v1.worker.gpu import attn_utils, model_runner

from openrlhf_ada.weights.checksums import checksums
from openrlhf_ada.weights.engine_side import ReceivesWeights
from openrlhf_ada.weights.manifest import Manifest, TensorSpec, pack
from openrlhf_ada.weights.receiver import BACKEND, WeightReceiver

pytestmark = pytest.mark.rehearsal

V2 = model_runner.GPUModelRunner


# -- which runner -----------------------------------------------------------------------------------------------------


def test_nothing_that_we_ask_for_keeps_a_gpu_from_v2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM goes back to V1, with one line in a log, for what V2 does not have yet."""
    actor = ReceivesWeights()
    host = {"enable_prefix_caching": True, "worker_extension_cls": "openrlhf.trainer.ray.vllm_worker_wrap.WorkerWrap"}
    arguments = vllm.AsyncEngineArgs(
        model=write_config(tmp_path),
        skip_tokenizer_init=True,
        distributed_executor_backend="uni",
        **actor.with_receiver(host),
    )
    config = arguments.create_engine_config()
    assert config._get_v2_model_runner_unsupported_features() == []
    assert config.use_v2_model_runner is False, "this machine has no Triton: tests of the real engine here show V1"
    monkeypatch.setattr(vllm_config, "HAS_TRITON", True)
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    assert config.use_v2_model_runner is True


# -- weights ----------------------------------------------------------------------------------------------------------


class TinyModel(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2, 2)

    def load_weights(self, weights: Any) -> None:
        for name, weight in weights:
            parameter: Any = self.get_parameter(name)
            parameter.weight_loader(parameter, weight)


class Group:
    """Hands out one bucket."""

    def __init__(self, packed: torch.Tensor) -> None:
        self.packed = packed

    def receive(self, sizes: Sequence[int], take: Any) -> None:
        assert list(sizes) == [self.packed.numel()]
        take(self.packed)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's GPU worker with a V2 runner, as `load_model` leaves them."""
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda *_: None)
    runner: Any = V2.__new__(V2)
    runner.lora_config = None
    model = TinyModel().requires_grad_(False)
    layerwise.record_metadata_for_reloading(model)

    def load_model(load_dummy_weights: bool) -> None:
        runner.model = model

    runner.load_model = load_model
    made: Any = gpu_worker.Worker.__new__(gpu_worker.Worker)
    made.vllm_config = VllmConfig(weight_transfer_config=WeightTransferConfig(backend=BACKEND))
    made.device, made.rank, made.model_runner = torch.device("cpu"), 0, runner
    made._weight_update_active = made._weight_update_is_draft = False
    made.load_model()
    return made


def test_updates_reach_the_runners_model_in_place(worker: Any) -> None:
    """Captured CUDA graphs read the weights where they lay when they were captured."""
    model = worker.model_runner.get_model()
    receiver = worker.weight_transfer_engine
    assert isinstance(receiver, WeightReceiver) and receiver.model is model
    places = [parameter.data_ptr() for parameter in model.parameters()]
    sent = {name: torch.full(p.shape, 3.5) for name, p in model.named_parameters()}
    specs = tuple(TensorSpec(name, "float32", tuple(t.shape)) for name, t in sent.items())
    (bucket,) = Manifest(specs, True, bucket_bytes=1 << 20).buckets()
    packed = torch.empty(bucket.size, dtype=torch.uint8)
    pack(bucket, [sent[spec.name] for spec in bucket.tensors], packed)
    receiver._group = Group(packed)
    worker.start_weight_update()
    worker.update_weights({"manifest": Manifest(specs, True, bucket_bytes=1 << 20).to_plain(), "sums": True})
    worker.finish_weight_update()
    assert receiver.sums == checksums([sent[spec.name] for spec in bucket.tensors])
    assert all(bool((parameter == 3.5).all()) for parameter in model.parameters())
    assert [parameter.data_ptr() for parameter in model.parameters()] == places


def test_v2_loads_models_so_that_they_can_be_reloaded() -> None:
    """With what vLLM's layerwise reload needs to know of every layer, recorded when the model is made."""
    assert "model_loader.load_model(" in inspect.getsource(V2.load_model)
    assert "initialize_model(" in inspect.getsource(base_loader.BaseModelLoader.load_model)
    assert "record_metadata_for_reloading(model)" in inspect.getsource(initialize_model)


def test_the_hosts_extension_finds_what_it_loads_into(host_source: Any) -> None:
    """Where policy and engine share a GPU, weights go OpenRLHF's way: it reads these of the worker."""
    text = host_source.text("trainer/ray/vllm_worker_wrap.py", "WorkerWrap.update_weight_cuda_ipc")
    assert "self.model_runner.model.load_weights(" in text
    assert "dtype == self.model_config.dtype" in text
    assert "device_id = self.device.index" in text
    assert "self.model = model_loader.load_model(" in inspect.getsource(V2.load_model)


def test_images_cached_by_old_weights_can_be_forgotten() -> None:
    """V2 keeps what the image encoder has made, by image, and beyond a request."""
    cleared: list[str] = []
    runner: Any = V2.__new__(V2)
    runner.pooling_runner = None
    runner.encoder_cache = SimpleNamespace(reset_encoder_cache=lambda: cleared.append("encoder"))
    runner.reset_encoder_cache()
    assert cleared == ["encoder"]


# -- sleep ------------------------------------------------------------------------------------------------------------


def test_the_cache_lies_in_memory_that_sleep_frees(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing but the cache: V2 allocates it alone in that pool."""
    told: list[str] = []

    @contextmanager
    def pool() -> Any:
        told.append("in")
        yield
        told.append("out")

    monkeypatch.setattr(attn_utils, "allocate_kv_cache", lambda *_: told.append("cache") or {})
    monkeypatch.setattr(attn_utils, "get_shared_kv_cache_layers", lambda _: {})
    monkeypatch.setattr(attn_utils, "bind_kv_cache", lambda *_: told.append("bound"))
    config: Any = SimpleNamespace(
        cache_config=SimpleNamespace(get_resolved_kv_cache_layout=lambda: None),
        model_config=SimpleNamespace(hf_config=SimpleNamespace(model_type="qwen2")),
    )
    attn_utils.init_kv_cache([], {}, SimpleNamespace(), torch.device("cpu"), [], config, pool())  # type: ignore[arg-type]
    assert told == ["in", "cache", "out", "bound"]
    assert "kv_cache_allocation_context=kv_cache_allocation_context" in inspect.getsource(V2.initialize_kv_cache)
    assert 'tag="kv_cache"' in inspect.getsource(gpu_worker.Worker.initialize_from_config)


def test_engines_must_sleep_at_level_1(host_source: Any) -> None:
    """Level 1 keeps a copy of the weights' pool. V2 makes its sampler there too, with what requests asked for; level 2
    would bring back the model's buffers only."""
    assert "self.sampler = Sampler(" in inspect.getsource(V2.load_model)
    loads = inspect.getsource(gpu_worker.Worker.load_model)
    assert loads.index('tag="weights"') < loads.index("self.model_runner.load_model(")
    assert host_source.parameters("trainer/ray/vllm_engine.py", "RolloutRayActor.sleep") == "self, level="
    assert host_source.text("trainer/ray/vllm_engine.py", "RolloutRayActor.sleep").startswith(
        "async def sleep(self, level=1)"
    )
    text = host_source.text("trainer/ppo_utils/samples_generator.py", "SamplesGenerator")
    assert "batch_vllm_engine_call(self.vllm_engines, 'sleep')" in text
