"""Everything that must change for OpenRLHF to run where torch sees no GPU, each change with its reason.

`activate` runs in the driver and, as Ray's worker setup hook, in every Ray worker. vLLM's own sub-processes are not
Ray workers: what they need is in `engine`. Contract tests (tests/contract/test_cpu_shims.py) fail by name when the
host no longer has what a shim stands on.
"""

from __future__ import annotations

import importlib.machinery
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from openrlhf_ada.platforms.without_gpu.forward import SHARE_VARIABLE, adapt_actor

SETUP_HOOK = f"{__name__}.activate"
"""Dotted name that Ray runs in each worker process."""

DTYPE_VARIABLE = "OPENRLHF_ADA_CPU_DTYPE"
"""auto (default), float32 or bfloat16: precision of training and engine."""

THREADS_VARIABLE = "OPENRLHF_ADA_TORCH_THREADS"
"""Threads of each training process. Ray gives every actor one OpenMP thread, whatever the machine has."""

ENGINES_VARIABLE = "OPENRLHF_ADA_ENGINES"
"""Engines that share this machine's cores. Threads of two that wait for each other's take several times as long."""

_KEEP_FREED_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""For glibc: what a step frees is used again by the next. Given back to the system, every page must be mapped anew,
which in a virtual machine is a quarter of a step (docs/cpu.md). One arena, since each keeps its own."""

_FLASH_ATTN_NAMES = {
    "flash_attn": (),
    "flash_attn.bert_padding": ("index_first_axis", "pad_input", "rearrange", "unpad_input"),
    "flash_attn.utils": (),
    "flash_attn.utils.distributed": ("all_gather",),
}
"""What openrlhf.models.ring_attn_utils imports at module top, used or not."""

_activated = False


def activate() -> None:
    """Make this process ready to run OpenRLHF on a CPU. Does nothing the second time."""
    global _activated
    if _activated:
        return
    _activated = True
    from wrapt import register_post_import_hook

    # DeepSpeed would find no GPU by itself, but warns about it in every process.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    install_flash_attn_stub()
    # Importing torch or OpenRLHF only to adapt them would cost every worker seconds, whether it needs them or not.
    for module, adapt in _ADAPTERS.items():
        register_post_import_hook(adapt, module)


def is_needed() -> bool:
    """Does torch see no GPU in this process?"""
    import torch

    return not torch.cuda.is_available()


def compute_dtype() -> str:
    """ "float32" or "bfloat16": the wider one unless the processor multiplies bfloat16 itself.

    Emulated bfloat16 is tens of times slower than float32 (docs/cpu.md). Raises ValueError on another value of
    OPENRLHF_ADA_CPU_DTYPE.
    """
    chosen = os.environ.get(DTYPE_VARIABLE, "auto")
    if chosen in ("float32", "bfloat16"):
        return chosen
    if chosen != "auto":
        raise ValueError(f"{DTYPE_VARIABLE} is {chosen!r}: expected auto, float32 or bfloat16")
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    native = flags is not None and {"avx512_bf16", "amx_bf16"} & set(flags.group(1).split())
    return "bfloat16" if native else "float32"


def worker_environment(num_engines: int = 1) -> dict[str, str]:
    """Environment of every Ray worker on a CPU, inherited by vLLM's sub-processes. A value that the user set wins.

    `num_engines`: how many share this machine.
    """
    defaults = {
        "DS_ACCELERATOR": "cpu",
        ENGINES_VARIABLE: str(num_engines),
        THREADS_VARIABLE: str(len(os.sched_getaffinity(0))),
        SHARE_VARIABLE: "1",
        # GiB of KV cache per engine: rollouts on a CPU are short.
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        # Policy and engine take turns on the same cores: a thread that waits for work spins for a tenth of a
        # millisecond, which saves waking it up, and no longer, which would take the other's core.
        "GOMP_SPINCOUNT": "100000",
        # vLLM compiles how it samples answers without a seed, as in mode off, which needs a C++ compiler.
        "TORCH_COMPILE_DISABLE": "1",
    } | _KEEP_FREED_MEMORY
    return {name: os.environ.get(name, value) for name, value in defaults.items()}


def install_flash_attn_stub() -> None:
    """flash-attn needs a CUDA compiler, and OpenRLHF imports it at module top: give it names that fail when called.

    Contract: test_cpu_shims.test_flash_attn_stub_has_the_hosts_imports
    """
    for name, functions in _FLASH_ATTN_NAMES.items():
        module = ModuleType(name)
        # transformers probes with find_spec, which raises on a module without a spec.
        module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None, is_package=True)
        module.__path__ = []
        for function in functions:
            setattr(module, function, _absent(f"{name}.{function}"))
        sys.modules[name] = module


def _absent(name: str) -> Any:
    def fail(*_args: object, **_kwargs: object) -> NoReturn:
        raise RuntimeError(
            f"{name}: a CPU has no flash-attn. Leave out --ds.packing_samples, --train.dynamic_batch_enable, "
            f"--ds.ring_attn_size."
        )

    return fail


class _CpuDevice(str):
    """`torch.cuda.current_device()` on a CPU. OpenRLHF uses it both as a device and inside f"cuda:{...}"."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        # NaiveReplayBuffer names a device "cuda:<this>" that it never moves anything to.
        return format("0", spec)


