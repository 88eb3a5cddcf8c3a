"""Is there room on a GPU for an engine that starts again beside the policy?

vLLM starts only if its whole share of the GPU's memory is free. When the run began it was; now the policy is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

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
    given: Sequence[int | str],
    read: Callable[[], Driver] = read_driver,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return when `share` of the memory of `count` GPUs is free. Raises NoRoomError after RELEASE_S.

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
