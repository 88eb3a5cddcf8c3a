"""One test per change that platforms/cpu_engine.py, vllm_plugin.py and import_hooks.py make on the engine's side."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
import vllm
from openrlhf.trainer.ray import vllm_engine
from vllm.config import ParallelConfig, VllmConfig
from vllm.distributed import utils as vllm_distributed
from vllm.model_executor.model_loader.reload import layerwise
from vllm.model_executor.model_loader.weight_utils import default_weight_loader
from vllm.plugins import DEFAULT_PLUGINS_GROUP
from vllm.v1.executor import Executor
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from openrlhf_ada.platforms import cpu_engine, cpu_executor, vllm_plugin
from openrlhf_ada.platforms.cpu_dtype import DTYPE_VARIABLE
from openrlhf_ada.platforms.cpu_engine import CpuWorkerExtension, cpu_engine_arguments, gloo_broadcast_group
from openrlhf_ada.platforms.cpu_executor import OneProcessExecutor
from openrlhf_ada.platforms.import_hooks import on_import
from openrlhf_ada.upstream import unwrap_ray_class

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU platform is never on beside a GPU")

WORKER = "trainer/ray/vllm_worker_wrap.py"


# -- the rollout actor --------------------------------------------------------------------------------------------


def test_rollout_actor_is_the_hosts_with_our_arguments() -> None:
    plain = unwrap_ray_class(vllm_engine.RolloutRayActor)
    assert plain.__name__ == "CpuRolloutRayActor"
    (base,) = plain.__bases__
    assert base.__module__ == vllm_engine.__name__
    assert inspect.iscoroutinefunction(base.__init__), "ours awaits it"


def test_engine_arguments_that_are_changed_are_the_ones_that_the_host_sets(host_source: Any) -> None:
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
    assert {"dtype", "worker_extension_cls", "gpu_memory_utilization", "enforce_eager"} <= ours & given
    assert ours <= set(inspect.signature(vllm.AsyncEngineArgs).parameters)


def test_engine_arguments_win_over_the_hosts_and_keep_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DTYPE_VARIABLE, "float32")
    arguments = cpu_engine_arguments({"dtype": "bfloat16", "seed": 3, "gpu_memory_utilization": 0.95})
    assert (arguments["dtype"], arguments["seed"]) == ("float32", 3)
    assert arguments["gpu_memory_utilization"] < 0.95
    assert arguments["enforce_eager"] is True
    assert arguments["enable_chunked_prefill"] is False


def test_worker_extension_is_found_by_its_name() -> None:
    module, _, name = cpu_engine_arguments({})["worker_extension_cls"].rpartition(".")
    assert (module, name) == (cpu_engine.__name__, "CpuWorkerExtension")


def test_engine_core_runs_the_model_itself() -> None:
    """Named by its path: vLLM turns the short name "uni" into a process more on a CPU."""
    named = VllmConfig(parallel_config=ParallelConfig(distributed_executor_backend=cpu_engine.EXECUTOR))
    assert cpu_engine_arguments({"distributed_executor_backend": "uni"})["distributed_executor_backend"] == (
        cpu_engine.EXECUTOR
    )
    assert Executor.get_class(named) is OneProcessExecutor


@pytest.mark.parametrize(("cores", "threads"), [([[0, 1, 2]], 3), ([], 5)], ids=["bound by vLLM", "unbound"])
def test_model_gets_the_threads_that_vllm_would_give_its_worker(
    monkeypatch: pytest.MonkeyPatch, cores: list[list[int]], threads: int
) -> None:
    given: list[int] = []
    monkeypatch.setattr(cpu_executor, "OMPProcessManager", lambda config: SimpleNamespace(cpu_lists=cores))
    monkeypatch.setattr(UniProcExecutor, "_init_executor", lambda self: given.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    torch.set_num_threads(5)
    try:
        OneProcessExecutor(VllmConfig())
    finally:
        torch.set_num_threads(before)
    assert given == [threads]


# -- weight sync --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["init_process_group", "update_weight"])
def test_worker_methods_have_the_hosts_signature(host_source: Any, name: str) -> None:
    expected = host_source.parameters(WORKER, f"WorkerWrap.{name}").replace("=", "").split(", ")
    assert list(inspect.signature(getattr(CpuWorkerExtension, name)).parameters) == expected


def test_worker_extension_hides_nothing_of_vllms_worker() -> None:
    """vLLM refuses an extension that has an attribute of the worker. (Importing the worker would change torch.)"""
    ours = {name for name in dir(CpuWorkerExtension) if not name.startswith("__")}
    workers = Path(vllm.__file__).parent / "v1" / "worker"
    for file, name in (("cpu_worker.py", "CPUWorker"), ("gpu_worker.py", "Worker"), ("worker_base.py", "WorkerBase")):
        (worker,) = [n for n in ast.parse((workers / file).read_text()).body if getattr(n, "name", None) == name]
        theirs = {n.name for n in ast.walk(worker) if isinstance(n, ast.FunctionDef)}
        assert theirs, f"vLLM's {file} has no methods in {name}"
        assert not ours & theirs


def test_layerwise_reload_is_there() -> None:
    assert list(inspect.signature(layerwise.initialize_layerwise_reload).parameters) == ["model"]
    finalize = inspect.signature(layerwise.finalize_layerwise_processing)
    assert list(finalize.parameters) == ["model", "model_config"]
    inspect.signature(layerwise.finalize_layerwise_reload).bind("model", "model_config")


class TinyModel(torch.nn.Module):
    """Two parameters and vLLM's way to load them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2, 2, bias=False)
        self.second = torch.nn.Linear(2, 1, bias=False)

    def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            parameter = self.get_parameter(name)
            getattr(parameter, "weight_loader", default_weight_loader)(parameter, weight)


