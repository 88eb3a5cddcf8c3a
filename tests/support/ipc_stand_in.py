"""In place of CUDA's memory between processes where there is no GPU: files that are mapped into both.

vLLM's packed producer and consumer run on it as they are. As with CUDA:

- A buffer is opened by a handle that holds what torch's does, in the same places, and by the reader's device.
- It can be freed when the reader has let go of it as often as it was shared; before, `ipc_collect` is an error here.

`install` replaces it in this process, and `be_on` says on which GPU this thread is.
"""

from __future__ import annotations

import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from nccl_stand_in import Stream
from torch.multiprocessing import reductions
from vllm.distributed.weight_transfer import packed_tensor

DEVICE = 0
"""The index that a CPU's device does not have."""

Set = Callable[[Any, str, Any], None]
"""`setattr`, or pytest's `monkeypatch.setattr`."""


FOLDER = Path("/dev/shm")
"""Of the files. Processes that are killed leave theirs."""


class Here(threading.local):
    gpu = "GPU-0"


HERE = Here()
SHARED: list[Path] = []
"""Buffers that this process has made and not yet freed."""


def be_on(gpu: str) -> None:
    HERE.gpu = gpu


class Torch:
    """What vLLM's module calls `torch`: memory "of a GPU" is a file's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def empty(size: int, *, dtype: torch.dtype, device: Any) -> torch.Tensor:
        assert device == "cuda" and dtype == torch.uint8
        with tempfile.NamedTemporaryFile(dir=FOLDER, prefix="ada-ipc-", delete=False) as file:
            file.truncate(size)
        SHARED.append(Path(file.name))
        return torch.from_file(file.name, shared=True, size=size, dtype=dtype)


def share(tensor: torch.Tensor) -> Any:
    """As torch's `reduce_tensor`."""
    path = SHARED[-1]
    path.with_suffix(".held").touch()
    handle = str(path).encode()
    values = (DEVICE + 7, handle, len(tensor), 0, False, b"counter", 0, b"event", True)
    kinds = (type(tensor), tensor.size(), tensor.stride(), 0, type(tensor._typed_storage()), tensor.dtype)
    return open_again, (*kinds, *values)


def open_again(*args: Any) -> torch.Tensor:
    """As torch's `rebuild_cuda_tensor`."""
    assert args[0] is torch.Tensor and args[4] is torch.storage.TypedStorage and args[5] is torch.uint8
    assert args[6] is None, "opened on the reader's device, which has no number on a CPU"
    path = Path(args[7].decode())
    held = path.with_suffix(".held")
    assert held.exists(), "a buffer is opened once for each time that it is shared"
    tensor = torch.from_file(str(path), shared=True, size=args[8], dtype=torch.uint8)
    weakref.finalize(tensor, held.unlink)
    return tensor


def collect() -> None:
    for path in SHARED:
        assert not path.with_suffix(".held").exists(), "the reader still has the buffer open"
    remove_all()


def remove_all() -> None:
    """Also those that a failed transfer has left."""
    while SHARED:
        path = SHARED.pop()
        path.unlink()
        path.with_suffix(".held").unlink(missing_ok=True)


def install(set_attribute: Set) -> None:
    set_attribute(packed_tensor, "torch", Torch())
    set_attribute(packed_tensor, "reduce_tensor", share)
    set_attribute(reductions, "rebuild_cuda_tensor", open_again)
    set_attribute(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=HERE.gpu))
    set_attribute(torch.cuda, "current_stream", Stream)
    set_attribute(torch.cuda, "ipc_collect", collect)
