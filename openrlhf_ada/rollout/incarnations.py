"""Engines that Ray starts again after their death: the handle stays, and another process answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError

RESTART_S = 900.0
"""Loading a large model takes minutes; an engine that has not come back by then will not."""


class EngineLostError(RuntimeError):
    """An engine died, and does not come back."""


def incarnations(engines: Sequence[Any]) -> list[str]:
    """Which process answers for each engine. Waits for those that are being started again; raises EngineLostError."""
    asked = [ask_ready(engine) for engine in engines]
    return [answer(number, ref) for number, ref in enumerate(asked)]


def ask_ready(engine: Any) -> Any:
    """A reference to the engine's name for itself, if need be from the process that comes next.

    Ray repeats the call, at a time of its choosing: only for calls that change nothing.
    """
    return engine.ready.options(max_task_retries=-1).remote()


def answer(number: int, ref: Any) -> Any:
    """What engine `number` said; raises EngineLostError."""
    try:
        return ray.get(ref, timeout=RESTART_S)
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
