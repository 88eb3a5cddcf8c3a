"""In place of NVIDIA's management library: GPUs that are not there.

`FakeNvml` is called as ctypes calls the library. `build_library` makes a real library of the same functions in C,
which Ray and this package then load by its name.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from openrlhf_ada.platforms.nvml import Driver, Gpu

GIB = 1 << 30

MISMATCH = 18
"""Status: the library's version is not the kernel module's."""

ERRORS = {MISMATCH: "Driver/library version mismatch", 15: "GPU is lost"}


def gpu(
    name: str = "NVIDIA H100 80GB HBM3", capability: tuple[int, int] = (9, 0), free: int = 79, index: int = 0
) -> Gpu:
    """`free`: GiB of 80."""
    return Gpu(name, f"GPU-{index:08d}", capability, free * GIB, 80 * GIB)


def driver(*gpus: Gpu, version: str = "580.65.06", cuda: tuple[int, int] = (13, 0)) -> Driver:
    return Driver(version, cuda, gpus)


class FakeNvml:
    """`init_status`: what `nvmlInit_v2` returns."""

    def __init__(self, driver: Driver, init_status: int = 0) -> None:
        self._driver = driver
        self._init_status = init_status
        self.is_open = False
        self.nvmlErrorString = _ErrorString()

    def nvmlInit_v2(self) -> int:
        self.is_open = not self._init_status
        return self._init_status

    def nvmlShutdown(self) -> int:
        self.is_open = False
        return 0

    def nvmlSystemGetCudaDriverVersion_v2(self, version: Any) -> int:
        major, minor = self._driver.cuda
        version._obj.value = major * 1000 + minor * 10
        return 0

    def nvmlSystemGetDriverVersion(self, buffer: Any, length: Any) -> int:
        return _write(self._driver.version, buffer, length)

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self._driver.gpus)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        handle._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetName(self, handle: Any, buffer: Any, length: Any) -> int:
        return _write(self._gpu(handle).name, buffer, length)

    def nvmlDeviceGetUUID(self, handle: Any, buffer: Any, length: Any) -> int:
        return _write(self._gpu(handle).uuid, buffer, length)

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = self._gpu(handle).capability
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        found = self._gpu(handle)
        memory._obj.total, memory._obj.free = found.total, found.free
        memory._obj.used = found.total - found.free
        return 0

    def _gpu(self, handle: Any) -> Gpu:
        return self._driver.gpus[handle.value - 1]


class _ErrorString:
    """A function of ctypes, whose type of result is set before it is called."""

    restype: Any = None

    def __call__(self, status: int) -> bytes:
        assert self.restype is ctypes.c_char_p
        return ERRORS[status].encode()


def _write(text: str, buffer: Any, length: Any) -> int:
    assert len(text) < length.value
    buffer.value = text.encode()
    return 0


_SOURCE = """
#include <stdio.h>
typedef void *device;
typedef struct { unsigned long long total, free, used; } memory;
int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int status) { return "an error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned length) { snprintf(text, length, "%(driver)s"); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = %(cuda)d; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = %(count)d; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *handle) { *handle = (device)(index + 1UL); return 0; }
int nvmlDeviceGetName(device handle, char *text, unsigned length) { snprintf(text, length, "%(name)s"); return 0; }
int nvmlDeviceGetUUID(device handle, char *text, unsigned length) {
    snprintf(text, length, "GPU-%%08lu", (unsigned long)handle - 1); return 0;
}
int nvmlDeviceGetCudaComputeCapability(device handle, int *major, int *minor) {
    *major = %(major)d; *minor = %(minor)d; return 0;
}
int nvmlDeviceGetMemoryInfo(device handle, memory *found) {
    found->total = %(total)dULL; found->free = %(free)dULL; found->used = found->total - found->free; return 0;
}
"""


def build_library(folder: Path, driver: Driver) -> Path:
    """A `libnvidia-ml.so.1` in `folder`, to be put into LD_LIBRARY_PATH, with GPUs that are all alike.

    Skips the test where there is no C compiler.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    first = driver.gpus[0]
    source = folder / "nvml.c"
    source.write_text(
        _SOURCE
        % {
            "driver": driver.version, "cuda": driver.cuda[0] * 1000 + driver.cuda[1] * 10, "count": len(driver.gpus),
            "name": first.name, "major": first.capability[0], "minor": first.capability[1],
            "total": first.total, "free": first.free,
        }
    )  # fmt: skip
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", str(library), str(source)], check=True)
    return library
