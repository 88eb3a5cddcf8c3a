"""One test per change that platforms/cpu.py makes: what it replaces is still there, and with it OpenRLHF's call works.

tests/conftest.py has activated the CPU platform. The policy's forward pass is in
test_cpu_forward_shim.py, the engine's half in test_cpu_engine_shims.py.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import deepspeed
import openrlhf.utils.deepspeed.deepspeed as host_strategy
import pytest
import torch
from openrlhf.models import actor as host_actor
from openrlhf.models import ring_attn_utils
from openrlhf.trainer.ppo_utils import NaiveReplayBuffer
from openrlhf.utils import utils as host_utils
from transformers.utils import is_flash_attn_2_available

from openrlhf_ada.platforms import without_gpu
from openrlhf_ada.platforms.without_gpu import DTYPE_VARIABLE, compute_dtype

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU platform is never on beside a GPU")


def replaced(function: Any, name: str) -> Any:
    """OpenRLHF's own function, which the shim calls."""
    return inspect.getclosurevars(function).nonlocals[name]


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


# -- flash_attn ---------------------------------------------------------------------------------------------------


def test_flash_attn_stub_has_the_hosts_imports(host_source: Any) -> None:
    tree = host_source.module("models/ring_attn_utils.py")
    wanted = {
        node.module: tuple(sorted(alias.name for alias in node.names))
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flash_attn")
    }
    assert wanted == {name: names for name, names in without_gpu._FLASH_ATTN_NAMES.items() if names}


def test_flash_attn_stub_fails_when_called() -> None:
    for name in ("unpad_input", "pad_input", "index_first_axis", "all_gather"):
        with pytest.raises(RuntimeError, match=rf"{name}: .*flash-attn.*--ds\.packing_samples"):
            getattr(ring_attn_utils, name)(torch.zeros(1))


def test_flash_attn_stub_is_not_mistaken_for_the_real_one() -> None:
    """transformers probes for it; OpenRLHF's log-probabilities try a kernel of it and fall back on ImportError."""
    assert not is_flash_attn_2_available()
    with pytest.raises(ImportError):
        importlib.import_module("flash_attn.ops.triton.cross_entropy")


# -- torch.cuda ---------------------------------------------------------------------------------------------------


def test_torch_cuda_functions_exist_and_do_nothing() -> None:
    names = ("set_device", "empty_cache", "synchronize", "current_stream")
    assert {*names, "current_device"} <= set(torch.cuda.__all__)
    functions = [getattr(torch.cuda, name) for name in names]
    assert [f(0) for f in functions] == [None] * len(names)
    assert len(set(map(id, functions))) == len(names), "torch.compile keeps rules per function object"


def test_current_device_is_a_device_and_a_number() -> None:
    """OpenRLHF moves tensors to it, and also writes it into f"cuda:{...}"."""
    device = torch.cuda.current_device()
    assert torch.ones(2).to(device).device.type == "cpu"
    assert torch.zeros((), device=device).device.type == "cpu"
    assert torch.device(f"cuda:{device}").index == 0
    buffer = NaiveReplayBuffer(sample_batch_size=1)
    assert buffer.target_device == torch.device("cuda:0")


# -- DeepSpeed ----------------------------------------------------------------------------------------------------


@pytest.fixture
def process_group(tmp_path: Any) -> Any:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_device_mesh_of_the_strategy_is_on_the_cpu(process_group: None, host_source: Any) -> None:
    assert "init_device_mesh('cuda', (" in host_source.text(
        "utils/deepspeed/deepspeed.py", "DeepspeedStrategy.setup_distributed"
    )
    mesh = host_strategy.init_device_mesh("cuda", (1, 1, 1), mesh_dim_names=("dp", "sp", "tp"))
    assert mesh.device_type == "cpu"
    assert mesh["dp"].size() == 1
    assert host_strategy.init_device_mesh is torch.distributed.device_mesh.init_device_mesh
    assert torch.distributed.init_device_mesh is torch.distributed.device_mesh.init_device_mesh
    assert parameters(replaced(host_strategy.init_device_mesh, "init"))[:2] == ["device_type", "mesh_shape"]


def test_shared_memory_collectives_are_not_compiled() -> None:
    """DeepSpeed looks the name up in this table before it builds the operator."""
    assert deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] is False
    builder = importlib.import_module("deepspeed.ops.op_builder.cpu.comm").ShareMemCommBuilder
    assert builder.NAME == "deepspeed_shm_comm"
    assert "__compatible_ops__" in inspect.getsource(importlib.import_module("deepspeed.comm.torch"))


def test_deepspeed_runs_on_the_cpu() -> None:
    assert os.environ["DS_ACCELERATOR"] == "cpu"
    assert deepspeed.get_accelerator().device_name() == "cpu"


TRAIN_CONFIG = {"offload": False, "optim_config": {"type": "AdamW", "params": {"lr": 1e-3}}}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_deepspeed_uses_the_processors_precision(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DTYPE_VARIABLE, dtype)
    half = dtype == "bfloat16"
    for config in (host_strategy.get_train_ds_config(**TRAIN_CONFIG), host_strategy.get_eval_ds_config(offload=False)):
        assert config["bf16"]["enabled"] is half
        assert config["fp16"]["enabled"] is False


