"""vLLM on a CPU: the rollout actor's engine settings, and where an engine's model runs: in its core's own process, or
in one process per tensor-parallel worker."""

from __future__ import annotations

import os
from typing import Any

import torch
from vllm.utils.ompmultiprocessing import OMPProcessManager
from vllm.v1.executor.abstract import Executor
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from openrlhf_ada.host.classes import unwrap_ray_class
from openrlhf_ada.platforms.without_gpu import ENGINES_VARIABLE, compute_dtype

EXECUTOR, TENSOR_PARALLEL_EXECUTOR = f"{__name__}.OneProcessExecutor", f"{__name__}.TensorParallelExecutor"
"""By name, for engines of one worker and of several: the engine's core imports them itself."""


def cpu_rollout_actor(host_actor: Any) -> Any:
    """OpenRLHF's Ray rollout actor with engine arguments for a CPU."""
    import ray

    base = unwrap_ray_class(host_actor)

    class CpuRolloutRayActor(base):
        async def __init__(self, *args: Any, **kwargs: Any) -> None:
            await super().__init__(*args, **cpu_engine_arguments(kwargs))

    return ray.remote(CpuRolloutRayActor)


def cpu_engine_arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
    """OpenRLHF's engine arguments, changed where they mean something else on a CPU."""
    workers = kwargs.get("tensor_parallel_size", 1)
    return kwargs | {
        # vLLM's default of 128 makes attention over short sequences twice as slow (docs/cpu.md).
        "block_size": kwargs.get("block_size", 32),
        "dtype": compute_dtype(),
        # The flag is a share of a GPU's memory. On a CPU it would reserve that share of the machine, per engine; the
        # cache size is given in bytes instead (VLLM_CPU_KVCACHE_SPACE, set by `worker_environment`).
        "gpu_memory_utilization": 0.2,
        # Its own process for the model would load torch and vLLM once more before the first token.
        "distributed_executor_backend": EXECUTOR if workers == 1 else TENSOR_PARALLEL_EXECUTOR,
        # The core dies when a prompt with a seed is computed in parts: vLLM then winds the generator back, which those
        # of a CPU cannot.
        "enable_chunked_prefill": False,
        # Compiling takes longer than a short run and needs a C++ compiler.
        "enforce_eager": True,
    }


class NoLargerCacheThanNeeded(Executor):
    """Reserves no more than twice what all sequences of an engine take, each as long as may be.

    vLLM writes to all that it reserves. Twice, since prompts stay there for samples that come later.
    Contract: test_cpu_engine_shims.test_cache_is_no_larger_than_all_sequences_need
    """

    def determine_available_memory(self) -> list[int]:
        sequences = 2 * self.vllm_config.scheduler_config.max_num_seqs
        needed = [
            sequences * sum(spec.max_memory_usage_bytes(self.vllm_config) for spec in specs.values())
            for specs in self.get_kv_cache_specs()
        ]
        return list(map(min, super().determine_available_memory(), needed))


class OneProcessExecutor(NoLargerCacheThanNeeded, UniProcExecutor):
    """Runs the worker beside the scheduler, as vLLM itself does on one GPU.

    On a CPU vLLM wants a worker process, because OpenMP binds threads to cores only if told before torch is loaded.
    Their number can be set afterwards, and unbound threads suit cores that policy and engine share (docs/cpu.md).
    Contract: test_cpu_engine_shims.test_engine_core_runs_the_model_itself
    """

    def _init_executor(self) -> None:
        cores = OMPProcessManager(self.vllm_config).cpu_lists
        # None: the user asked vLLM to bind nothing (VLLM_CPU_OMP_THREADS_BIND=nobind).
        if cores:
            torch.set_num_threads(max(len(cores[0]) // int(os.environ.get(ENGINES_VARIABLE, "1")), 1))
        super()._init_executor()


class TensorParallelExecutor(NoLargerCacheThanNeeded, MultiprocExecutor):
    """vLLM's own, whose workers talk over gloo and shared memory. OpenRLHF asks for Ray's, which needs GPUs.

    Contract: test_cpu_engine_shims.test_a_tensor_parallel_engine_has_worker_processes
    """

    def _init_executor(self) -> None:
        # vLLM binds each worker to a memory node of its own, and most machines have one.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        super()._init_executor()
