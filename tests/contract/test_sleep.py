"""What a step's naps stand on in vLLM, where policy and engines share GPUs: its own bookkeeping, without a GPU.

OpenRLHF wakes up weights, sends new ones, wakes up the rest before it samples, and lets engines sleep afterwards.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor.abstract import Executor

pytestmark = pytest.mark.rehearsal


class Core:
    """vLLM's engine core as far as sleep goes; `log` has what reaches workers and scheduler."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        executor: Any = SimpleNamespace(is_sleeping=False, sleeping_tags=set())
        executor.collective_rpc = lambda method, kwargs: self.log.append((method, kwargs.get("tags")))
        executor.sleep = lambda level: Executor.sleep(executor, level)
        executor.wake_up = lambda tags: Executor.wake_up(executor, tags)
        self.model_executor = executor
        self.resume_scheduler = lambda: self.log.append("resume")
        self.pause_scheduler = lambda mode, clear_cache: self.log.append(f"pause, {clear_cache=}")

    def sleep(self) -> None:
        EngineCore.sleep(self, 1)  # type: ignore[arg-type]

    def wake_up(self, *tags: str) -> None:
        """As OpenRLHF's actor does: one after the other."""
        for tag in tags or ("weights", "kv_cache"):
            EngineCore.wake_up(self, [tag])  # type: ignore[arg-type]

    def take(self) -> list[Any]:
        log, self.log = self.log, []
        return log


@pytest.mark.parametrize("naps", [1, 2])
def test_nothing_is_sampled_before_weights_and_cache(naps: int) -> None:
    core = Core()
    for _ in range(naps):
        core.sleep()
        assert core.take() == ["pause, clear_cache=True", ("sleep", None)]
        core.wake_up("weights")
        assert core.take() == [("wake_up", ["weights"])], "the scheduler stays paused while weights are sent"
        core.wake_up()
        assert core.take() == [("wake_up", ["kv_cache"]), "resume"], "weights are not woken up twice"


def test_restarted_engine_is_awake_and_wakes_again() -> None:
    core = Core()
    core.wake_up()
    assert core.take() == ["resume"] * 2
    core.sleep()
    assert core.take()[-1] == ("sleep", None)
