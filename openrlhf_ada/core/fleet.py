"""Engines as a scheduler sees them, and the loop between the two."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from openrlhf_ada.core.scheduling import FinishedPool, Request, Scheduler
from openrlhf_ada.core.types import PromptKey, Sample

Payload_co = TypeVar("Payload_co", covariant=True)
Payload = TypeVar("Payload")


@dataclass(frozen=True, slots=True)
class Finished(Generic[Payload_co]):
    """A rollout has its score."""

    request: Request
    sample: Sample
    payload: Payload_co


@dataclass(frozen=True, slots=True)
class Aborted:
    """A rollout was stopped after so many tokens, as was asked."""

    request: Request
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A rollout got no score, and why."""

    request: Request
    num_tokens: int
    reason: str


@dataclass(frozen=True, slots=True)
class EngineDown:
    """An engine died: what it was asked will not be answered, and until it is up again it is asked nothing."""

    engine: int


@dataclass(frozen=True, slots=True)
class EngineUp:
    """An engine that died can be asked again."""

    engine: int


class Fleet(Protocol[Payload_co]):
    """Engines that sample. A request is answered once, finished, aborted or failed, unless its engine dies."""

    @property
    def num_engines(self) -> int: ...

    def submit(self, engine: int, requests: Sequence[Request]) -> None: ...

    def abort(self, engine: int, requests: Sequence[Request]) -> None:
        """Stop these. One that has just finished may still say so."""
        ...

    def wait(self) -> Sequence[Finished[Payload_co] | Aborted | Failed | EngineDown | EngineUp]:
        """Block until something has happened."""
        ...


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    """Rollouts on an engine at a time: `slots` at most, and speculation up to `speculative` in all.

    `attempts`: how often a rollout that a policy asked for is tried before its prompt is given up.
    """

    slots: int
    speculative: int
    attempts: int = 2


class Dispatcher:
    """Which engine takes which request: the one that has the prompt's prefix while it has room, else the emptiest."""

    def __init__(self, num_engines: int, slots: int) -> None:
        self._slots = slots
        self._loads = [0] * num_engines
        self._emptiest = [(0, engine) for engine in range(num_engines)]
        self._homes: dict[PromptKey, int] = {}
        self._engines: dict[Request, int] = {}
        self._down: set[int] = set()

    def room(self, per_engine: int) -> int:
        """How many more may be sent, where an engine may have this many."""
        return per_engine * (len(self._loads) - len(self._down)) - len(self._engines)

    def place(self, request: Request) -> int:
        engine = self._homes.get(request.key)
        if engine is None or engine in self._down or self._loads[engine] >= self._slots:
            engine = self._find_emptiest()
            self._homes.setdefault(request.key, engine)
        self._engines[request] = engine
        self._change(engine, 1)
        return engine

    def has(self, request: Request) -> bool:
        return request in self._engines

    def engine_of(self, request: Request) -> int:
        return self._engines[request]

    def release(self, request: Request) -> None:
        """Its engine has answered; raises RuntimeError where it was not asked, or has answered before."""
        if request not in self._engines:
            raise RuntimeError(f"an engine answered {request}, which is not outstanding")
        self._change(self._engines.pop(request), -1)

    def close(self, engine: int) -> list[Request]:
        """It died; returns what it was asked."""
        lost = [request for request, where in self._engines.items() if where == engine]
        for request in lost:
            self.release(request)
        self._down.add(engine)
        # What it had cached is gone.
        self._homes = {key: home for key, home in self._homes.items() if home != engine}
        return lost

    def reopen(self, engine: int) -> None:
        self._down.discard(engine)
        self._change(engine, 0)

    def _find_emptiest(self) -> int:
        while True:
            load, engine = self._emptiest[0]
            if load == self._loads[engine] and engine not in self._down:
                return engine
            heapq.heappop(self._emptiest)

    def _change(self, engine: int, by: int) -> None:
        self._loads[engine] += by
        heapq.heappush(self._emptiest, (self._loads[engine], engine))


def run(
    scheduler: Scheduler[Payload],
    fleet: Fleet[Payload],
    limits: DispatchLimits,
    on_progress: Callable[[int], None] = lambda num_closed: None,
    on_failure: Callable[[Failed], None] = lambda failed: None,
    on_give_up: Callable[[FinishedPool[Payload]], None] = lambda finished: None,
) -> list[FinishedPool[Payload]]:
    """Sample until every prompt is closed and every request answered, or lost with its engine and sent again.

    `on_progress` gets the number of closed prompts whenever it has grown, `on_failure` every rollout that failed. One
    that its policy has asked for is repeated, as often as it may; then its prompt is given up, and `on_give_up` gets
    its pool. What they raise ends the sampling.
    """
    dispatcher = Dispatcher(fleet.num_engines, limits.slots)
    num_closed = num_given_up = 0
    while not scheduler.is_done:
        _send(scheduler, fleet, dispatcher, limits)
        needless: list[Request] = []
        for event in fleet.wait():
            if isinstance(event, EngineUp):
                dispatcher.reopen(event.engine)
            elif isinstance(event, EngineDown):
                for request in dispatcher.close(event.engine):
                    scheduler.lose(request)
            else:
                dispatcher.release(event.request)
                if isinstance(event, Failed):
                    on_failure(event)
                needless += _take(scheduler, event, limits.attempts)
        _abort(fleet, dispatcher, needless)
        if scheduler.num_closed > num_closed:
            num_closed = scheduler.num_closed
            on_progress(num_closed)
        for finished in scheduler.given_up[num_given_up:]:
            on_give_up(finished)
        num_given_up = len(scheduler.given_up)
    return scheduler.finished


def _take(scheduler: Scheduler[Payload], answer: Finished[Payload] | Aborted | Failed, attempts: int) -> list[Request]:
    """Pass an answer on; returns the requests that nobody needs any more."""
    request = answer.request
    if isinstance(answer, Finished):
        return scheduler.finish(request, answer.sample, answer.payload)
    if isinstance(answer, Aborted):
        scheduler.acknowledge_abort(request, answer.num_tokens)
        return []
    if request.attempt + 1 < attempts:
        scheduler.fail(request, answer.num_tokens)
        return []
    return scheduler.give_up(request, answer.num_tokens, answer.reason)


def _send(
    scheduler: Scheduler[Payload], fleet: Fleet[Payload], dispatcher: Dispatcher, limits: DispatchLimits
) -> None:
    batches: dict[int, list[Request]] = defaultdict(list)
    for take, limit in (
        (scheduler.take_required, limits.slots),
        (scheduler.take_speculative, limits.speculative),
    ):
        for _ in range(dispatcher.room(limit)):
            request = take()
            if request is None:
                break
            batches[dispatcher.place(request)].append(request)
    for engine, requests in batches.items():
        fleet.submit(engine, requests)


def _abort(fleet: Fleet[Payload], dispatcher: Dispatcher, needless: Sequence[Request]) -> None:
    batches: dict[int, list[Request]] = defaultdict(list)
    for request in needless:
        # One that finished while the others were read needs no stopping.
        if dispatcher.has(request):
            batches[dispatcher.engine_of(request)].append(request)
    for engine, requests in batches.items():
        fleet.abort(engine, requests)
