"""How much an engine computes at a time: vLLM's own configuration for devices that this machine does not have."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import vllm
from like_qwen import write_config
from openrlhf.trainer.ray import vllm_engine
from vllm.config import CompilationConfig, VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM

from openrlhf_ada.host.engine import HostRolloutActor
from openrlhf_ada.platforms.without_gpu import engine as cpu_engine
from openrlhf_ada.simulation.virtual_engines import GPU_LIKE

pytestmark = pytest.mark.rehearsal

DEVICES = {
    "24 GB": (24, "NVIDIA GeForce RTX 4090", (256, 8192)),
    "80 GB, A100": (80, "NVIDIA A100-SXM4-80GB", (256, 8192)),
    "80 GB, H100": (80, "NVIDIA H100 80GB HBM3", (1024, 16384)),
    "160 GB": (160, "NVIDIA B200", (1024, 16384)),
}
"""Memory in GB, vLLM's name, and what the class LLM would compute at a time: requests, and tokens."""


@pytest.fixture
def model(tmp_path: Path) -> str:
    return write_config(tmp_path)


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets vLLM see another device. Its platform stays the CPU's in all that says nothing about batches."""

    def device(gigabytes: int, name: str) -> None:
        monkeypatch.setattr(current_platform, "is_cpu", lambda: False)
        monkeypatch.setattr(current_platform, "get_device_total_memory", lambda *_: gigabytes << 30)
        monkeypatch.setattr(current_platform, "get_device_name", lambda *_: name)

    return device


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What engines are started with; none starts."""
    configs: list[Any] = []

    class Engine(AsyncLLM):
        def __init__(self, vllm_config: VllmConfig, *_: Any, log_stats: bool, **__: Any) -> None:
            configs.append(SimpleNamespace(config=vllm_config, has_statistics=log_stats))

        def __del__(self) -> None: ...

        async def is_sleeping(self) -> bool:
            return False

    monkeypatch.setattr(vllm, "AsyncLLMEngine", Engine)
    monkeypatch.setattr("openrlhf_ada.host.engine.AsyncLLM", Engine)
    # OpenRLHF's arguments as they are on a GPU.
    monkeypatch.setattr(cpu_engine, "cpu_engine_arguments", lambda arguments: arguments)
    monkeypatch.setenv("RAY_ADDRESS", "none")
    return configs


def start(actor_class: Any, model: str, **arguments: Any) -> None:
    actor = actor_class.__new__(actor_class)
    given = {
        "model": model,
        "num_gpus": 1,
        "distributed_executor_backend": "uni",
        "max_model_len": 4096,
        "tensor_parallel_size": 1,
        "enforce_eager": True,
        "skip_tokenizer_init": True,
    }
    asyncio.run(actor.__init__(**given | arguments))


def at_a_time(config: VllmConfig) -> tuple[int, int]:
    return config.scheduler_config.max_num_seqs, config.scheduler_config.max_num_batched_tokens


@pytest.mark.parametrize("name", DEVICES)
def test_engines_compute_as_much_at_a_time_as_vllms_llm_class(
    name: str, pretend: Any, started: list[Any], model: str
) -> None:
    gigabytes, device, expected = DEVICES[name]
    pretend(gigabytes, device)
    start(HostRolloutActor, model)
    assert at_a_time(started[0].config) == expected
    assert not started[0].has_statistics
    arguments = AsyncEngineArgs(model=model, max_model_len=4096, enforce_eager=True, skip_tokenizer_init=True)
    assert at_a_time(arguments.create_engine_config(UsageContext.LLM_CLASS)) == expected


def test_a_tensor_parallel_engine_asks_for_its_device_when_it_can_see_one(
    pretend: Any, started: list[Any], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its actor has no GPU of its own, so Ray hides them all. vLLM would then take the device for a small one."""
    pretend(*DEVICES["80 GB, H100"][:2])
    hidden: list[str | None] = []

    def memory(*_: Any) -> int:
        hidden.append(os.environ.get("CUDA_VISIBLE_DEVICES"))
        return 80 << 30

    monkeypatch.setattr(current_platform, "get_device_total_memory", memory)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    start(HostRolloutActor, model, distributed_executor_backend="ray", tensor_parallel_size=2, bundle_indices=[0, 1])
    assert at_a_time(started[0].config) == (1024, 16384)
    assert hidden and set(hidden) == {None}


