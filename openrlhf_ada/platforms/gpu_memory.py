"""Is there room on a GPU for an engine that starts again beside the policy?

vLLM starts only if its whole share of the GPU's memory is free. When the run began it was; now the policy is there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from openrlhf_ada.platforms.gpu import VISIBLE
from openrlhf_ada.platforms.nvml import Driver, Gpu, read_driver

RELEASE_S = 60.0
"""Seconds in which the driver takes back the memory of a process that died."""

POLL_S = 1.0

GIB = 1 << 30


class NoRoomError(RuntimeError):
    """An engine cannot start again on a GPU that it shares."""


def wait_for_room(
    share: float,
    count: int,
    read: Callable[[], Driver] = read_driver,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return when `share` of the memory of `count` GPUs is free. Raises NoRoomError after RELEASE_S.

    Looks at the GPUs that this process may use; an engine of several GPUs has none of its own, and looks at all of its
    node. So room is necessary for a start, and nearly enough: vLLM counts half a GiB of its own as well.
    """
    end = clock() + RELEASE_S
    while True:
        gpus = _visible(read().gpus, os.environ.get(VISIBLE, "")) if count == 1 else list(read().gpus)
        with_room = [gpu for gpu in gpus if gpu.free >= share * gpu.total]
        # Of an engine that lies on several nodes, the GPUs of this one.
        if len(with_room) >= min(count, len(gpus)):
            return
        if clock() > end:
            raise NoRoomError(_explain(gpus, share, count))
        sleep(POLL_S)


def _visible(gpus: Sequence[Gpu], value: str) -> list[Gpu]:
    """`value`: numbers or names, as in CUDA_VISIBLE_DEVICES. Empty means all."""
    if not value:
        return list(gpus)
    # "0," names one GPU; every UUID would begin with an empty name.
    names = [name for each in value.split(",") if (name := each.strip())]
    return [gpu for index, gpu in enumerate(gpus) if str(index) in names or any(map(gpu.uuid.startswith, names))]


def _explain(gpus: Sequence[Gpu], share: float, count: int) -> str:
    free = ", ".join(f"{gpu.free / GIB:.1f} of {gpu.total / GIB:.1f} GiB" for gpu in gpus)
    return (
        f"an engine that died cannot start again beside the policy: vLLM needs {share:.0%} of the memory of {count} "
        f"GPU{'s' * (count > 1)} free (--vllm.gpu_memory_utilization), and here are free: {free}. A lower share, or "
        f"--ds.enable_sleep, leaves room for it"
    )
