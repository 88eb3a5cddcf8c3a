"""Engines as a scheduler sees them, and the loop between the two."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

from openrlhf_ada.core.scheduling import FinishedPool, Request, Scheduler
from openrlhf_ada.core.types import PromptKey, Sample

Payload = TypeVar("Payload")


@dataclass(frozen=True, slots=True)
class Finished(Generic[Payload]):
    """A rollout has its score."""

    request: Request
    sample: Sample
    payload: Payload


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


Ended: TypeAlias = Finished[Payload] | Aborted | Failed
"""How an engine answers a request."""


@dataclass(frozen=True, slots=True)
class Lost:
    """An engine died with this request: it will not be answered."""

    request: Request


@dataclass(frozen=True, slots=True)
class EngineDown:
    """An engine died. It will not answer what it was asked, and gets no requests until it is up again."""

    engine: int


@dataclass(frozen=True, slots=True)
class EngineUp:
    """An engine that died takes requests again."""

    engine: int


class HasRequest(Protocol):
    """An engine's answer to a request."""

    @property
    def request(self) -> Request: ...


Answer_co = TypeVar("Answer_co", bound=HasRequest, covariant=True)
AnswerT = TypeVar("AnswerT", bound=HasRequest)


class Fleet(Protocol[Answer_co]):
    """Engines that sample. Every request gets one answer, unless its engine dies."""

    @property
    def num_engines(self) -> int: ...

    def submit(self, engine: int, requests: Sequence[Request]) -> None: ...

    def abort(self, engine: int, requests: Sequence[Request]) -> None:
        """Stop these. One that has just finished may still say so."""
        ...

    def wait(self) -> Sequence[Answer_co | EngineDown | EngineUp]:
        """Block until something has happened."""
        ...


ATTEMPTS = 2
"""How often a rollout is tried until it has a score, with the same seed: a reward server may have been away."""


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    """Rollouts on an engine at a time: `slots` at most, and speculation up to `speculative` in all.

    `attempts`: how often a rollout that a policy asked for is tried before its prompt is given up.
    """

    slots: int
    speculative: int
    attempts: int = ATTEMPTS


class Placement:
    """Which engine takes which request: the one that has the prompt's prefix while it has room, else the emptiest."""

    def __init__(self, num_engines: int, slots: int) -> None:
        self._slots = slots
        self._loads = [0] * num_engines
        self._emptiest = [(0, engine) for engine in range(num_engines)]
        self._prefix_engines: dict[PromptKey, int] = {}
        self._engines: dict[Request, int] = {}
        self._down: set[int] = set()

    def room(self, per_engine: int) -> int:
        """How many more requests may be sent if each engine may have `per_engine`."""
        return per_engine * (len(self._loads) - len(self._down)) - len(self._engines)

    def place(self, request: Request) -> int:
        engine = self._prefix_engines.get(request.key)
        if engine is None or engine in self._down or self._loads[engine] >= self._slots:
            engine = self._find_emptiest()
            self._prefix_engines.setdefault(request.key, engine)
        self._engines[request] = engine
        self._add_load(engine, 1)
        return engine

    @property
    def num_outstanding(self) -> int:
        return len(self._engines)

    def engine_of(self, request: Request) -> int | None:
        """None where the request is not outstanding."""
        return self._engines.get(request)

    def release(self, request: Request) -> None:
        """The request was answered; raises RuntimeError if it is not outstanding."""
        if request not in self._engines:
            raise RuntimeError(f"an engine answered {request}, which is not outstanding")
        self._add_load(self._engines.pop(request), -1)

    def close(self, engine: int) -> list[Request]:
        """An engine died; returns its outstanding requests."""
        lost = [request for request, where in self._engines.items() if where == engine]
        for request in lost:
            self.release(request)
        self._down.add(engine)
        # Its prefix cache is gone.
        self._prefix_engines = {key: cached for key, cached in self._prefix_engines.items() if cached != engine}
        return lost

    def reopen(self, engine: int) -> None:
        self._down.discard(engine)
        self._add_load(engine, 0)

    def _find_emptiest(self) -> int:
        while True:
            load, engine = self._emptiest[0]
            if load == self._loads[engine] and engine not in self._down:
                return engine
            heapq.heappop(self._emptiest)

    def _add_load(self, engine: int, by: int) -> None:
        self._loads[engine] += by
        heapq.heappush(self._emptiest, (self._loads[engine], engine))


