"""NVIDIA's management library as far as it is needed, by ctypes.

It comes with the driver and answers without CUDA: no memory of a GPU is taken, and a driver that is too old for torch
answers as well. Source: NVML API reference.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

GIB = 1 << 30

LIBRARY = "libnvidia-ml.so.1"

RELEASE_S = 60.0
"""Seconds in which the driver takes back the memory of a process that died."""

POLL_S = 1.0

_SUCCESS = 0
_TEXT_BYTES = 128


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


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def read_driver(load: Callable[[str], Any] = ctypes.CDLL) -> Driver:
    """The driver and all GPUs that this machine, or this container, has. Raises NoNvmlError or NvmlError."""
    try:
        library = load(LIBRARY)
    except OSError as error:
        raise NoNvmlError(str(error)) from error
    call = _Caller(library)
    call("nvmlInit_v2")
    try:
        cuda, count = ctypes.c_int(), ctypes.c_uint()
        call("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(cuda))
        call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return Driver(
            call.text("nvmlSystemGetDriverVersion"),
            # 13010 is CUDA 13.1.
            (cuda.value // 1000, cuda.value % 1000 // 10),
            tuple(_read_gpu(call, index) for index in range(count.value)),
        )
    finally:
        call("nvmlShutdown")


def _read_gpu(call: _Caller, index: int) -> Gpu:
    handle, memory = ctypes.c_void_p(), _Memory()
    major, minor = ctypes.c_int(), ctypes.c_int()
    call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
    call("nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
    call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
    return Gpu(
        call.text("nvmlDeviceGetName", handle),
        call.text("nvmlDeviceGetUUID", handle),
        (major.value, minor.value),
        memory.free,
        memory.total,
    )


class _Caller:
    """Calls functions by name; raises NvmlError where one fails."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __call__(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != _SUCCESS:
            describe = self._library.nvmlErrorString
            describe.restype = ctypes.c_char_p
            raise NvmlError(describe(status).decode())

    def text(self, name: str, *arguments: Any) -> str:
        """Of a function that ends with a buffer and its length."""
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        self(name, *arguments, buffer, ctypes.c_uint(_TEXT_BYTES))
        return buffer.value.decode()


class NoRoomError(RuntimeError):
    """An engine cannot start again on a GPU that it shares."""


def wait_for_room(
    share: float,
    count: int,
    given: Sequence[int | str],
    read: Callable[[], Driver] = read_driver,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """For an engine that starts again beside the policy: vLLM starts only if its whole share of the GPU's memory is
    free. Return when `share` of the memory of `count` GPUs is. Raises NoRoomError after RELEASE_S.

    `given`: numbers or UUIDs of the GPUs that Ray gave to this process, whether or not it set CUDA_VISIBLE_DEVICES. An
    engine of several GPUs has none of its own, and looks at all of its node. So room is necessary for a start, and
    nearly enough: vLLM counts half a GiB of its own as well. Parts of a GPU (MIG) are not looked at.
    """
    end = clock() + RELEASE_S
    while True:
        gpus = [gpu for index, gpu in enumerate(read().gpus) if not given or _is_among(given, index, gpu)]
        with_room = [gpu for gpu in gpus if gpu.free >= share * gpu.total]
        # Of an engine that lies on several nodes, the GPUs of this one.
        if len(with_room) >= min(count, len(gpus)):
            return
        if clock() > end:
            raise NoRoomError(_explain(gpus, share, count))
        sleep(POLL_S)


def _is_among(given: Sequence[int | str], index: int, gpu: Gpu) -> bool:
    return any(str(name) == str(index) or gpu.uuid.startswith(str(name)) for name in given)


def _explain(gpus: Sequence[Gpu], share: float, count: int) -> str:
    free = ", ".join(f"{gpu.free / GIB:.1f} of {gpu.total / GIB:.1f} GiB" for gpu in gpus)
    return (
        f"an engine that died cannot start again beside the policy: vLLM needs {share:.0%} of the memory of {count} "
        f"GPU{'s' * (count > 1)} free (--vllm.gpu_memory_utilization), and here are free: {free}. A lower share, or "
        f"--ds.enable_sleep, leaves room for it"
    )
