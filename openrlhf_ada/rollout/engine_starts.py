"""What a user reads while vLLM engines start, which takes seconds for a toy and half an hour for a large model.

An engine answers no call before it is up, so it leaves word in Ray's key-value store, and the driver reads it there.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayError

from openrlhf_ada.host.ray_session import publish, published, take_back
from openrlhf_ada.platforms.vllm_plugin import followed_start

REPORT_S = 2.0
"""Seconds between looks of an engine at what its vLLM has logged."""

POLL_S = 0.5

FIRST_LINE_S = 10.0
"""Seconds until the first line about engines that are not up. Each further line comes after twice the time, but not
later than LINE_S after the last."""

LINE_S = 300.0

_KEY = "engine-"


# -- the engine's side ------------------------------------------------------------------------------------------------


@contextmanager
def report_start() -> Iterator[None]:
    """Within the block, which starts vLLM, tell what vLLM logs; after it, that the engine is up.

    After a death, only where the start of the run is still being watched. Without Ray there is nobody to tell.
    """
    if not ray.is_initialized():
        yield
        return
    context = ray.get_runtime_context()
    key = f"{_KEY}{context.get_actor_id()}"
    if context.was_current_actor_reconstructed and key not in published():
        yield
        return
    ended = threading.Event()
    with followed_start() as last_line:
        _publish_state(key, up=False)

        def report_log() -> None:
            reported = ""
            while not ended.wait(REPORT_S):
                doing = last_line.read_text(encoding="utf-8")
                if doing != reported:
                    _publish_state(key, up=False, doing=doing)
                    reported = doing

        reporter = threading.Thread(target=report_log, daemon=True, name="ada-start")
        reporter.start()
        try:
            yield
        finally:
            ended.set()
            reporter.join()
    _publish_state(key, up=True)


def _publish_state(key: str, *, up: bool, doing: str = "") -> None:
    publish(key, json.dumps({"up": up, "doing": doing}))


# -- the driver's side ------------------------------------------------------------------------------------------------


class StartWatch(threading.Thread):
    """Tells `note` how many of `count` engines are up, and what one of the others does, until all are up."""

    def __init__(self, count: int, note: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(daemon=True, name="ada-starts")
        self._count = count
        self._note = note
        self._clock = clock
        self._since = clock()
        self._next_line_s = FIRST_LINE_S
        self._stopped = threading.Event()

    def run(self) -> None:
        try:
            while not self.look() and not self._stopped.wait(POLL_S):
                pass
            for key in published():
                take_back(key)
        except RayError:
            # Ray ends, and the main thread says why.
            return

    def stop(self) -> None:
        self._stopped.set()
        self.join()

    def look(self) -> bool:
        """Are all up? Tells what is due."""
        states = [json.loads(text) for key, text in published().items() if key.startswith(_KEY)]
        up, seconds = sum(state["up"] for state in states), self._clock() - self._since
        if up >= self._count:
            self._note(f"{_engines(self._count)} up after {seconds:.0f} s")
            return True
        if seconds >= self._next_line_s:
            self._next_line_s += min(self._next_line_s, LINE_S)
            self._note(f"{_engines(self._count)} starting: {up} up after {seconds:.0f} s{_doing(states)}")
        return False


@contextmanager
def watched_starts(count: int, note: Callable[[str], None]) -> Iterator[None]:
    """Within the block, which starts `count` engines, tell `note` of it; Ray must be initialised."""
    if not count:
        yield
        return
    watch = StartWatch(count, note)
    watch.start()
    try:
        yield
    finally:
        watch.stop()


def _engines(count: int) -> str:
    return "1 vLLM engine is" if count == 1 else f"{count} vLLM engines are"


def _doing(states: list[dict[str, Any]]) -> str:
    """What one of those that are not up does: one whose vLLM has logged something, if there is one."""
    if not states:
        return " (Ray starts their processes)"
    doing = [state["doing"] for state in states if not state["up"] and state["doing"]]
    return f" (vLLM says: {doing[0]})" if doing else " (vLLM is being loaded)"