def test_adamw_is_torchs() -> None:
    config = host_strategy.get_train_ds_config(**TRAIN_CONFIG)
    assert config["optimizer"] == {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True, "fused": True}}
    assert "optimizer" not in host_strategy.get_train_ds_config(offload=False)
    muon = {"type": "Muon", "params": {}}
    assert host_strategy.get_train_ds_config(offload=False, optim_config=muon)["optimizer"] == {
        "type": "Muon",
        "params": {},
    }


def test_host_asks_for_configurations_by_keyword(host_source: Any) -> None:
    """The shims take keywords only."""
    tree = host_source.module("utils/deepspeed/deepspeed.py")
    names = ("get_train_ds_config", "get_eval_ds_config")
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", None) in names]
    assert len(calls) == 2
    assert all(not call.args for call in calls)


# -- precision ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "bf16"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)], ids=["float32", "bfloat16"]
)
def test_model_is_loaded_in_what_the_processor_computes(
    chosen: str, bf16: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DTYPE_VARIABLE, chosen)
    assert host_utils.convert_to_torch_dtype("bf16") is bf16
    assert parameters(replaced(host_utils.convert_to_torch_dtype, "convert")) == ["param_dtype"]


def test_host_looks_the_conversion_up_when_it_is_called(host_source: Any) -> None:
    """`from ... import` inside the function finds the replaced one."""
    text = host_source.text("models/actor.py", "Actor.__init__")
    assert "from openrlhf.utils.utils import convert_to_torch_dtype" in text


def test_compute_dtype_is_bfloat16_only_with_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DTYPE_VARIABLE, raising=False)
    with open("/proc/cpuinfo") as file:
        flags = next((line.split() for line in file if line.startswith("flags")), [])
    native = "avx512_bf16" in flags or "amx_bf16" in flags
    assert compute_dtype() == ("bfloat16" if native else "float32")
    monkeypatch.setenv(DTYPE_VARIABLE, "auto")
    assert compute_dtype() == ("bfloat16" if native else "float32")


@pytest.mark.parametrize("value", ["fp32", "", "float16"])
def test_compute_dtype_refuses_another_value(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DTYPE_VARIABLE, value)
    with pytest.raises(ValueError, match=f"{DTYPE_VARIABLE} is {value!r}: .*auto, float32 or bfloat16"):
        compute_dtype()


# -- processes ----------------------------------------------------------------------------------------------------


def test_entropy_needs_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--actor.entropy_coef`: OpenRLHF compiles it, we call the function inside."""
    import torch
    from openrlhf.models import actor, utils

    assert utils.compute_entropy is not actor.compute_entropy, "OpenRLHF no longer compiles it: drop the shim"
    monkeypatch.setenv("CXX", "/no/such/compiler")
    logits = torch.randn(2, 3, 5)
    expected = torch.distributions.Categorical(logits=logits).entropy()
    torch.testing.assert_close(actor.compute_entropy(logits), expected)


def test_activating_twice_changes_nothing() -> None:
    finders, forward = list(sys.meta_path), host_actor.Actor.forward
    without_gpu.activate()
    assert sys.meta_path == finders
    assert host_actor.Actor.forward is forward


def test_setup_hook_is_the_function() -> None:
    module, _, name = without_gpu.SETUP_HOOK.rpartition(".")
    assert getattr(importlib.import_module(module), name) is without_gpu.activate


def test_worker_environment_leaves_the_users_values(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in without_gpu.worker_environment():
        monkeypatch.delenv(name, raising=False)
    defaults = without_gpu.worker_environment()
    assert defaults["DS_ACCELERATOR"] == "cpu"
    assert int(defaults[without_gpu.THREADS_VARIABLE]) == len(os.sched_getaffinity(0))
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    assert without_gpu.worker_environment() == defaults | {"VLLM_CPU_KVCACHE_SPACE": "7"}


@pytest.mark.slow
def test_sampling_needs_no_compiler(tmp_path: Path) -> None:
    """vLLM compiles the sampling of answers without a seed, which mode off's are: without g++ its engine ends."""
    program = (
        "import torch; from vllm.v1.sample.ops.topk_topp_sampler import compiled_random_sample\n"
        "print(compiled_random_sample(torch.tensor([[0.0, 99.0], [99.0, 0.0]])).tolist())"
    )
    folder = str(tmp_path)
    bare = {"PATH": folder, "HOME": folder, "TORCHINDUCTOR_CACHE_DIR": folder, "VLLM_LOGGING_LEVEL": "ERROR"}
    command, environ = [sys.executable, "-c", program], bare | without_gpu.worker_environment()
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("[1, 0]\n", 0), done.stderr


def test_environment_names_are_vllms() -> None:
    import vllm.envs

    names = [name for name in without_gpu.worker_environment() if name.startswith("VLLM_")]
    assert names
    assert set(names) <= set(vllm.envs.environment_variables)
