"""What a user reads while vLLM engines start, which takes seconds for a toy and half an hour for a large model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ray.exceptions import RayError

from openrlhf_ada.host.ray_actors import num_engines_up

POLL_S = 1.0

FIRST_LINE_S = 10.0
"""Seconds until the first line about engines that are not up. Each further line comes after twice the time, but not
later than LINE_S after the last."""

LINE_S = 300.0


def start_lines(
    count: int, note: Callable[[str], None], clock: Callable[[], float] = time.monotonic
) -> Callable[[], bool]:
    """A function that tells `note` what is due of these engines' start, and whether all are up; for any thread."""
    engines = "1 vLLM engine is" if count == 1 else f"{count} vLLM engines are"
    since, next_line_s, is_told, lock = clock(), FIRST_LINE_S, False, threading.Lock()

    def look() -> bool:
        nonlocal next_line_s, is_told
        with lock:
            if is_told:
                return True
            up, seconds = num_engines_up(), clock() - since
            if is_told := up >= count:
                note(f"{engines} up after {seconds:.0f} s")
            elif seconds >= next_line_s:
                next_line_s += min(next_line_s, LINE_S)
                note(f"{engines} starting: {up} up after {seconds:.0f} s; --verbose shows what vLLM does")
            return is_told

    return look


@contextmanager
def watched_starts(count: int, note: Callable[[str], None]) -> Iterator[Callable[[], object]]:
    """Within the block, which starts `count` engines, tell `note` of it; Ray must be initialised. The block gets a
    function that tells at once what is due, so that nothing later overtakes it."""
    look, stopped = start_lines(count, note), threading.Event()

    def watch() -> None:
        # Where Ray ends, the main thread says why.
        with suppress(RayError):
            while not look() and not stopped.wait(POLL_S):
                pass

    thread = threading.Thread(target=watch, daemon=True, name="ada-starts")
    if count:
        thread.start()
    try:
        yield look if count else lambda: None
    finally:
        stopped.set()
        if count:
            thread.join()
