"""Which rollout goes out next, and when is a prompt done: schedulers as one state machine, without engines or clock.

A pool grows in order of index, by as many samples as its policy asked for, whatever finishes first. So every schedule
shows a policy the same pools, and short answers gain nothing by finishing early.

- `rounds`: the policy is asked when the waves of all prompts are in (Reinforce-Ada, Algorithm 2; the reference).
- `waves`: each prompt's policy is asked when its own wave is in.
- `stream`: and free slots take samples beyond the wave, those most likely to be needed first. They wait outside of the
  pool until the policy asks for them; when their prompt closes first, they are aborted.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Generic, Literal, TypeVar

from openrlhf_ada.core.policies import Close, Policy
from openrlhf_ada.core.speculation import Candidates
from openrlhf_ada.core.types import PromptKey, PromptPool, Sample, Waste

Payload = TypeVar("Payload")

SCHEDULERS = ("rounds", "waves", "stream")
SchedulerName = Literal["rounds", "waves", "stream"]


@dataclass(frozen=True, slots=True, order=True)
class Request:
    """One rollout to sample. `attempt` counts the ones before it that failed."""

    key: PromptKey
    index: int
    attempt: int = 0


@dataclass(slots=True)
class FinishedPool(Generic[Payload]):
    """A closed pool and, at the same positions, what the plumbing keeps of each sample.

    `failure`: why the prompt was closed before its policy was through with it; empty as a rule.
    """

    pool: PromptPool
    payloads: list[Payload] = field(default_factory=list[Payload])
    num_waves: int = 0
    failure: str = ""


class _Visit(Generic[Payload]):
    """An open prompt.

    `wanted`: the policy asked for indices below this. `sent`: those below are sent or queued; of these, `out` have no
    answer yet and `ahead` wait for their wave.
    """

    __slots__ = ("ahead", "finished", "num_back", "out", "sent", "tokens_back", "wanted")

    def __init__(self, pool: PromptPool) -> None:
        self.finished = FinishedPool[Payload](pool)
        self.wanted = 0
        self.sent = 0
        self.out: dict[int, Request] = {}
        self.ahead: dict[int, tuple[Sample, Payload]] = {}
        self.num_back = self.tokens_back = 0

    @property
    def mean_tokens(self) -> float:
        """Of the prompt's rollouts that are back; 0 before the first."""
        return self.tokens_back / max(self.num_back, 1)

    @property
    def pool(self) -> PromptPool:
        return self.finished.pool

    def take_wave(self) -> bool:
        """Move what was asked for into the pool, if all of it is there."""
        wave = range(len(self.pool), self.wanted)
        if not all(index in self.ahead for index in wave):
            return False
        arrived = [self.ahead.pop(index) for index in wave]
        self.pool.add(sample for sample, _ in arrived)
        self.finished.payloads += [payload for _, payload in arrived]
        self.finished.num_waves += 1
        return True


