"""One test per change that platforms/without_gpu/engine.py and vllm_plugin.py make on the engine's side."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
import vllm
from openrlhf.trainer.ray import vllm_engine
from processes import has_ended
from vllm.config import ParallelConfig, VllmConfig
from vllm.plugins import DEFAULT_PLUGINS_GROUP
from vllm.v1.attention.backends import cpu_attn
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor import Executor
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.kv_cache_interface import FullAttentionSpec

from openrlhf_ada.host.classes import unwrap_ray_class
from openrlhf_ada.platforms import vllm_plugin, without_gpu
from openrlhf_ada.platforms.without_gpu import DTYPE_VARIABLE, ask_for_amx, engine
from openrlhf_ada.platforms.without_gpu.engine import OneProcessExecutor, TensorParallelExecutor, cpu_engine_arguments

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU platform is never on beside a GPU")

WORKER = "trainer/ray/vllm_worker_wrap.py"


# -- the rollout actor --------------------------------------------------------------------------------------------


def test_rollout_actor_is_the_hosts_with_our_arguments() -> None:
    plain = unwrap_ray_class(vllm_engine.RolloutRayActor)
    assert plain.__name__ == "CpuRolloutRayActor"
    (base,) = plain.__bases__
    assert base.__module__ == vllm_engine.__name__
    assert inspect.iscoroutinefunction(base.__init__), "ours awaits it"


def test_changed_engine_arguments_are_set_by_the_host(host_source: Any) -> None:
    """A renamed argument would reach the engine beside ours."""
    create = host_source.find("trainer/ray/vllm_engine.py", "create_vllm_engines")
    given = {
        key.value
        for node in ast.walk(create)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant)
    }
    ours = set(cpu_engine_arguments({}))
    assert {"dtype", "gpu_memory_utilization", "enforce_eager"} <= ours & given
    assert ours <= set(inspect.signature(vllm.AsyncEngineArgs).parameters)


def test_a_tensor_parallel_engine_has_worker_processes() -> None:
    """vLLM takes the executor by its name; OpenRLHF asks for Ray's, which gives each worker a GPU."""
    chosen = cpu_engine_arguments({"tensor_parallel_size": 2, "distributed_executor_backend": "ray"})
    assert chosen["distributed_executor_backend"] == engine.TENSOR_PARALLEL_EXECUTOR
    config = VllmConfig()
    config.parallel_config.distributed_executor_backend = engine.TENSOR_PARALLEL_EXECUTOR
    assert Executor.get_class(config) is TensorParallelExecutor
    assert issubclass(TensorParallelExecutor, MultiprocExecutor)


def test_engine_arguments_override_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DTYPE_VARIABLE, "float32")
    arguments = cpu_engine_arguments({"dtype": "bfloat16", "seed": 3, "gpu_memory_utilization": 0.95})
    assert (arguments["dtype"], arguments["seed"]) == ("float32", 3)
    assert arguments["gpu_memory_utilization"] < 0.95
    assert arguments["enforce_eager"] is True
    assert arguments["enable_chunked_prefill"] is False


def test_engine_core_runs_the_model_itself() -> None:
    """Named by its path: vLLM turns the short name "uni" into a process more on a CPU."""
    named = VllmConfig(parallel_config=ParallelConfig(distributed_executor_backend=engine.EXECUTOR))
    assert cpu_engine_arguments({"distributed_executor_backend": "uni"})["distributed_executor_backend"] == (
        engine.EXECUTOR
    )
    assert Executor.get_class(named) is OneProcessExecutor


