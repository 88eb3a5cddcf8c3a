"""NVIDIA's management library as far as it is needed.

It comes with the driver and answers without CUDA: no memory of a GPU is taken, and a driver that is too old for torch
answers as well. Source: NVML API reference.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from openrlhf_ada.host.ray_session import nvml_bindings

GIB = 1 << 30

RELEASE_S = 60.0
"""Seconds in which the driver takes back the memory of a process that died."""

POLL_S = 1.0


class NvmlError(RuntimeError):
    """The library is there, and cannot answer; the text is its own."""


class NoNvmlError(NvmlError):
    """There is no such library, so no driver is installed here."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """`capability`: CUDA's compute capability. `free`, `total`: bytes of memory."""

    name: str
    uuid: str
    capability: tuple[int, int]
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class Driver:
    """`cuda`: the newest CUDA version that it serves."""

    version: str
    cuda: tuple[int, int]
    gpus: tuple[Gpu, ...]


def read_driver() -> Driver:
    """The driver and all GPUs that this machine, or this container, has. Raises NoNvmlError or NvmlError."""
    nvml = nvml_bindings()
    try:
        nvml.nvmlInit()
        try:
            cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()
            gpus = tuple(_read_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
            # 13010 is CUDA 13.1.
            return Driver(nvml.nvmlSystemGetDriverVersion(), (cuda // 1000, cuda % 1000 // 10), gpus)
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        kind = NoNvmlError if isinstance(error, nvml.NVMLError_LibraryNotFound) else NvmlError
        raise kind(str(error)) from error


def _read_gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(
        nvml.nvmlDeviceGetName(handle),
        nvml.nvmlDeviceGetUUID(handle),
        tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle)),
        memory.free,
        memory.total,
    )


class NoRoomError(RuntimeError):
    """An engine cannot start again on a GPU that it shares."""


def wait_for_room(share: float, count: int, given: Sequence[int | str]) -> None:
    """For an engine that starts again beside the policy: vLLM starts only if its whole share of the GPU's memory is
    free. Return when `share` of the memory of `count` GPUs is. Raises NoRoomError after RELEASE_S.

    `given`: numbers or UUIDs of the GPUs that Ray gave to this process, whether or not it set CUDA_VISIBLE_DEVICES. An
    engine of several GPUs has none of its own, and looks at all of its node. So room is necessary for a start, and
    nearly enough: vLLM counts half a GiB of its own as well. Parts of a GPU (MIG) are not looked at.
    """
    end = time.monotonic() + RELEASE_S
    while True:
        gpus = [
            gpu
            for index, gpu in enumerate(read_driver().gpus)
            if not given or any(str(name) == str(index) or gpu.uuid.startswith(str(name)) for name in given)
        ]
        with_room = [gpu for gpu in gpus if gpu.free >= share * gpu.total]
        # Of an engine that lies on several nodes, the GPUs of this one.
        if len(with_room) >= min(count, len(gpus)):
            return
        if time.monotonic() > end:
            free = ", ".join(f"{gpu.free / GIB:.1f} of {gpu.total / GIB:.1f} GiB" for gpu in gpus)
            raise NoRoomError(
                f"an engine cannot start again beside the policy: vLLM needs {share:.0%} of the memory of {count} "
                f"GPU{'s' * (count > 1)} (--vllm.gpu_memory_utilization), and free are {free}. Lower it, or add "
                f"--ds.enable_sleep"
            )
        time.sleep(POLL_S)
