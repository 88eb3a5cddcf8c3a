"""vLLM on a CPU: the rollout actor's engine settings, the worker's weight update, and the gloo group between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openrlhf_ada.platforms.cpu_dtype import compute_dtype
from openrlhf_ada.upstream import unwrap_ray_class

EXECUTOR = "openrlhf_ada.platforms.cpu_executor.OneProcessExecutor"
"""By name: the module imports vLLM, and the engine core imports it itself."""


class GlooBroadcastGroup:
    """Rank 0 is the policy, the others are engine workers. Same call as the host's NCCL communicator."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def broadcast(self, tensor: Any, src: int, stream: object = None) -> None:
        """Broadcast in place; blocks until done. `stream` is the NCCL path's CUDA stream, without meaning here."""
        self._group.broadcast(tensor.detach(), src).wait()


def gloo_broadcast_group(
    master_address: str, master_port: int, rank: int, world_size: int, device: object = None
) -> GlooBroadcastGroup:
    """Join the weight-sync group; blocks until all `world_size` members have joined."""
    from vllm.distributed.utils import stateless_init_torch_distributed_process_group

    group = stateless_init_torch_distributed_process_group(master_address, master_port, rank, world_size, "gloo")
    return GlooBroadcastGroup(group)


class CpuWorkerExtension:
    """Methods that the engine's workers gain on a CPU, called by name over vLLM's collective RPC.

    vLLM mixes this class into its worker, which provides `device`, `model_runner`, `model_config` and `vllm_config`.
    The worker re-packs linear weights for oneDNN after loading, so new weights cannot be copied into place: the update
    is bracketed by vLLM's layerwise reload, opened by the first parameter and closed by the one the host marks last.
    """

    model_runner: Any
    model_config: Any
    vllm_config: Any
    _sync_group: GlooBroadcastGroup
    _sync_open: bool = False

    def init_process_group(
        self,
        master_address: str,
        master_port: int,
        rank_offset: int,
        world_size: int,
        group_name: str,
        backend: str = "gloo",
        use_ray: bool = False,
    ) -> None:
        """Join the weight-sync group; same signature as the host's worker extension."""
        import torch

        rank = torch.distributed.get_rank() + rank_offset
        self._sync_group = gloo_broadcast_group(master_address, master_port, rank, world_size)

    def update_weight(self, name: str, dtype: Any, shape: Sequence[int], empty_cache: bool = False) -> None:
        """Receive one parameter; `empty_cache` is the host's mark of the last one of a sync."""
        import torch
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload.layerwise import (
            finalize_layerwise_reload,
            initialize_layerwise_reload,
        )

        model = self.model_runner.model
        weight = torch.empty(shape, dtype=dtype)
        self._sync_group.broadcast(weight, src=0)
        with set_current_vllm_config(self.vllm_config):
            if not self._sync_open:
                initialize_layerwise_reload(model)
                self._sync_open = True
            model.load_weights(weights=[(name, weight.to(self.model_config.dtype))])
            if empty_cache:
                finalize_layerwise_reload(model, self.model_config)
                self._sync_open = False


def cpu_rollout_actor(host_actor: Any) -> Any:
    """The host's Ray rollout actor with engine arguments for a CPU."""
    import ray

    base = unwrap_ray_class(host_actor)

    class CpuRolloutRayActor(base):
        async def __init__(self, *args: Any, **kwargs: Any) -> None:
            await super().__init__(*args, **cpu_engine_arguments(kwargs))

    return ray.remote(CpuRolloutRayActor)


def cpu_engine_arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The host's engine arguments, changed where they mean something else on a CPU."""
    return kwargs | {
        "dtype": compute_dtype(),
        "worker_extension_cls": f"{__name__}.CpuWorkerExtension",
        # The flag is a share of a GPU's memory. On a CPU it would reserve that share of the machine, per engine; the
        # cache size is given in bytes instead (VLLM_CPU_KVCACHE_SPACE, set by `cpu.worker_environment`).
        "gpu_memory_utilization": 0.2,
        # vLLM's default of 128 makes attention over short sequences twice as slow (docs/cpu.md).
        "block_size": 32,
        # Its own process for the model would load torch and vLLM once more before the first token.
        "distributed_executor_backend": EXECUTOR,
        # The core dies when a prompt with a seed is computed in parts: vLLM then winds the generator back, which those
        # of a CPU cannot.
        "enable_chunked_prefill": False,
        # Compiling takes longer than a short run and needs a C++ compiler.
        "enforce_eager": True,
    }
