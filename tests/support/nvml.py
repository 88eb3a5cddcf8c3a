"""In place of NVIDIA's management library: GPUs that are not there.

`bindings` stand for NVIDIA's Python bindings. `build_library` makes a real library of the same functions in C, which
Ray and this package then load by its name.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openrlhf_ada.platforms.nvml import Driver, Gpu

GIB = 1 << 30


def gpu(
    name: str = "NVIDIA H100 80GB HBM3", capability: tuple[int, int] = (9, 0), free: int = 79, index: int = 0
) -> Gpu:
    """`free`: GiB of 80."""
    return Gpu(name, f"GPU-{index:08d}", capability, free * GIB, 80 * GIB)


def driver(*gpus: Gpu, version: str = "580.65.06", cuda: tuple[int, int] = (13, 0)) -> Driver:
    return Driver(version, cuda, gpus)


class NVMLError(Exception): ...


class NVMLError_LibraryNotFound(NVMLError): ...


def bindings(driver: Driver, error: NVMLError | None = None) -> Any:
    """`error`: raised when the library is opened. A handle is a GPU."""

    def init() -> None:
        if error is not None:
            raise error

    return SimpleNamespace(
        NVMLError=NVMLError,
        NVMLError_LibraryNotFound=NVMLError_LibraryNotFound,
        nvmlInit=init,
        nvmlShutdown=lambda: None,
        nvmlSystemGetCudaDriverVersion_v2=lambda: driver.cuda[0] * 1000 + driver.cuda[1] * 10,
        nvmlSystemGetDriverVersion=lambda: driver.version,
        nvmlDeviceGetCount=lambda: len(driver.gpus),
        nvmlDeviceGetHandleByIndex=lambda index: driver.gpus[index],
        nvmlDeviceGetName=lambda gpu: gpu.name,
        nvmlDeviceGetUUID=lambda gpu: gpu.uuid,
        nvmlDeviceGetCudaComputeCapability=lambda gpu: gpu.capability,
        nvmlDeviceGetMemoryInfo=lambda gpu: gpu,
    )


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
