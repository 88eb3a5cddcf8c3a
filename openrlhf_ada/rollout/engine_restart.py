"""Waiting for engines: for their first start, and for those that Ray starts again after their death.

The handle stays, and a new process answers. The policy's processes import this too, so it imports neither vLLM nor
OpenRLHF.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError

RESTART_S = 900.0
"""Seconds that an engine which has been up has to come back: its model is downloaded and compiled by then."""


class EngineLostError(RuntimeError):
    """An engine died, and does not come back."""


class EngineWaiter:
    """Waits for engines, and remembers which have answered it: the first start of an engine has no time limit."""

    def __init__(self, engines: Sequence[Any]) -> None:
        self._engines = engines
        self._answered: set[int] = set()

    def wait(self) -> list[str]:
        """Wait until every engine is up; returns the start id of each, which is new after every start of its process.

        How a first start goes, the driver tells (see `rollout/engine_starts.py`). Raises EngineLostError.
        """
        asked = [ask_ready(engine) for engine in self._engines]
        end = time.monotonic() + RESTART_S
        start_ids: list[str] = []
        for number, ref in enumerate(asked):
            timeout_s = max(0.0, end - time.monotonic()) if number in self._answered else None
            start_ids.append(read_start_id(number, ref, timeout_s))
            self._answered.add(number)
        return start_ids


def ask_ready(engine: Any) -> Any:
    """A reference to the engine's start id. If its process has died, the next process answers.

    Ray repeats the call whenever it likes: use this only for calls that change nothing.
    """
    return engine.ready.options(max_task_retries=-1).remote()


def read_start_id(number: int, ref: Any, timeout_s: float | None = RESTART_S) -> str:
    """What engine `number` answered to `ask_ready`; raises EngineLostError. `timeout_s`: None waits for ever."""
    try:
        return ray.get(ref, timeout=timeout_s)
    except GetTimeoutError:
        raise restart_timeout(number) from None
    except ActorDiedError as error:
        if error.actor_init_failed:
            # Ray gives the whole trace, which ends with the error itself, or with pydantic's address behind it.
            told = [line.strip() for line in str(error).splitlines() if line.strip() and "pydantic.dev" not in line]
            raise EngineLostError(f"vLLM engine {number} did not start: {told[-1]}") from error
        raise EngineLostError(
            f"vLLM engine {number} died, or failed to start, more often than --ada_engine_restarts allows. Its log "
            f"has the reason. {error}"
        ) from error


def restart_timeout(number: int) -> EngineLostError:
    return EngineLostError(
        f"vLLM engine {number} died and was not back after {RESTART_S:.0f} s: is there still a place for it in Ray?"
    )
