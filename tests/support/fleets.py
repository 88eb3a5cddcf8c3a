"""Engines that answer in any order, late or not at all: what a scheduler must not care about."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from openrlhf_ada.core.fleet import Aborted, EngineDown, EngineUp, Failed, Finished
from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.core.types import Sample

Outcome = Callable[[Request], float]
Preference = Callable[[Request], float]


class FakeFleet:
    """Finishes the outstanding request that `preference` puts first (least), one to three at a time.

    `failing`: share of rollouts that fail; `late`: share of aborts that come too late; `shape`: metric to reward;
    `dying`: how often an engine dies, to come back some time later. Remembers what it was asked.
    """

    def __init__(
        self,
        outcome: Outcome,
        preference: Preference,
        *,
        num_engines: int = 1,
        seed: int = 0,
        failing: float = 0.0,
        late: float = 0.0,
        dying: float = 0.0,
        shape: Callable[[float], float] = lambda metric: metric,
    ) -> None:
        self.num_engines = num_engines
        self.sent: list[tuple[int, Request]] = []
        self.most_at_once = [0] * num_engines
        self._outcome, self._preference = outcome, preference
        self._failing, self._late, self._dying, self._shape = failing, late, dying, shape
        self.num_lost = 0
        self._down: list[int] = []
        self._rng = np.random.default_rng(seed)
        self._running: dict[Request, int] = {}
        self._stopping: list[Request] = []

    def submit(self, engine: int, requests: Sequence[Request]) -> None:
        assert engine not in self._down, "sent to a dead engine"
        for request in requests:
            assert request not in self._running, "sent twice"
            self._running[request] = engine
            self.sent.append((engine, request))
        load = sum(where == engine for where in self._running.values())
        self.most_at_once[engine] = max(self.most_at_once[engine], load)

    def abort(self, engine: int, requests: Sequence[Request]) -> None:
        for request in requests:
            assert self._running[request] == engine
            if self._rng.random() >= self._late:
                self._stopping.append(request)

    def wait(self) -> Sequence[Finished[Request] | Aborted | Failed | EngineDown | EngineUp]:
        if self._down and (not self._running or self._rng.random() < 0.2):
            return [EngineUp(self._down.pop())]
        if self._rng.random() < self._dying:
            return self._die(int(self._rng.integers(self.num_engines)))
        if self._stopping:
            stopped, self._stopping = self._stopping, []
            for request in stopped:
                del self._running[request]
            return [Aborted(request, num_tokens=1) for request in stopped]
        assert self._running, "waited for nothing"
        ordered = sorted(self._running, key=lambda request: (self._preference(request), request))
        return [self._end(request) for request in ordered[: self._rng.integers(1, 4)]]

    def _die(self, engine: int) -> list[EngineDown | EngineUp]:
        if engine in self._down:
            self._down.remove(engine)
            return [EngineUp(engine)]
        lost = [request for request, where in self._running.items() if where == engine]
        self.num_lost += len(lost)
        for request in lost:
            del self._running[request]
        self._stopping = [request for request in self._stopping if request in self._running]
        self._down.append(engine)
        return [EngineDown(engine)]

    def _end(self, request: Request) -> Finished[Request] | Failed:
        del self._running[request]
        if self._rng.random() < self._failing:
            return Failed(request, num_tokens=2, reason="test")
        outcome = self._outcome(request)
        sample = Sample(request.key, request.index, outcome, self._shape(outcome), num_tokens=request.index + 1)
        return Finished(request, sample, request)