def adapt_torch(torch: Any) -> None:
    """OpenRLHF's actors call these unconditionally; on a CPU there is nothing to select, wait for or empty.

    Contract: test_cpu_shims.test_torch_cuda_functions_exist_and_do_nothing
    """
    torch.cuda.current_device = lambda: _CpuDevice("cpu")
    for name in ("set_device", "empty_cache", "synchronize", "current_stream"):
        setattr(torch.cuda, name, _nothing())
    threads = os.environ.get(THREADS_VARIABLE)
    if threads:
        torch.set_num_threads(int(threads))


def _nothing() -> Any:
    """A new do-nothing function each time: torch.compile keeps rules per function object and refuses one with two."""

    def nothing(*_args: object, **_kwargs: object) -> None:
        return None

    return nothing


def adapt_device_mesh(device_mesh: Any) -> None:
    """DeepspeedStrategy builds its mesh of "cuda" devices by name.

    Contract: test_cpu_shims.test_device_mesh_of_the_strategy_is_on_the_cpu
    """
    init = device_mesh.init_device_mesh

    def init_on_cpu(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return init("cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    device_mesh.init_device_mesh = init_on_cpu
    # torch re-exports the name from the package, where later imports would find the original.
    if "torch.distributed" in sys.modules:
        sys.modules["torch.distributed"].init_device_mesh = init_on_cpu  # type: ignore[attr-defined]


def adapt_deepspeed_ops(ops: Any) -> None:
    """DeepSpeed compiles its shared-memory collectives when it starts, which needs a C++ compiler and half a minute.

    Without them it uses gloo, and a CPU run has little to reduce.
    Contract: test_cpu_shims.test_shared_memory_collectives_are_not_compiled
    """
    ops.__compatible_ops__["deepspeed_shm_comm"] = False


def adapt_model_dtype(host_utils: Any) -> None:
    """OpenRLHF knows half precisions only (`--ds.param_dtype`); load weights in what the processor computes.

    Contract: test_cpu_shims.test_host_looks_the_conversion_up_when_it_is_called
    """
    convert = host_utils.convert_to_torch_dtype

    def convert_on_cpu(param_dtype: str) -> Any:
        import torch

        return torch.float32 if compute_dtype() == "float32" else convert(param_dtype)

    host_utils.convert_to_torch_dtype = convert_on_cpu


def adapt_strategy(deepspeed_strategy: Any) -> None:
    """DeepSpeed in the processor's precision, with torch's AdamW and one gathering of weights at a time.

    Contract: test_sharded_weights.test_weights_in_two_processes_are_one_model
    Contract: test_cpu_shims.test_host_asks_for_configurations_by_keyword
    """
    train_config, eval_config = deepspeed_strategy.get_train_ds_config, deepspeed_strategy.get_eval_ds_config

    def train_config_on_cpu(**kwargs: Any) -> dict[str, Any]:
        config = on_cpu(train_config(**kwargs))
        optimizer = config.get("optimizer")
        if optimizer is not None and optimizer["type"] == "AdamW":
            # DeepSpeed's own AdamW for CPUs is compiled on first use and needs a C++ compiler.
            # Unfused, torch's reads and writes all weights once for each of its operations.
            optimizer["params"] |= {"torch_adam": True, "fused": True}
        return config

    deepspeed_strategy.get_train_ds_config = train_config_on_cpu
    deepspeed_strategy.get_eval_ds_config = lambda **kwargs: on_cpu(eval_config(**kwargs))


def on_cpu(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration of DeepSpeed, with what the processor needs."""
    # Of several gatherings DeepSpeed waits for the last alone. On GPUs they end in order; with gloo, they do not.
    config["zero_optimization"]["stage3_allgather_sequential"] = True
    if compute_dtype() == "float32":
        config["bf16"]["enabled"] = config["fp16"]["enabled"] = False
    return config


def adapt_engine(vllm_engine: Any) -> None:
    """Rollout actors start vLLM with CPU settings.

    Contract: test_cpu_engine_shims.test_rollout_actor_is_the_hosts_with_our_arguments
    """
    from openrlhf_ada.platforms.without_gpu.engine import cpu_rollout_actor

    vllm_engine.RolloutRayActor = cpu_rollout_actor(vllm_engine.RolloutRayActor)


_ADAPTERS: dict[str, Callable[[Any], None]] = {
    "torch": adapt_torch,
    "torch.distributed.device_mesh": adapt_device_mesh,
    "deepspeed.ops": adapt_deepspeed_ops,
    "openrlhf.utils.utils": adapt_model_dtype,
    "openrlhf.utils.deepspeed.deepspeed": adapt_strategy,
    "openrlhf.models.actor": adapt_actor,
    "openrlhf.trainer.ray.vllm_engine": adapt_engine,
}


def ask_for_amx() -> None:
    """Before vLLM computes anything: a process must ask Linux for the registers of Intel's AMX before it uses them.

    vLLM's attention uses AMX where the processor has it, and leaves the asking to a matrix product of more than four
    rows. If the first step of an engine has fewer tokens, there was none, and the process is ended by SIGILL. Where
    Linux refuses, vLLM is told that there is no AMX.
    Contract: test_cpu_engine_shims.test_vllm_uses_amx_without_asking_for_it
    """
    import torch

    if torch.cpu._is_amx_tile_supported() and not torch.cpu._init_amx():
        torch.cpu._is_amx_tile_supported = lambda: False
