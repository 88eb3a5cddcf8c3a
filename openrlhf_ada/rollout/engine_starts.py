"""What a user reads while vLLM engines start, which takes seconds for a toy and half an hour for a large model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ray.exceptions import RayError

from openrlhf_ada.host.ray_actors import num_engines_up

POLL_S = 1.0

FIRST_LINE_S = 10.0
"""Seconds until the first line about engines that are not up. Each further line comes after twice the time, but not
later than LINE_S after the last."""

LINE_S = 300.0


class StartWatch(threading.Thread):
    """Tells `note` how many of `count` engines are up, until all are."""

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
        except RayError:
            # Ray ends, and the main thread says why.
            return

    def stop(self) -> None:
        self._stopped.set()
        self.join()

    def look(self) -> bool:
        """Are all up? Tells what is due."""
        up, seconds = num_engines_up(), self._clock() - self._since
        engines = "1 vLLM engine is" if self._count == 1 else f"{self._count} vLLM engines are"
        if up >= self._count:
            self._note(f"{engines} up after {seconds:.0f} s")
            return True
        if seconds >= self._next_line_s:
            self._next_line_s += min(self._next_line_s, LINE_S)
            self._note(f"{engines} starting: {up} up after {seconds:.0f} s; --verbose shows what vLLM does")
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
