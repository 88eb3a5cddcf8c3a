"""Where an engine's model runs on a CPU: in its core's own process, or in one process per tensor-parallel worker."""

from __future__ import annotations

import multiprocessing
import os

import torch
from vllm.utils.ompmultiprocessing import OMPProcessManager
from vllm.v1.executor.abstract import Executor
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from openrlhf_ada.platforms import template
from openrlhf_ada.platforms.cpu import ENGINES_VARIABLE


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
        if template.running():
            multiprocessing.set_executable(template.running())
        super()._init_executor()
