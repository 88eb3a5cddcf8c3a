"""The driver's calls to vLLM engines in Ray actors, and what it does when one of them dies."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError

from openrlhf_ada.core.fleet import EngineDown, EngineUp
from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.rollout.engine import Job
from openrlhf_ada.rollout.engine_restart import RESTART_S, EngineWaiter, ask_ready, read_start_id, restart_timeout
from openrlhf_ada.rollout.messages import Answer
from openrlhf_ada.weights.sender import EngineGoneError

SILENCE_S = 30.0
"""Seconds in which a living process answers a question, however busy it is."""

CALLS_AT_A_TIME = 32
"""Calls without an answer, such as `submit`, that a driver with much to do leaves unread: asking Ray about each takes
as long as several rollouts."""

Restore = Callable[[int], Sequence[Any]]
"""Starts to give an engine the policy's weights. Returns references, one of each of the policy's processes."""


@dataclass
class _Recovery:
    """An engine that died. `waits_for`: first the new process's start id, then the policy's processes."""

    since: float
    waits_for: list[Any]
    start_id: str = ""


@dataclass
class _Unsent:
    """What an engine is to be told: to abort `stops`, of earlier jobs, and to sample `jobs`, which share a `setup`."""

    stops: list[Request] = field(default_factory=list[Request])
    jobs: list[Job] = field(default_factory=list[Job])
    setup: Any = None


_NOTHING = _Unsent()


class EngineConnections:
    """Asks every engine which rollouts have ended. The question stays open from step to step.

    Ray restarts an engine whose process dies. It counts as down until the policy has given it its weights; the others
    go on meanwhile. `wait` raises every other error of an engine: the result of each call is read.

    `restore`: has the policy give an engine its weights. `on_note`: gets what a user should read.
    `patience_s`: when no engine has answered anything for so long, those that do not react at all are killed, and
    restarted by Ray.
    """

    def __init__(
        self, engines: Sequence[Any], restore: Restore, on_note: Callable[[str], None], patience_s: float
    ) -> None:
        self.engines = list(engines)
        self._restore = restore
        self._on_note = on_note
        self._waiter = EngineWaiter(self.engines)
        self._patience_s = patience_s
        self._start_ids: list[str] = []
        self._open_questions: dict[Any, int] = {}
        self._pending_calls: dict[Any, int] = {}
        self._recoveries: dict[int, _Recovery] = {}
        self._unsent: defaultdict[int, _Unsent] = defaultdict(_Unsent)

    def submit(self, engine: int, jobs: Sequence[Job], setup: Any) -> None:
        """Start sampling these; sent with the next `wait`."""
        unsent = self._unsent[engine]
        unsent.jobs += jobs
        unsent.setup = setup

    def stop(self, engine: int, requests: Sequence[Request]) -> None:
        """Abort these, submitted before; sent with the next `wait`."""
        self._unsent[engine].stops += requests

    def wait_until_ready(self) -> None:
        """Return when every engine is up with the policy's weights, whatever has happened since the last call.

        Raises EngineLostError.
        """
        while True:
            start_ids = self._waiter.wait()
            self._start_ids = self._start_ids or start_ids
            for engine, start_id in enumerate(start_ids):
                if engine in self._recoveries or start_id != self._start_ids[engine]:
                    self._begin_recovery(engine)
            if not self._recoveries:
                return
            while self._recoveries:
                # No rollout is on its way, so nothing else is told.
                for ref in self._wait_for_any():
                    self._read(ref)

    def wait(self) -> list[Answer | EngineDown | EngineUp]:
        """Block until something has happened: rollouts have ended, an engine has died or is back."""
        self._send()
        events: list[Answer | EngineDown | EngineUp] = []
        while not events:
            for ref in self._wait_for_any():
                events += self._read(ref)
        return events

    def _send(self) -> None:
        """Ask engines that have answered again, and tell them in that one call what to do: a call takes long."""
        asked = set(self._open_questions.values()) | set(self._recoveries)
        unsent, self._unsent = self._unsent, defaultdict(_Unsent)
        for index, engine in enumerate(self.engines):
            if index not in asked:
                message = unsent.pop(index, _NOTHING)
                self._open_questions[engine.answers.remote(message.stops, message.jobs, message.setup)] = index
        for index, message in unsent.items():
            if message.stops:
                self._pending_calls[self.engines[index].stop.remote(message.stops)] = index
            if message.jobs:
                self._pending_calls[self.engines[index].submit.remote(message.jobs, message.setup)] = index

    def _wait_for_any(self) -> list[Any]:
        """What is ready. Where engines have answered already, calls without an answer are read a few at a time."""
        for engine, recovery in self._recoveries.items():
            if not recovery.start_id and time.monotonic() - recovery.since > RESTART_S:
                raise restart_timeout(engine)
        refs = list(self._open_questions)
        refs += [ref for recovery in self._recoveries.values() for ref in recovery.waits_for]
        if ready := _ready_of(refs):
            return ready + (_ready_of(self._pending_calls) if len(self._pending_calls) > CALLS_AT_A_TIME else [])
        first, _ = ray.wait([*refs, *self._pending_calls], num_returns=1, timeout=self._patience_s)
        if not first:
            self._kill_unresponsive()
        return first

    def _kill_unresponsive(self) -> None:
        """A reward function that holds Python's lock stops all else in its engine's process, timeouts included."""
        for engine in range(len(self.engines)):
            if engine in self._recoveries:
                continue
            answered, _ = ray.wait([self.engines[engine].ready.remote()], num_returns=1, timeout=SILENCE_S)
            if not answered:
                self._on_note(
                    f"vLLM engine {engine} does not answer and is ended: does a reward hang? Its log says where"
                )
                ray.kill(self.engines[engine], no_restart=False)

    def _read(self, ref: Any) -> Sequence[Answer | EngineDown | EngineUp]:
        for engine, recovery in self._recoveries.items():
            if ref in recovery.waits_for:
                return self._continue_recovery(engine, recovery, ref)
        engine = self._open_questions.get(ref, self._pending_calls.get(ref))
        if engine is None:
            # A call to a process that has died.
            return []
        try:
            value: Any = ray.get(ref)
        except RayActorError:
            self._begin_recovery(engine)
            self._on_note(f"vLLM engine {engine} died; it is started again, and its rollouts are sampled again")
            return [EngineDown(engine)]
        was_asked = self._open_questions.pop(ref, None) is not None
        self._pending_calls.pop(ref, None)
        return value if was_asked else []

    # -- an engine that died ------------------------------------------------------------------------------------------

    def _begin_recovery(self, engine: int) -> None:
        self._recoveries[engine] = _Recovery(time.monotonic(), [ask_ready(self.engines[engine])])
        self._open_questions = {ref: of for ref, of in self._open_questions.items() if of != engine}
        self._pending_calls = {ref: of for ref, of in self._pending_calls.items() if of != engine}
        self._unsent.pop(engine, None)

    def _continue_recovery(self, engine: int, recovery: _Recovery, ref: Any) -> list[EngineUp]:
        if not recovery.start_id:
            start_id = read_start_id(engine, ref)
            if not self._reset(engine):
                recovery.waits_for = [ask_ready(self.engines[engine])]
                return []
            recovery.start_id = start_id
            if start_id == self._start_ids[engine]:
                # It was unreachable for a while but did not die, so its weights are right.
                del self._recoveries[engine]
                return [EngineUp(engine)]
            recovery.waits_for = list(self._restore(engine))
            return []
        try:
            ray.get(recovery.waits_for)
        except EngineGoneError:
            # It has died once more before anything was sent to it.
            self._begin_recovery(engine)
            return []
        self._start_ids[engine] = recovery.start_id
        del self._recoveries[engine]
        seconds = time.monotonic() - recovery.since
        self._on_note(f"vLLM engine {engine} is back with the policy's weights after {seconds:.0f} s")
        return [EngineUp(engine)]

    def _reset(self, engine: int) -> bool:
        """Take back what it was sent before its death was noticed; False where it has died once more."""
        try:
            ray.get(self.engines[engine].reset.remote())
        except RayActorError:
            return False
        return True


def _ready_of(refs: Collection[Any]) -> list[Any]:
    """Those that can be read at once."""
    return ray.wait(list(refs), num_returns=len(refs), timeout=0)[0] if refs else []
