"""Engines whose rollouts take as long as they have tokens, fail, run into a time limit, and die with their engine."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np

from openrlhf_ada.core.fleet import Aborted, EngineDown, EngineUp, Failed, Finished
from openrlhf_ada.core.scheduling import Request

Payload = TypeVar("Payload")
Event = Finished[Payload] | Aborted | Failed | EngineDown | EngineUp


class FaultyFleet(Generic[Payload]):
    """What a request leads to is `answer`'s alone; when it is told, and with what else, is up to chance (`seed`).

    A rollout of k tokens takes about k units of time. `time_limit`: tokens after which a rollout fails instead.
    `late`: share of aborts that come too late; `dying`: chance per wait that an engine dies. Remembers what was
    `sent`.
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
        self._ends: list[tuple[float, int, Request]] = []
        self._returns: list[tuple[float, int]] = []
        self._aborted: list[Request] = []
        self._stopping: list[Request] = []

    def submit(self, engine: int, requests: Sequence[Request]) -> None:
        assert engine not in self._down, "sent to a dead engine"
        for request in requests:
            assert request not in self._running, "sent twice"
            self._running[request] = engine
            self.sent.append(request)
            duration = _tokens(self._end_of(request)) * self._rng.uniform(0.8, 1.2)
            heapq.heappush(self._ends, (self._now + duration, len(self.sent), request))

    def abort(self, engine: int, requests: Sequence[Request]) -> None:
        for request in requests:
            assert self._running[request] == engine
            assert request not in self._aborted, "aborted twice"
            self._aborted.append(request)
            if self._rng.random() >= self._late:
                self._stopping.append(request)

    def wait(self) -> Sequence[Event[Payload]]:
        assert self._running or self._returns, "waited for nothing"
        events: list[Event[Payload]] = [Aborted(request, num_tokens=1) for request in self._stopping]
        for request in self._stopping:
            del self._running[request]
        self._stopping = []
        if self._rng.random() < self._dying:
            events += self._die(int(self._rng.integers(self.num_engines)))
        # Several things at a time: a driver that is busy reads what has piled up.
        for _ in range(int(self._rng.integers(1, 4))):
            events += self._next()
        return events or self.wait()

    @property
    def _down(self) -> list[int]:
        return [engine for _, engine in self._returns]

    def _next(self) -> list[Event[Payload]]:
        while self._ends and self._ends[0][2] not in self._running:
            heapq.heappop(self._ends)
        if self._returns and (not self._ends or self._returns[0][0] < self._ends[0][0]):
            self._now, engine = heapq.heappop(self._returns)
            return [EngineUp(engine)]
        if not self._ends:
            return []
        self._now, _, request = heapq.heappop(self._ends)
        del self._running[request]
        return [self._end_of(request)]

    def _end_of(self, request: Request) -> Finished[Payload] | Failed:
        answer = self._answer(request)
        if _tokens(answer) > self._time_limit:
            return Failed(request, int(self._time_limit), f"rollout {request.index} took too long")
        return answer

    def _die(self, engine: int) -> list[EngineDown]:
        if engine in self._down:
            return []
        lost = [request for request, where in self._running.items() if where == engine]
        self.num_lost += len(lost)
        for request in lost:
            del self._running[request]
        self._ends = [entry for entry in self._ends if entry[2] in self._running]
        heapq.heapify(self._ends)
        heapq.heappush(self._returns, (self._now + self._rng.uniform(1.0, 50.0), engine))
        return [EngineDown(engine)]


def _tokens(answer: Finished[Payload] | Failed) -> int:
    return answer.num_tokens if isinstance(answer, Failed) else answer.sample.num_tokens