def test_update_weight_goes_through_vllms_layerwise_reload() -> None:
    """Two syncs of two parameters each, sent in half precision to a model in single; the last one closes the sync."""
    model = TinyModel().requires_grad_(False)
    layerwise.record_metadata_for_reloading(model)
    worker = CpuWorkerExtension()
    worker.model_runner, worker.model_config = SimpleNamespace(model=model), SimpleNamespace(dtype=torch.float32)
    worker.vllm_config = VllmConfig()
    for sync in (0.0, 1.0):
        sent = {
            "first.weight": torch.arange(4.0).reshape(2, 2) + sync,
            "second.weight": torch.full((1, 2), 0.5) - sync,
        }
        arriving = iter(sent.values())
        worker._sync_group = SimpleNamespace(broadcast=lambda tensor, src, a=arriving: tensor.copy_(next(a)))
        for count, (name, weight) in enumerate(sent.items(), start=1):
            worker.update_weight(name, torch.bfloat16, weight.shape, empty_cache=count == len(sent))
            assert worker._sync_open is (count < len(sent))
        assert {name: p.tolist() for name, p in model.named_parameters()} == {n: w.tolist() for n, w in sent.items()}
        assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_host_marks_the_last_parameter_of_a_sync(host_source: Any) -> None:
    """`empty_cache` closes the reload; without the mark the weights would stay in their loaders."""
    text = host_source.text("trainer/ray/ppo_actor.py", "ActorPPOTrainer.broadcast_to_vllm")
    assert "engine.update_weight.remote(name, dtype=param.dtype, shape=shape, empty_cache=count == num_params)" in text


def test_gloo_group_is_made_by_vllm() -> None:
    function = vllm_distributed.stateless_init_torch_distributed_process_group
    assert list(inspect.signature(function).parameters)[:5] == ["host", "port", "rank", "world_size", "backend"]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def receive(port: int, pipe: Connection) -> None:
    """An engine's worker: rank 1 of the weight-sync group, two parameters of a sync."""
    group = gloo_broadcast_group("127.0.0.1", port, 1, 2)
    for shape, dtype in (((2, 3), torch.float32), ((4,), torch.bfloat16)):
        tensor = torch.zeros(shape, dtype=dtype)
        group.broadcast(tensor, src=0)
        pipe.send((tensor.float().tolist(), str(tensor.dtype)))


def test_broadcast_between_two_processes() -> None:
    """The trainer calls it as it calls its NCCL communicator, with parameters that require gradients."""
    port, context = free_port(), multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    worker = context.Process(target=receive, args=(port, theirs), daemon=True)
    worker.start()
    try:
        group = gloo_broadcast_group("127.0.0.1", port, 0, 2, torch.cuda.current_device())
        weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
        half = torch.tensor([0.5, 1.5, -2.0, 0.0], dtype=torch.bfloat16)
        group.broadcast(weight, src=0, stream=torch.cuda.current_stream())
        group.broadcast(half, src=0, stream=None)
        assert ours.poll(20)
        assert ours.recv() == ([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], "torch.float32")
        assert ours.recv() == ([0.5, 1.5, -2.0, 0.0], "torch.bfloat16")
    finally:
        worker.join(10)
        worker.kill()
    assert worker.exitcode == 0


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
    monkeypatch.setattr(vllm_plugin.ctypes, "CDLL", None)
    vllm_plugin.register()


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


def test_engine_process_ends_with_its_parent() -> None:
    """The parent is killed as a Ray worker is: without a chance to end its children."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    child = psutil.Process(int(parent.stdout.readline()))
    try:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(5)
        _, alive = psutil.wait_procs([child], timeout=5)
        assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    finally:
        parent.stdout.close()
        if child.is_running():
            child.kill()


# -- import hooks -------------------------------------------------------------------------------------------------


@pytest.fixture
def module_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module on the path, with a name of its own: hooks stay for the life of a process."""
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"adapted_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text("VALUE = 1\ndef f(): return VALUE\n")
    yield name
    sys.modules.pop(name, None)


def adapt(module: ModuleType) -> None:
    module.VALUE += 1


def test_module_is_adapted_right_after_its_import_and_not_before(module_file: str) -> None:
    on_import({module_file: adapt})
    assert module_file not in sys.modules
    module = __import__(module_file)
    assert module.f() == 2
    assert __import__(module_file).f() == 2, "once"
    assert inspect.getsource(module.f) == "def f(): return VALUE\n", "the real loader still answers"


def test_loaded_module_is_adapted_at_once(module_file: str) -> None:
    module = __import__(module_file)
    on_import({module_file: adapt})
    assert module.f() == 2


def test_two_hooks_on_one_module_both_run(module_file: str) -> None:
    on_import({module_file: adapt})
    on_import({module_file: adapt})
    assert __import__(module_file).f() == 3


def test_absent_module_stays_absent(module_file: str) -> None:
    on_import({"no_such_module_at_all": adapt})
    with pytest.raises(ModuleNotFoundError):
        __import__("no_such_module_at_all")