class Dispatcher(Generic[AnswerT]):
    """Sends requests to a fleet's engines and takes their answers. An engine holds `slots` requests at most."""

    def __init__(self, fleet: Fleet[AnswerT], slots: int) -> None:
        self._fleet = fleet
        self._placement = Placement(fleet.num_engines, slots)

    @property
    def num_outstanding(self) -> int:
        return self._placement.num_outstanding

    def send(self, *sources: tuple[Callable[[], Request | None], int]) -> None:
        """Fill the engines from sources of requests, one after the other.

        A source is (take, per_engine): take() gives the next request, or None if there is none; it is asked until each
        engine has `per_engine` requests on average.
        """
        batches: dict[int, list[Request]] = defaultdict(list)
        for take, per_engine in sources:
            for _ in range(self._placement.room(per_engine)):
                request = take()
                if request is None:
                    break
                batches[self._placement.place(request)].append(request)
        for engine, requests in batches.items():
            self._fleet.submit(engine, requests)

    def wait(self) -> list[AnswerT | Lost]:
        """Block until something has happened; raises RuntimeError for an answer to what is not outstanding."""
        events: list[AnswerT | Lost] = []
        for event in self._fleet.wait():
            if isinstance(event, EngineUp):
                self._placement.reopen(event.engine)
            elif isinstance(event, EngineDown):
                events += map(Lost, self._placement.close(event.engine))
            else:
                self._placement.release(event.request)
                events.append(event)
        return events

    def abort(self, requests: Sequence[Request]) -> None:
        """Stop those of these requests that are still outstanding."""
        batches: dict[int, list[Request]] = defaultdict(list)
        for request in requests:
            engine = self._placement.engine_of(request)
            if engine is not None:
                batches[engine].append(request)
        for engine, outstanding in batches.items():
            self._fleet.abort(engine, outstanding)


def run(
    scheduler: Scheduler[Payload],
    fleet: Fleet[Ended[Payload]],
    limits: DispatchLimits,
    on_progress: Callable[[], None] = lambda: None,
    on_failure: Callable[[Failed], None] = lambda failed: None,
    on_give_up: Callable[[FinishedPool[Payload]], None] = lambda finished: None,
) -> list[FinishedPool[Payload]]:
    """Sample until every prompt is closed and every request answered, or lost with its engine and sent again.

    `on_progress` is called whenever engines' answers have been read, `on_failure` for every rollout that failed. A
    failed rollout that its policy has asked for is repeated, up to `limits.attempts` times; then its prompt is given
    up, and `on_give_up` gets its pool. An exception of these callbacks ends the sampling.
    """
    dispatcher = Dispatcher(fleet, limits.slots)
    num_given_up = 0
    while not scheduler.is_done:
        dispatcher.send(
            (scheduler.take_required, limits.slots),
            (scheduler.take_speculative, limits.speculative),
        )
        needless: list[Request] = []
        for event in dispatcher.wait():
            if isinstance(event, Failed):
                on_failure(event)
            needless += _report(scheduler, event, limits.attempts)
        dispatcher.abort(needless)
        on_progress()
        for finished in scheduler.given_up[num_given_up:]:
            on_give_up(finished)
        num_given_up = len(scheduler.given_up)
    return scheduler.finished


def _report(scheduler: Scheduler[Payload], event: Ended[Payload] | Lost, attempts: int) -> list[Request]:
    """Tell the scheduler of an event; returns the requests that nobody needs any more."""
    request = event.request
    if isinstance(event, Finished):
        return scheduler.finish(request, event.sample, event.payload)
    if isinstance(event, Failed) and request.attempt + 1 >= attempts:
        return scheduler.give_up(request, event.num_tokens, event.reason)
    if isinstance(event, Failed):
        scheduler.fail(request, event.num_tokens)
    elif isinstance(event, Aborted):
        scheduler.acknowledge_abort(request, event.num_tokens)
    else:
        scheduler.lose(request)
    return []