@pytest.mark.parametrize(
    ("cores", "engines", "threads"),
    [([[0, 1, 2, 3]], 1, 4), ([[0, 1, 2, 3]], 2, 2), ([[0, 1]], 3, 1), ([], 1, 5)],
    ids=["bound by vLLM", "two engines", "more engines than cores", "unbound"],
)
def test_model_gets_vllms_threads_or_its_share(
    monkeypatch: pytest.MonkeyPatch, cores: list[list[int]], engines: int, threads: int
) -> None:
    monkeypatch.setenv(without_gpu.ENGINES_VARIABLE, str(engines))
    given: list[int] = []
    monkeypatch.setattr(engine, "OMPProcessManager", lambda config: SimpleNamespace(cpu_lists=cores))
    monkeypatch.setattr(UniProcExecutor, "_init_executor", lambda self: given.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    torch.set_num_threads(5)
    try:
        OneProcessExecutor(VllmConfig())
    finally:
        torch.set_num_threads(before)
    assert given == [threads]


@pytest.mark.parametrize("executor", [OneProcessExecutor, TensorParallelExecutor])
@pytest.mark.parametrize(("configured", "expected"), [(10**9, 2 * 3 * (4 + 2) * 4096), (50_000, 50_000)])
def test_cache_is_no_larger_than_all_sequences_need(
    executor: Any, configured: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three sequences of up to 100 tokens, two layers with pages of 4,096 bytes: of 32 tokens, and of 64."""
    assert "self.model_executor.determine_available_memory()" in inspect.getsource(EngineCore._initialize_kv_caches)
    layers = {
        "small": FullAttentionSpec(block_size=32, num_kv_heads=2, head_size=8, dtype=torch.float32),
        "large": FullAttentionSpec(block_size=64, num_kv_heads=1, head_size=8, dtype=torch.float32),
    }
    assert [layer.page_size_bytes for layer in layers.values()] == [4096, 4096]
    answers = {"determine_available_memory": [configured], "get_kv_cache_spec": [layers]}
    engine = object.__new__(executor)
    engine.vllm_config = VllmConfig()
    engine.vllm_config.scheduler_config.max_num_seqs = 3
    monkeypatch.setattr(engine.vllm_config, "model_config", SimpleNamespace(max_model_len=100))
    monkeypatch.setattr(executor, "collective_rpc", lambda self, method: answers[method])
    group = SimpleNamespace(cpu_group=None)
    monkeypatch.setattr("vllm.distributed.parallel_state.get_world_group", lambda: group)
    monkeypatch.setattr("torch.distributed.all_reduce", lambda *args, **more: None)
    assert engine.determine_available_memory() == [expected]


# -- the plug-in that ends engine processes -----------------------------------------------------------------------


def test_plugin_is_registered_where_vllm_looks() -> None:
    (entry,) = importlib.metadata.entry_points(group=DEFAULT_PLUGINS_GROUP, name="openrlhf_ada")
    assert entry.load() is vllm_plugin.register


def test_plugin_does_nothing_in_a_main_process() -> None:
    vllm_plugin.register()


def test_plugin_leaves_other_programs_engines_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may start theirs in a thread that ends, which Linux would take for the parent's end."""
    monkeypatch.delenv(vllm_plugin.RUN_VARIABLE, raising=False)
    monkeypatch.setattr(vllm_plugin.multiprocessing, "parent_process", lambda: SimpleNamespace(pid=-1))
    monkeypatch.setattr(vllm_plugin, "end_with_parent", None)
    vllm_plugin.register()


@pytest.mark.slow
def test_vllm_uses_amx_without_asking_for_it() -> None:
    """tests/e2e/test_engine.py has an engine whose first step has few tokens."""
    assert "supports_amx = torch.cpu._is_amx_tile_supported()" in inspect.getsource(cpu_attn)
    for path in Path(vllm.__file__).parent.rglob("*.py"):
        assert "_init_amx" not in path.read_text(encoding="utf-8"), "then vLLM asks itself"


@pytest.mark.parametrize(("has_it", "may_use_it"), [(True, True), (True, False), (False, False)])
def test_amx_is_asked_for_and_not_used_where_linux_refuses(
    monkeypatch: pytest.MonkeyPatch, has_it: bool, may_use_it: bool
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: has_it)
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: asked.append(True) or may_use_it)
    ask_for_amx()
    assert (asked, torch.cpu._is_amx_tile_supported()) == ([True] * has_it, may_use_it)


PARENT = """
import multiprocessing, os, sys, time
from openrlhf_ada.platforms.vllm_plugin import RUN_VARIABLE, register

os.environ[RUN_VARIABLE] = "1"

def engine_core():
    register()
    print(os.getpid(), flush=True)
    time.sleep(60)

multiprocessing.get_context("fork").Process(target=engine_core).start()
time.sleep(60)
"""


@pytest.mark.slow
def test_engine_process_ends_with_its_parent() -> None:
    """The parent is killed as a Ray worker is: without a chance to end its children."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    child = psutil.Process(int(parent.stdout.readline()))
    try:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(5)
        _, alive = psutil.wait_procs([child], timeout=5)
        assert all(has_ended(process.pid) for process in alive)
    finally:
        parent.stdout.close()
        if child.is_running():
            child.kill()
