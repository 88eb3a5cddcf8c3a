"""Engines as a scheduler sees them, and the loop between the two."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Generic, Protocol, TypeAlias, TypeVar

from openrlhf_ada.core.scheduling import FinishedPool, Progress, Request, Scheduler
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


REPORT_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    """Rollouts on an engine at a time, on average: `slots` at most, and speculation up to `speculative` in all.

    `attempts`: how often a rollout that a policy asked for is tried before its prompt is given up.
    """

    slots: int
    speculative: int
    attempts: int = ATTEMPTS


MOST_AHEAD = 16
"""Requests that an engine may have more than the emptiest one and still get a prompt's next, whose prefix it has; at
most an eighth of its slots. With fewer, more engines prefill a prompt; with more, some engines are slower than others
(benchmarks/balance.py)."""


class Dispatcher(Generic[AnswerT]):
    """Sends requests to a fleet's engines and takes their answers.

    A request goes to the emptiest of the engines that have its prompt's prefix, unless that is MOST_AHEAD requests
    ahead of the emptiest of all: then to this one, which has the prefix from then on.
    """

    def __init__(self, fleet: Fleet[AnswerT], slots: int) -> None:
        self._fleet = fleet
        self._most_ahead = max(min(MOST_AHEAD, slots // 8), 1)
        self._loads = [0] * fleet.num_engines
        self._prefix_engines: dict[PromptKey, set[int]] = defaultdict(set)
        self._engine_of: dict[Request, int] = {}
        self._down: set[int] = set()

    @property
    def num_outstanding(self) -> int:
        return len(self._engine_of)

    def send(self, *sources: tuple[Callable[[], Request | None], int]) -> None:
        """Fill the engines from sources (take, per_engine), one after the other: take() gives the next request, or
        None, and is asked until each engine has `per_engine` requests on average."""
        batches: dict[int, list[Request]] = defaultdict(list)
        for take, per_engine in sources:
            while self.num_outstanding < per_engine * (len(self._loads) - len(self._down)):
                request = take()
                if request is None:
                    break
                batches[self._place(request)].append(request)
        for engine, requests in batches.items():
            self._fleet.submit(engine, requests)

    def wait(self) -> list[AnswerT | Lost]:
        """Block until something has happened; raises RuntimeError for an answer to what is not outstanding."""
        events: list[AnswerT | Lost] = []
        for event in self._fleet.wait():
            if isinstance(event, EngineUp):
                self._down.discard(event.engine)
            elif isinstance(event, EngineDown):
                events += map(Lost, self._close(event.engine))
            else:
                self._release(event.request)
                events.append(event)
        return events

    def abort(self, requests: Sequence[Request]) -> None:
        """Stop those of these requests that are still outstanding."""
        batches: dict[int, list[Request]] = defaultdict(list)
        for request in requests:
            if request in self._engine_of:
                batches[self._engine_of[request]].append(request)
        for engine, outstanding in batches.items():
            self._fleet.abort(engine, outstanding)

    def _place(self, request: Request) -> int:
        load = self._loads.__getitem__
        emptiest = min((engine for engine in range(len(self._loads)) if engine not in self._down), key=load)
        having = self._prefix_engines[request.key]
        engine = min(having, key=load, default=emptiest)
        # This may be more than its slots: to wait for one costs less time than another prefill.
        if load(engine) >= load(emptiest) + self._most_ahead:
            engine = emptiest
        having.add(engine)
        self._engine_of[request] = engine
        self._loads[engine] += 1
        return engine

    def _release(self, request: Request) -> None:
        if request not in self._engine_of:
            raise RuntimeError(f"an engine answered {request}, which is not outstanding")
        self._loads[self._engine_of.pop(request)] -= 1

    def _close(self, engine: int) -> list[Request]:
        """Returns the outstanding requests of an engine that died."""
        lost = [request for request, where in self._engine_of.items() if where == engine]
        for request in lost:
            self._release(request)
        self._down.add(engine)
        # Its prefix cache is gone.
        for having in self._prefix_engines.values():
            having.discard(engine)
        return lost


def run(
    scheduler: Scheduler[Payload],
    fleet: Fleet[Ended[Payload]],
    limits: DispatchLimits,
    on_progress: Callable[[], None] = lambda: None,
    on_failure: Callable[[Failed], None] = lambda failed: None,
    on_give_up: Callable[[FinishedPool[Payload]], None] = lambda finished: None,
) -> list[FinishedPool[Payload]]:
    """Sample until every prompt is closed and every request answered, or lost with its engine and sent again.

    `on_progress` is called whenever answers have been read, `on_failure` for every rollout that failed. One that its
    policy has asked for is tried `limits.attempts` times; then its prompt is given up, and `on_give_up` gets its pool.
    An exception of these callbacks ends the sampling.
    """
    dispatcher = Dispatcher(fleet, limits.slots)
    num_given_up = 0
    while not scheduler.is_done:
        dispatcher.send((scheduler.take_required, limits.slots), (scheduler.take_speculative, limits.speculative))
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


def sampling_progress(
    report: Callable[..., object], clock: Callable[[], float]
) -> Callable[[Callable[[], Progress]], None]:
    """To be called with a scheduler's `progress` whenever engines have answered. `report` gets its fields, and the
    seconds since this scheduler's sampling began: at the first call, and then every REPORT_EVERY_S."""
    current: Callable[[], Progress] | None = None
    began = reported_at = 0.0

    def look(read_progress: Callable[[], Progress]) -> None:
        nonlocal current, began, reported_at
        now = clock()
        if read_progress is not current:
            current, began, reported_at = read_progress, now, -inf
        # To look at thousands of pools takes longer than to read an answer.
        if now - reported_at >= REPORT_EVERY_S:
            reported_at = now
            report(**asdict(read_progress()), seconds=now - began)

    return look
