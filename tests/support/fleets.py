"""Engines without a model: rollouts end in any order, late or not at all. A scheduler must not care."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from openrlhf_ada.core.fleet import Aborted, EngineDown, EngineUp, Failed, Finished
from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.core.types import Sample

Payload = TypeVar("Payload")
Outcome = Callable[[Request], float]
Preference = Callable[[Request], float]
Event = Finished[Payload] | Aborted | Failed | EngineDown | EngineUp


class FaultyFleet(Generic[Payload]):
    """What a request leads to is `answer`'s alone; when it is told, and with what else, is up to chance (`seed`).

    A rollout of k tokens takes about k units of time. `time_limit`: tokens after which a rollout fails instead.
    `late`: share of aborts that come too late; `dying`: chance per wait that an engine dies, to come back some waits
    later. Remembers what was `sent`, and the `most_at_once` on each engine.
    """

    def __init__(
        self,
        answer: Callable[[Request], Finished[Payload] | Failed],
        *,
        num_engines: int = 1,
        time_limit: float = np.inf,
        late: float = 0.0,
        dying: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.num_engines = num_engines
        self.sent: list[Request] = []
        self.num_lost = 0
        self._answer, self._time_limit, self._late, self._dying = answer, time_limit, late, dying
        self._rng = np.random.default_rng(seed)
        self._now = 0.0
        self._running: dict[Request, int] = {}
        self._ends: list[tuple[float, Request]] = []
        self._returns: dict[int, int] = {}
        self.most_at_once = [0] * num_engines
        self._num_waits = 0
        self._aborted: list[Request] = []
        self._stopping: list[Request] = []

    def submit(self, engine: int, requests: Sequence[Request]) -> None:
        assert engine not in self._returns, "sent to a dead engine"
        for request in requests:
            assert request not in self._running, "sent twice"
            self._running[request] = engine
            self.sent.append(request)
            heapq.heappush(self._ends, (self._end_time(request), request))
        load = sum(where == engine for where in self._running.values())
        self.most_at_once[engine] = max(self.most_at_once[engine], load)

    def abort(self, engine: int, requests: Sequence[Request]) -> None:
        for request in requests:
            assert self._running[request] == engine
            assert request not in self._aborted, "aborted twice"
            self._aborted.append(request)
            if self._rng.random() >= self._late:
                self._stopping.append(request)

    def wait(self) -> Sequence[Event[Payload]]:
        assert self._running or self._returns, "waited for nothing"
        self._num_waits += 1
        events: list[Event[Payload]] = [Aborted(request, num_tokens=1) for request in self._stopping]
        for request in self._stopping:
            del self._running[request]
        self._stopping = []
        due = [engine for engine, when in self._returns.items() if when <= self._num_waits or not self._running]
        for engine in due:
            del self._returns[engine]
            events.append(EngineUp(engine))
        if self._rng.random() < self._dying:
            events += self._die(int(self._rng.integers(self.num_engines)))
        # Several things at a time: a driver that is busy reads what has piled up.
        for _ in range(int(self._rng.integers(1, 4))):
            events += self._next()
        return events or self.wait()

    def _end_time(self, request: Request) -> float:
        """Rollouts end in this order."""
        return self._now + _tokens(self._end_of(request)) * self._rng.uniform(0.8, 1.2)

    def _next(self) -> list[Event[Payload]]:
        while self._ends and self._ends[0][1] not in self._running:
            heapq.heappop(self._ends)
        if not self._ends:
            return []
        self._now, request = heapq.heappop(self._ends)
        del self._running[request]
        return [self._end_of(request)]

    def _end_of(self, request: Request) -> Finished[Payload] | Failed:
        answer = self._answer(request)
        if _tokens(answer) > self._time_limit:
            return Failed(request, int(self._time_limit), f"rollout {request.index} took too long")
        return answer

    def _die(self, engine: int) -> list[EngineDown]:
        if engine in self._returns:
            return []
        lost = [request for request, where in self._running.items() if where == engine]
        self.num_lost += len(lost)
        for request in lost:
            del self._running[request]
        self._ends = [entry for entry in self._ends if entry[1] in self._running]
        heapq.heapify(self._ends)
        self._returns[engine] = self._num_waits + int(self._rng.integers(1, 20))
        return [EngineDown(engine)]


def _tokens(answer: Finished[Payload] | Failed) -> int:
    return answer.num_tokens if isinstance(answer, Failed) else answer.sample.num_tokens


class FakeFleet(FaultyFleet[Request]):
    """Of the outstanding requests, the one that `preference` puts first (least) ends first.

    `failing`: share of attempts that fail; `shape`: score to reward. Other options: see FaultyFleet.
    """

    def __init__(
        self,
        outcome: Outcome,
        preference: Preference,
        *,
        failing: float = 0.0,
        shape: Callable[[float], float] = lambda score: score,
        **options: Any,
    ) -> None:
        super().__init__(self._outcome_of, **options)
        self._outcome, self._preference, self._failing, self._shape = outcome, preference, failing, shape

    def _end_time(self, request: Request) -> float:
        return self._preference(request)

    def _outcome_of(self, request: Request) -> Finished[Request] | Failed:
        chance = np.random.default_rng([request.key, request.index, request.attempt]).random()
        if chance < self._failing:
            return Failed(request, num_tokens=2, reason="test")
        outcome = self._outcome(request)
        sample = Sample(request.key, request.index, outcome, self._shape(outcome), num_tokens=request.index + 1)
        return Finished(request, sample, request)
