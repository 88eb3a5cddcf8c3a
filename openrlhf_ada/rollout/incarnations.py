"""Engines that Ray starts again after their death: the handle stays, and another process answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError

RESTART_S = 900.0
"""Loading a large model takes minutes; an engine that has not come back by then will not."""

NOTE_S = 10.0
"""After so long without a word a user is told what is waited for."""


class EngineLostError(RuntimeError):
    """An engine died, and does not come back."""


def incarnations(engines: Sequence[Any], on_note: Callable[[str], None]) -> list[str]:
    """Which process answers for each engine. Waits for those that are being started again; raises EngineLostError.

    `on_note`: gets what a user should read.
    """
    asked = [ask_ready(engine) for engine in engines]
    end = time.monotonic() + RESTART_S
    up, _ = ray.wait(asked, num_returns=len(asked), timeout=NOTE_S)
    for number, ref in enumerate(asked):
        if ref not in up:
            on_note(
                f"vLLM engine {number} does not answer: waiting until it is up, {RESTART_S / 60:.0f} minutes at most"
            )
    return [answer(number, ref, max(0.0, end - time.monotonic())) for number, ref in enumerate(asked)]


def ask_ready(engine: Any) -> Any:
    """A reference to the engine's name for itself, if need be from the process that comes next.

    Ray repeats the call, at a time of its choosing: only for calls that change nothing.
    """
    return engine.ready.options(max_task_retries=-1).remote()


def answer(number: int, ref: Any, patience_s: float = RESTART_S) -> Any:
    """What engine `number` said; raises EngineLostError."""
    try:
        return ray.get(ref, timeout=patience_s)
    except GetTimeoutError:
        raise not_back(number) from None
    except ActorDiedError as error:
        raise EngineLostError(
            f"vLLM engine {number} died, or failed to start, more often than --ada_engine_restarts allows. Its log "
            f"has the reason. {error}"
        ) from error


def not_back(number: int) -> EngineLostError:
    return EngineLostError(
        f"vLLM engine {number} died and was not back after {RESTART_S:.0f} s: is there still a place for it in Ray?"
    )
