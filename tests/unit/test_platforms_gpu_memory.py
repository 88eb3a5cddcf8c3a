"""Room for an engine that starts again on a GPU that it shares with the policy. GPUs of 80 GiB that are not there."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from nvml import driver, gpu

from openrlhf_ada.platforms import nvml
from openrlhf_ada.platforms.nvml import RELEASE_S, Driver, NoRoomError

pytestmark = pytest.mark.rehearsal


class Time:
    """Passes only while somebody sleeps. `free`: GiB of each GPU, by second; the last entry stays."""

    def __init__(self, *free: list[int]) -> None:
        self.now = 0.0
        self._free = free

    def read(self) -> Driver:
        free = self._free[min(int(self.now), len(self._free) - 1)]
        return driver(*(gpu(free=gib, index=index) for index, gib in enumerate(free)))

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def waited(time: Time, share: float, count: int = 1, given: Sequence[int | str] = (1,)) -> float:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvml, "read_driver", time.read)
        patch.setattr(nvml, "time", SimpleNamespace(monotonic=time.clock, sleep=time.sleep))
        nvml.wait_for_room(share, count, given)
    return time.now


def test_an_engine_starts_where_its_share_is_free() -> None:
    """0.7 of 80 GiB are 56. The first GPU is somebody else's."""
    assert waited(Time([0, 56]), 0.7) == 0.0


def test_memory_of_the_dead_process_is_awaited() -> None:
    assert waited(Time([0, 5], [0, 5], [0, 5], [0, 66]), 0.7) == 3.0


def test_without_room_the_message_has_both_figures() -> None:
    time = Time([80, 55])
    with pytest.raises(NoRoomError) as error:
        waited(time, 0.7)
    assert RELEASE_S < time.now <= RELEASE_S + 1
    assert "vLLM needs 70% of the memory of 1 GPU (--vllm.gpu_memory_utilization)" in str(error.value)
    assert "free are 55.0 of 80.0 GiB" in str(error.value)
    assert "\n" not in str(error.value), "Ray gives the last line of a trace"


@pytest.mark.parametrize("given", [(1,), ("1",), ("GPU-00000001",), ("GPU-0000000",), (0, "GPU-00000001")])
def test_ray_names_gpus_by_number_or_uuid(given: Sequence[int | str]) -> None:
    assert waited(Time([0, 80]), 0.9, given=given) == 0.0


@pytest.mark.parametrize("variable", ["0", "0,1", None])
def test_room_on_another_gpu_is_no_room(monkeypatch: pytest.MonkeyPatch, variable: str | None) -> None:
    """Where Ray was told to leave CUDA_VISIBLE_DEVICES alone, it names GPUs of others as well, or none."""
    if variable is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    with pytest.raises(NoRoomError):
        waited(Time([80, 0]), 0.9)


def test_parts_of_a_gpu_are_not_looked_at() -> None:
    assert waited(Time([0, 0]), 0.9, given=("MIG-41b36014",)) == 0.0


def test_an_engine_of_two_gpus_looks_at_all_of_its_node() -> None:
    """Its own process has none: its workers do."""
    assert waited(Time([80, 0, 0, 80]), 0.9, count=2, given=()) == 0.0
    with pytest.raises(NoRoomError, match="90% of the memory of 2 GPUs"):
        waited(Time([80, 0, 0, 0]), 0.9, count=2, given=())
    # Sixteen GPUs on two nodes: here are eight of them.
    assert waited(Time([80] * 8), 0.9, count=16, given=()) == 0.0
