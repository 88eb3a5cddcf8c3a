"""What the driver hears from vLLM engines in Ray actors, the death of one included."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError

from openrlhf_ada.core.fleet import EngineDown, EngineUp
from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.rollout.engine import Answer, Job
from openrlhf_ada.rollout.incarnations import RESTART_S, answer, ask_ready, incarnations, not_back
from openrlhf_ada.weights.sender import EngineGoneError

SILENCE_S = 30.0
"""Seconds in which a process that lives answers a question, however busy it is."""

Restore = Callable[[int], Sequence[Any]]
"""Starts to give an engine the policy's weights. References, one of each of the policy's processes."""


@dataclass
class _Recovery:
    """`waits_for`: the engine's word that it is up, and which process it is; then the policy's processes."""

    since: float
    waits_for: list[Any]
    incarnation: str = ""


class EngineLines:
    """One open question per engine: which rollouts have ended? It stays open from step to step.

    An engine whose process dies is started again by Ray. It counts as away until the policy has given it its weights;
    the others go on meanwhile. Other errors of engines are raised here, by `wait`: nothing is told to an engine
    without asking how it went.

    `restore`: has the policy give an engine its weights. `on_note`: gets what a user should read.
    `patience_s`: when no engine has said a word for so long, those that do not answer at all are ended, and started
    again by Ray.
    """

    def __init__(
        self,
        engines: Sequence[Any],
        restore: Restore,
        on_note: Callable[[str], None],
        patience_s: float,
    ) -> None:
        self.engines = list(engines)
        self._restore = restore
        self._on_note = on_note
        self._patience_s = patience_s
        self._incarnations: list[str] = []
        self._asked: dict[Any, int] = {}
        self._told: dict[Any, int] = {}
        self._away: dict[int, _Recovery] = {}

    def submit(self, engine: int, jobs: Sequence[Job], setup: Any) -> None:
        self._told[self.engines[engine].submit.remote(jobs, setup)] = engine

    def stop(self, engine: int, requests: Sequence[Request]) -> None:
        self._told[self.engines[engine].stop.remote(list(requests))] = engine

    def settle(self) -> None:
        """Return when every engine is up with the policy's weights, whatever has happened to it since the last time.

        Raises EngineLostError.
        """
        answering = incarnations(self.engines, self._on_note)
        if not self._incarnations:
            self._incarnations = answering
        for engine, incarnation in enumerate(answering):
            is_new = incarnation != self._incarnations[engine]
            if not is_new and engine not in self._away:
                continue
            self._forget(engine)
            if not self._empty(engine):
                self.settle()
                return
            if is_new:
                if not _succeeded(self._restore(engine)):
                    self.settle()
                    return
                self._welcome(engine, incarnation)
            else:
                del self._away[engine]

    def wait(self) -> list[Answer | EngineDown | EngineUp]:
        """Block until something has happened: rollouts have ended, an engine has died or is back."""
        asked = set(self._asked.values()) | set(self._away)
        for index, engine in enumerate(self.engines):
            if index not in asked:
                self._asked[engine.answers.remote()] = index
        events: list[Answer | EngineDown | EngineUp] = []
        while not events:
            for ref in self._wait_for_any():
                events += self._read(ref)
        return events

    def _wait_for_any(self) -> list[Any]:
        refs = [*self._asked, *self._told, *(ref for recovery in self._away.values() for ref in recovery.waits_for)]
        first, rest = ray.wait(refs, num_returns=1, timeout=self._patience_s)
        for engine, recovery in self._away.items():
            if not recovery.incarnation and time.monotonic() - recovery.since > RESTART_S:
                raise not_back(engine)
        if not first:
            self._end_the_silent()
            return []
        more, _ = ray.wait(rest, num_returns=len(rest), timeout=0) if rest else ([], [])
        return [*first, *more]

    def _end_the_silent(self) -> None:
        """A reward function that holds Python's lock stops all else in its engine's process, its clock included."""
        for engine in range(len(self.engines)):
            if engine in self._away:
                continue
            answered, _ = ray.wait([self.engines[engine].ready.remote()], num_returns=1, timeout=SILENCE_S)
            if not answered:
                self._on_note(f"vLLM engine {engine} does not answer and is ended: does a reward function hang?")
                ray.kill(self.engines[engine], no_restart=False)

    def _read(self, ref: Any) -> Sequence[Answer | EngineDown | EngineUp]:
        for engine, recovery in self._away.items():
            if ref in recovery.waits_for:
                return self._go_on(engine, recovery, ref)
        # Of a dead engine nothing more is read.
        engine = self._asked.get(ref, self._told.get(ref))
        if engine is None:
            return []
        try:
            value = ray.get(ref)
        except RayActorError:
            return [self._lose(engine)]
        was_asked = self._asked.pop(ref, None) is not None
        self._told.pop(ref, None)
        return value if was_asked else []

    # -- an engine that died ------------------------------------------------------------------------------------------

    def _lose(self, engine: int) -> EngineDown:
        self._forget(engine)
        self._away[engine] = _Recovery(time.monotonic(), [ask_ready(self.engines[engine])])
        self._on_note(f"vLLM engine {engine} died; it is started again, and its rollouts are sampled again")
        return EngineDown(engine)

    def _forget(self, engine: int) -> None:
        self._asked = {ref: of for ref, of in self._asked.items() if of != engine}
        self._told = {ref: of for ref, of in self._told.items() if of != engine}

    def _go_on(self, engine: int, recovery: _Recovery, ref: Any) -> list[EngineUp]:
        if not recovery.incarnation:
            incarnation = answer(engine, ref)
            if not self._empty(engine):
                recovery.waits_for = [ask_ready(self.engines[engine])]
                return []
            recovery.incarnation = incarnation
            if incarnation == self._incarnations[engine]:
                # It could not be reached, but lives, and its weights are right.
                del self._away[engine]
                return [EngineUp(engine)]
            recovery.waits_for = list(self._restore(engine))
            return []
        if not _succeeded(recovery.waits_for):
            self._away[engine] = _Recovery(time.monotonic(), [ask_ready(self.engines[engine])])
            return []
        self._welcome(engine, recovery.incarnation)
        return [EngineUp(engine)]

    def _empty(self, engine: int) -> bool:
        """Take away what it may have been sent before a death was known; False where it has died once more."""
        try:
            ray.get(self.engines[engine].reset.remote())
        except RayActorError:
            return False
        return True

    def _welcome(self, engine: int, incarnation: str) -> None:
        self._incarnations[engine] = incarnation
        recovery = self._away.pop(engine, None)
        when = (
            f" after {time.monotonic() - recovery.since:.0f} s" if recovery else " (it died while nothing was sampled)"
        )
        self._on_note(f"vLLM engine {engine} is back with the policy's weights{when}")


def _succeeded(restoring: Sequence[Any]) -> bool:
    """False where the engine has died once more before anything was sent to it."""
    try:
        ray.get(list(restoring))
    except EngineGoneError:
        return False
    return True