class Scheduler(Generic[Payload]):
    """Samples all prompts, whose pools come empty, until the policy has closed them.

    Ask for requests with `take_required` and `take_speculative`, and answer each with `finish`, `fail`, `give_up`,
    `lose` or `acknowledge_abort`. What these return is to be aborted.

    `least_chance`: a sample is speculated on only if it is needed with at least this probability.
    """

    def __init__(
        self, policy: Policy, pools: Sequence[PromptPool], name: SchedulerName, *, least_chance: float
    ) -> None:
        self.waste = Waste()
        self.num_sent = 0
        self.num_outstanding = 0
        self._policy = policy
        self._speculates = name == "stream"
        self._has_barrier = name == "rounds"
        self._least_chance = least_chance
        self._keys = [pool.key for pool in pools]
        self._open = {pool.key: _Visit[Payload](pool) for pool in pools}
        self._closed: dict[PromptKey, FinishedPool[Payload]] = {}
        self._required: list[tuple[float, int, Request]] = []
        self._num_queued = 0
        self._candidates = Candidates()
        self._ready: list[_Visit[Payload]] = []
        self._decide(list(self._open.values()))

    @property
    def is_done(self) -> bool:
        """Is every prompt closed and every request answered?"""
        return not self._open and not self.num_outstanding

    @property
    def num_closed(self) -> int:
        return len(self._closed)

    def is_open(self, key: PromptKey) -> bool:
        return key in self._open

    @property
    def finished(self) -> list[FinishedPool[Payload]]:
        """Closed pools in the order in which the prompts were given; raises RuntimeError while some are open."""
        if not self.is_done:
            raise RuntimeError(f"{len(self._open)} prompts are open and {self.num_outstanding} requests unanswered")
        pools = [self._closed[key] for key in self._keys]
        accounted = sum(len(entry.pool) for entry in pools) + self.waste.total.rollouts
        if accounted != self.num_sent:
            raise RuntimeError(f"{self.num_sent} requests were sent, {accounted} are accounted for")
        return pools

    # -- what to send -------------------------------------------------------------------------------------------------

    def take_required(self) -> Request | None:
        """The next rollout that a policy waits for."""
        while self._required:
            request = heapq.heappop(self._required)[2]
            # A repeated attempt may have become needless in the queue.
            visit = self._open.get(request.key)
            if visit is not None:
                return self._send(visit, request)
        return None

    def take_speculative(self) -> Request | None:
        """The rollout that is most likely to be asked for later."""
        key = self._candidates.take()
        if key is None:
            return None
        visit = self._open[key]
        request = self._send(visit, Request(key, visit.sent))
        visit.sent += 1
        self._offer(visit)
        return request

    def _send(self, visit: _Visit[Payload], request: Request) -> Request:
        visit.out[request.index] = request
        self.num_sent += 1
        self.num_outstanding += 1
        return request

    def _offer(self, visit: _Visit[Payload]) -> None:
        if not self._speculates:
            return
        ahead = [sample for sample, _ in visit.ahead.values()]
        chance = self._policy.chance_of_need(visit.pool, ahead, visit.sent)
        if chance > 0 and chance >= self._least_chance:
            self._candidates.offer(visit.pool.key, chance)
        else:
            self._candidates.withdraw(visit.pool.key)

    # -- what comes back ----------------------------------------------------------------------------------------------

    def finish(self, request: Request, sample: Sample, payload: Payload) -> list[Request]:
        """A rollout has its verdict; returns the requests that nobody needs any more."""
        visit = self._answered(request)
        if visit is None:
            self.waste.surplus.add(sample.num_tokens)
            return []
        visit.ahead[request.index] = (sample, payload)
        visit.num_back += 1
        visit.tokens_back += sample.num_tokens
        if not visit.take_wave():
            self._offer(visit)
            return []
        if not self._has_barrier:
            return self._decide([visit])
        self._ready.append(visit)
        return self._decide_at_barrier()

    def fail(self, request: Request, num_tokens: int) -> None:
        """A rollout came to no verdict; another is sampled in its place, before anything else."""
        self.waste.failed.add(num_tokens)
        if self._answered(request) is not None:
            self._queue(Request(request.key, request.index, request.attempt + 1), inf)

    def give_up(self, request: Request, num_tokens: int, reason: str) -> list[Request]:
        """A rollout came to no verdict once too often: its prompt ends here. Returns what nobody needs any more."""
        self.waste.failed.add(num_tokens)
        visit = self._answered(request)
        if visit is None:
            return []
        visit.finished.failure = reason
        return self._close(visit) + self._decide_at_barrier()

    def lose(self, request: Request) -> None:
        """Its engine died; the same rollout is sampled elsewhere, before anything else."""
        self.waste.lost.add(0)
        if self._answered(request) is not None:
            self._queue(request, inf)

    def acknowledge_abort(self, request: Request, num_tokens: int) -> None:
        """A rollout was stopped after so many tokens."""
        if self._answered(request) is not None:
            raise RuntimeError(f"{request} was aborted, but its prompt is open")
        self.waste.stopped.add(num_tokens)

    def _answered(self, request: Request) -> _Visit[Payload] | None:
        """Its prompt, if that is still open."""
        self.num_outstanding -= 1
        visit = self._open.get(request.key)
        if visit is not None:
            del visit.out[request.index]
        return visit

    # -- decisions ----------------------------------------------------------------------------------------------------

    def _decide_at_barrier(self) -> list[Request]:
        if not self._ready or len(self._ready) < len(self._open):
            return []
        ready, self._ready = self._ready, []
        return self._decide(ready)

    def _decide(self, visits: list[_Visit[Payload]]) -> list[Request]:
        """Ask the policy about these prompts until each waits for a sample or is closed; returns what to abort."""
        needless: list[Request] = []
        while visits:
            actions = self._policy.decide([visit.pool for visit in visits])
            complete: list[_Visit[Payload]] = []
            for visit, action in zip(visits, actions, strict=True):
                if isinstance(action, Close):
                    needless += self._close(visit)
                    continue
                self._want(visit, action.count)
                if visit.take_wave():
                    complete.append(visit)
                else:
                    self._offer(visit)
            visits = complete
        return needless

    def _want(self, visit: _Visit[Payload], count: int) -> None:
        visit.wanted = len(visit.pool) + count
        for index in range(visit.sent, visit.wanted):
            self._queue(Request(visit.pool.key, index), visit.mean_tokens)
        visit.sent = max(visit.sent, visit.wanted)

    def _queue(self, request: Request, expected_tokens: float) -> None:
        """Long answers first: what is started last must not be what takes longest."""
        self._num_queued += 1
        heapq.heappush(self._required, (-expected_tokens, self._num_queued, request))

    def _close(self, visit: _Visit[Payload]) -> list[Request]:
        key = visit.pool.key
        del self._open[key]
        self._closed[key] = visit.finished
        self._candidates.withdraw(key)
        for sample, _ in visit.ahead.values():
            self.waste.surplus.add(sample.num_tokens)
        return list(visit.out.values())
