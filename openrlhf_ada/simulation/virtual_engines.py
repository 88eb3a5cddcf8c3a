"""Engines in virtual time: continuous batching, where a decoding step takes longer the more requests are in it."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from openrlhf_ada.core.fleet import Aborted, Finished
from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.core.speculation import GPU_SPECULATION
from openrlhf_ada.core.types import PromptKey, Sample

SampleOf = Callable[[Request], Sample]
"""The sample of a request; the same on every engine and at any time."""


@dataclass(frozen=True)
class EngineModel:
    """Times of one engine, in seconds: of a decoding step at each batch size (linear in between), and of a prefill.

    `prefill` is per request whose prompt the engine has not seen, `shared_prefill` per further one; both hold up the
    whole engine and include the request's share of everything else. `latency`: from the end of a rollout to the
    driver's answer. `slots`: requests that decode at a time; `speculation`: up to which it is worth to send some ahead
    (None: all slots). Raises ValueError for figures without a meaning.
    """

    batch_sizes: tuple[int, ...]
    step_seconds: tuple[float, ...]
    slots: int
    prefill: float = 0.0
    shared_prefill: float = 0.0
    latency: float = 0.0
    speculation: int | None = None

    def __post_init__(self) -> None:
        if len(self.batch_sizes) != len(self.step_seconds) or len(self.batch_sizes) < 2:
            raise ValueError("expected as many batch sizes as times, at least two")
        if list(self.batch_sizes) != sorted(set(self.batch_sizes)):
            raise ValueError(f"batch sizes {self.batch_sizes}: expected them to rise")
        if self.slots < 1 or min(self.step_seconds) <= 0 or min(self.prefill, self.shared_prefill, self.latency) < 0:
            raise ValueError("expected slots and seconds per step above 0, and no time below it")

    def steps(self) -> list[float]:
        """Seconds per step with 0, 1, ..., `slots` requests."""
        sizes = np.arange(self.slots + 1)
        times = np.interp(sizes, self.batch_sizes, self.step_seconds)
        # Beyond the largest measured batch: with the slope of the last interval.
        (before, last), (at_before, at_last) = self.batch_sizes[-2:], self.step_seconds[-2:]
        beyond = at_last + (at_last - at_before) / (last - before) * (sizes - last)
        return np.where(sizes > last, beyond, times).tolist()


GPU_LIKE = EngineModel(
    batch_sizes=(1, 256), step_seconds=(0.008, 0.022), slots=GPU_SPECULATION, speculation=GPU_SPECULATION
)
"""Memory-bound decoding: 256 rollouts at a time take not three times as long as one. A real engine has 256 slots on a
GPU of less than 70 GB or an A100, and 1,024 on others; more than 256 change little, since these are not filled with
speculation (benchmarks/speculation.py)."""


@dataclass(slots=True)
class _Engine:
    """`clock` counts steps, `now` is the time at which it was last right, `stalled` the prefill still to be done."""

    seconds: Sequence[float]
    slots: int
    clock: float = 0.0
    now: float = 0.0
    stalled: float = 0.0
    running: dict[Request, tuple[float, Sample]] = field(default_factory=dict[Request, "tuple[float, Sample]"])
    ends: list[tuple[float, Request]] = field(default_factory=list["tuple[float, Request]"])
    waiting: deque[tuple[Request, Sample, float]] = field(default_factory=deque["tuple[Request, Sample, float]"])
    prompts: set[PromptKey] = field(default_factory=set[PromptKey])
    stamp: int = 0

    def advance(self, now: float) -> None:
        elapsed = now - self.now
        self.now = now
        stall = min(self.stalled, elapsed)
        self.stalled -= stall
        if self.running:
            self.clock += (elapsed - stall) / self.seconds[len(self.running)]

    def add(self, request: Request, sample: Sample, prefill: float) -> None:
        if len(self.running) >= self.slots:
            self.waiting.append((request, sample, prefill))
            return
        self.stalled += prefill
        self.running[request] = (self.clock, sample)
        heapq.heappush(self.ends, (self.clock + sample.num_tokens, request))

    def remove(self, request: Request) -> int:
        """Take out a request; returns the number of tokens that it had sampled."""
        if request in self.running:
            started, sample = self.running.pop(request)
            self._fill()
            return min(int(self.clock - started), sample.num_tokens)
        self.waiting = deque(entry for entry in self.waiting if entry[0] != request)
        return 0

    def _fill(self) -> None:
        while self.waiting and len(self.running) < self.slots:
            self.add(*self.waiting.popleft())

    def next_end(self) -> float | None:
        while self.ends and self.ends[0][1] not in self.running:
            heapq.heappop(self.ends)
        if not self.ends:
            return None
        left = max(self.ends[0][0] - self.clock, 0.0)
        return self.now + self.stalled + left * self.seconds[len(self.running)]

    def take_ended(self) -> tuple[Request, Sample]:
        _, request = heapq.heappop(self.ends)
        _, sample = self.running.pop(request)
        self._fill()
        return request, sample


class VirtualFleet:
    """A fleet whose time passes only in `wait`. `now`: seconds since it was made."""

    def __init__(self, num_engines: int, model: EngineModel, answer: SampleOf) -> None:
        self.now = 0.0
        self._model = model
        self._answer = answer
        seconds = model.steps()
        self._engines = [_Engine(seconds, model.slots) for _ in range(num_engines)]
        self._events: list[tuple[float, int, int]] = []
        self._answers: list[Finished[None] | Aborted] = []
        self._first_answer = 0.0

    @property
    def num_engines(self) -> int:
        return len(self._engines)

    def submit(self, engine: int, requests: Sequence[Request]) -> None:
        target = self._engines[engine]
        target.advance(self.now)
        for request in requests:
            is_new = request.key not in target.prompts
            target.prompts.add(request.key)
            prefill = self._model.prefill if is_new else self._model.shared_prefill
            target.add(request, self._answer(request), prefill)
        self._reschedule(engine)

    def abort(self, engine: int, requests: Sequence[Request]) -> None:
        target = self._engines[engine]
        target.advance(self.now)
        for request in requests:
            self._answer_at(self.now, Aborted(request, target.remove(request)))
        self._reschedule(engine)

    def wait(self) -> Sequence[Finished[None] | Aborted]:
        """What has ended by the time that the first answer arrives."""
        if not self._answers:
            self._end_next()
        while (when := self._next_event()) is not None and when <= self._first_answer + self._model.latency:
            self._end_next()
        self.now = max(self.now, self._first_answer + self._model.latency)
        answers, self._answers = self._answers, []
        return answers

    def _answer_at(self, when: float, answer: Finished[None] | Aborted) -> None:
        if not self._answers:
            self._first_answer = when
        self._answers.append(answer)

    def _next_event(self) -> float | None:
        while self._events and self._events[0][1] != self._engines[self._events[0][2]].stamp:
            heapq.heappop(self._events)
        return self._events[0][0] if self._events else None

    def _end_next(self) -> None:
        """Advance to the next end of a rollout."""
        when = self._next_event()
        if when is None:
            raise RuntimeError("nothing is running, so nothing can be waited for")
        engine = self._events[0][2]
        self._engines[engine].advance(when)
        request, sample = self._engines[engine].take_ended()
        self._reschedule(engine)
        self._answer_at(when, Finished(request, sample, None))

    def _reschedule(self, engine: int) -> None:
        target = self._engines[engine]
        target.stamp += 1
        end = target.next_end()
        if end is not None:
            heapq.heappush(self._events, (end, target.stamp, engine))