def test_the_hosts_own_engine_would_compute_an_eighth(pretend: Any, started: list[Any], model: str) -> None:
    """When this fails, vLLM or OpenRLHF has mended it, and host/engine.py need not."""
    pretend(*DEVICES["80 GB, H100"][:2])
    host = HostRolloutActor.__mro__[1]
    assert host.__module__ != HostRolloutActor.__module__
    start(host, model)
    assert at_a_time(started[0].config) == (128, 2048)
    assert started[0].has_statistics


def test_what_the_arguments_name_stays(pretend: Any, started: list[Any], model: str) -> None:
    pretend(*DEVICES["80 GB, H100"][:2])
    start(HostRolloutActor, model, max_num_seqs=64, max_num_batched_tokens=4096, disable_log_stats=False)
    assert at_a_time(started[0].config) == (64, 4096)
    assert started[0].has_statistics


def test_a_cpus_engine_keeps_what_it_had(started: list[Any], model: str) -> None:
    start(HostRolloutActor, model, enable_chunked_prefill=True)
    assert at_a_time(started[0].config) == (128, 2048)


GRAPHS = "max_cudagraph_capture_size"


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("80 GB, H100", {}, 1024),
        ("80 GB, A100", {}, None),
        ("80 GB, A100", {"max_num_seqs": 768}, 768),
        ("80 GB, H100", {"max_num_seqs": 4096}, 1024),
        ("80 GB, H100", {"max_num_seqs": 512}, None),
        ("80 GB, H100", {GRAPHS: 256}, 256),
        ("80 GB, H100", {"compilation_config": {"cudagraph_capture_sizes": [8]}}, None),
        ("80 GB, H100", {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}, None),
    ],
)
def test_graphs_cover_what_decodes_at_a_time(
    name: str,
    given: dict[str, Any],
    expected: int | None,
    pretend: Any,
    started: list[Any],
    model: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None: vLLM's own choice, which covers fewer requests than 512 or what is drafted."""
    pretend(*DEVICES[name][:2])
    seen: list[int | None] = []
    make = AsyncEngineArgs.create_engine_config

    def note(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(self.max_cudagraph_capture_size)
        return make(self, *args, **kwargs)

    monkeypatch.setattr(AsyncEngineArgs, "create_engine_config", note)
    start(HostRolloutActor, model, **given)
    assert seen == [expected]


@pytest.mark.parametrize(
    ("most", "newest", "last", "count"), [(None, False, 512, 51), (1024, False, 1024, 83), (None, True, 1024, 83)]
)
def test_vllms_graphs_end_at_half_of_an_h100s_slots(
    most: int | None, newest: bool, last: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's own sizes for 1,024 requests; where it goes up to 1,024 by itself, host/engine.py need not."""
    monkeypatch.setattr(current_platform, "is_device_capability_family", lambda family: newest)
    config = SimpleNamespace(
        model_config=SimpleNamespace(enforce_eager=False),
        compilation_config=CompilationConfig(cudagraph_mode="FULL_AND_PIECEWISE", max_cudagraph_capture_size=most),
        scheduler_config=SimpleNamespace(max_num_seqs=1024, max_num_batched_tokens=16384),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        performance_mode="balanced",
        uniform_decode_query_len=1,
        speculative_config=None,
    )
    VllmConfig._set_cudagraph_sizes(config)
    sizes = config.compilation_config.cudagraph_capture_sizes
    assert (sizes[-1], len(sizes)) == (last, count)


def test_vllms_engine_is_itself_again_afterwards(started: list[Any], model: str) -> None:
    before = vllm.AsyncLLMEngine
    start(HostRolloutActor, model)
    assert vllm.AsyncLLMEngine is before
    assert vllm_engine.vllm is vllm, "OpenRLHF starts it by this name"


def test_simulated_gpus_have_a_small_gpus_slots(pretend: Any, model: str) -> None:
    pretend(*DEVICES["24 GB"][:2])
    arguments = AsyncEngineArgs(model=model, max_model_len=4096, enforce_eager=True, skip_tokenizer_init=True)
    assert at_a_time(arguments.create_engine_config(UsageContext.LLM_CLASS))[0] == GPU_LIKE.slots
