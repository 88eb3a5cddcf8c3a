"""vLLM on a CPU: the rollout actor's engine settings."""

from __future__ import annotations

import multiprocessing
from typing import Any

from openrlhf_ada.host.classes import unwrap_ray_class
from openrlhf_ada.platforms import template
from openrlhf_ada.platforms.cpu_dtype import compute_dtype

EXECUTOR = "openrlhf_ada.platforms.cpu_executor.OneProcessExecutor"
"""By name: the module imports vLLM, and the engine core imports it itself."""

TENSOR_PARALLEL_EXECUTOR = "openrlhf_ada.platforms.cpu_executor.TensorParallelExecutor"
"""For engines of several workers."""


def cpu_rollout_actor(host_actor: Any) -> Any:
    """The host's Ray rollout actor with engine arguments for a CPU."""
    import ray

    base = unwrap_ray_class(host_actor)

    class CpuRolloutRayActor(base):
        async def __init__(self, *args: Any, **kwargs: Any) -> None:
            if template.running():
                # vLLM spawns its engine core by multiprocessing.
                multiprocessing.set_executable(template.running())
            await super().__init__(*args, **cpu_engine_arguments(kwargs))

    return ray.remote(CpuRolloutRayActor)


def cpu_engine_arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The host's engine arguments, changed where they mean something else on a CPU."""
    workers = kwargs.get("tensor_parallel_size", 1)
    return kwargs | {
        "dtype": compute_dtype(),
        # The flag is a share of a GPU's memory. On a CPU it would reserve that share of the machine, per engine; the
        # cache size is given in bytes instead (VLLM_CPU_KVCACHE_SPACE, set by `cpu.worker_environment`).
        "gpu_memory_utilization": 0.2,
        # vLLM's default of 128 makes attention over short sequences twice as slow (docs/cpu.md).
        "block_size": 32,
        # Its own process for the model would load torch and vLLM once more before the first token.
        "distributed_executor_backend": EXECUTOR if workers == 1 else TENSOR_PARALLEL_EXECUTOR,
        # The core dies when a prompt with a seed is computed in parts: vLLM then winds the generator back, which those
        # of a CPU cannot.
        "enable_chunked_prefill": False,
        # Compiling takes longer than a short run and needs a C++ compiler.
        "enforce_eager": True,
    }
