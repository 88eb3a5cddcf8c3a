"""Engines that Ray starts again after their death: the handle stays, and a new process answers.

The policy's processes import this too, so it imports neither vLLM nor OpenRLHF.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError

RESTART_S = 900.0
"""Seconds that an engine has to come back. Loading a large model takes minutes."""

NOTE_S = 10.0
"""Seconds without an answer after which a note tells the user what the run waits for."""


class EngineLostError(RuntimeError):
    """An engine died, and does not come back."""


def wait_for_engines(engines: Sequence[Any], on_note: Callable[[str], None]) -> list[str]:
    """Wait until every engine is up; returns the start id of each, which is new after every start of its process.

    `on_note` gets what a user should read. Raises EngineLostError.
    """
    if not engines:
        return []
    asked = [ask_ready(engine) for engine in engines]
    end = time.monotonic() + RESTART_S
    up, _ = ray.wait(asked, num_returns=len(asked), timeout=NOTE_S)
    for number, ref in enumerate(asked):
        if ref not in up:
            on_note(
                f"vLLM engine {number} does not answer: waiting until it is up, {RESTART_S / 60:.0f} minutes at most"
            )
    return [read_start_id(number, ref, max(0.0, end - time.monotonic())) for number, ref in enumerate(asked)]


def ask_ready(engine: Any) -> Any:
    """A reference to the engine's start id. If its process has died, the next process answers.

    Ray repeats the call whenever it likes: use this only for calls that change nothing.
    """
    return engine.ready.options(max_task_retries=-1).remote()


def read_start_id(number: int, ref: Any, timeout_s: float = RESTART_S) -> str:
    """What engine `number` answered to `ask_ready`; raises EngineLostError."""
    try:
        return ray.get(ref, timeout=timeout_s)
    except GetTimeoutError:
        raise restart_timeout(number) from None
    except ActorDiedError as error:
        raise EngineLostError(
            f"vLLM engine {number} died, or failed to start, more often than --ada_engine_restarts allows. Its log "
            f"has the reason. {error}"
        ) from error


def restart_timeout(number: int) -> EngineLostError:
    return EngineLostError(
        f"vLLM engine {number} died and was not back after {RESTART_S:.0f} s: is there still a place for it in Ray?"
    )
