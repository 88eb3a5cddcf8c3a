"""OpenRLHF's own weight updates on a CPU: one call per parameter, NCCL replaced by gloo, CUDA IPC by mapped files.

Runs of the package do not use it. It is what they are compared with, by the parity test and by
`benchmarks/weight_sync.py`. `activate` is for Ray's workers; the extension is found by name inside vLLM's processes.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Sequence
from math import prod
from typing import Any

from wrapt import register_post_import_hook

from openrlhf_ada.platforms import without_gpu

EXTENSION = "host_weight_sync.HostWorkerExtension"


class GlooBroadcastGroup:
    """Rank 0 is the policy, the others are engine workers. Same call as OpenRLHF's NCCL communicator."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def broadcast(self, tensor: Any, src: int, stream: object = None) -> None:
        self._group.broadcast(tensor.detach(), src).wait()


def gloo_broadcast_group(
    master_address: str, master_port: int, rank: int, world_size: int, device: object = None
) -> GlooBroadcastGroup:
    """In place of OpenRLHF's `stateless_init_process_group`."""
    from vllm.distributed.utils import stateless_init_torch_distributed_process_group

    group = stateless_init_torch_distributed_process_group(master_address, master_port, rank, world_size, "gloo")
    return GlooBroadcastGroup(group)


class HostWorkerExtension:
    """OpenRLHF's worker methods.

    vLLM re-packs linear weights for oneDNN after loading, so the update goes through its layerwise reload, opened by
    the first parameter and closed by the one OpenRLHF marks last.
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
        import torch

        rank = torch.distributed.get_rank() + rank_offset
        self._sync_group = gloo_broadcast_group(master_address, master_port, rank, world_size)

    def update_weight(self, name: str, dtype: Any, shape: Sequence[int], empty_cache: bool = False) -> None:
        import torch

        weight = torch.empty(shape, dtype=dtype)
        self._sync_group.broadcast(weight, src=0)
        self._load(name, weight, is_last=empty_cache)

    def update_weight_cuda_ipc(
        self, name: str, dtype: Any, shape: Sequence[int], ipc_handles: Any = None, empty_cache: bool = False
    ) -> None:
        import torch

        (path,) = ipc_handles.values()
        weight = torch.from_file(path, shared=True, size=prod(shape), dtype=dtype).view(*shape)
        self._load(name, weight, is_last=empty_cache)

    def _load(self, name: str, weight: Any, *, is_last: bool) -> None:
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload.layerwise import (
            finalize_layerwise_reload,
            initialize_layerwise_reload,
        )

        model = self.model_runner.model
        with set_current_vllm_config(self.vllm_config):
            if not self._sync_open:
                initialize_layerwise_reload(model)
                self._sync_open = True
            model.load_weights(weights=[(name, weight.to(self.model_config.dtype))])
            if is_last:
                finalize_layerwise_reload(model, self.model_config)
                self._sync_open = False


class MappedParameter:
    """A parameter whose copy, which OpenRLHF's IPC makes of each, is a file that engines can map: `handle`."""

    requires_grad = True
    handle = ""

    def __init__(self, parameter: Any) -> None:
        self._tensor, self.shape, self.dtype = parameter.data, parameter.shape, parameter.dtype

    @property
    def data(self) -> MappedParameter:
        return self

    def clone(self) -> MappedParameter:
        import torch

        with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="ada-host-", delete=False) as file:
            file.truncate(self._tensor.nbytes)
        copied = MappedParameter(self._tensor)
        copied.handle = file.name
        mapped = torch.from_file(file.name, shared=True, size=self._tensor.numel(), dtype=self.dtype)
        mapped.copy_(self._tensor.view(-1))
        weakref.finalize(copied, os.unlink, file.name)
        return copied


def share_by_files(set_attribute: Any) -> None:
    """OpenRLHF's policy shares `MappedParameter`s."""
    from openrlhf.trainer.ray import ppo_actor
    from torch.multiprocessing import reductions

    set_attribute(ppo_actor, "get_physical_gpu_id", lambda: "GPU-0")
    set_attribute(reductions, "reduce_tensor", lambda copied: copied.handle)


def activate() -> None:
    """As `without_gpu.activate`, and OpenRLHF's weight update works."""
    activate_policy()
    register_post_import_hook(_adapt_engine, "openrlhf.trainer.ray.vllm_engine")


def activate_policy() -> None:
    """The policy's end of it only."""
    without_gpu.activate()
    register_post_import_hook(_adapt_group, "openrlhf.utils.distributed_util")


def _adapt_group(distributed_util: Any) -> None:
    distributed_util.stateless_init_process_group = gloo_broadcast_group


def _adapt_engine(vllm_engine: Any) -> None:
    import ray

    from openrlhf_ada.host.classes import unwrap_ray_class

    base = unwrap_ray_class(vllm_engine.RolloutRayActor)

    class HostRolloutActor(base):
        async def __init__(self, *args: Any, **kwargs: Any) -> None:
            await super().__init__(*args, **kwargs | {"worker_extension_cls": EXTENSION})

    vllm_engine.RolloutRayActor = ray.remote(HostRolloutActor)
