"""Which rollout goes out next, and when is a prompt done: schedulers as one state machine, without engines or clock.

A pool grows in order of index, by as many samples as its policy asked for, whatever finishes first. So every schedule
shows a policy the same pools, and short answers gain nothing by finishing early.

- `rounds`: the policy is asked when the waves of all prompts are in (Reinforce-Ada, Algorithm 2; the reference).
- `waves`: each prompt's policy is asked when its own wave is in.
- `stream`: and free slots take samples beyond the wave, those most likely to be needed first. They wait outside of the
  pool until the policy asks for them; when their prompt closes first, they are aborted.

Failures obey the same order. A rollout that fails before its policy has asked for it is parked: it is repeated, or its
prompt given up for it, only once the policy asks. So a prompt's fate depends on the rollouts that it needs alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from sys import maxsize
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

    `failure`: why the prompt was given up before its policy was through with it (the reason of the first rollout in
    index order that had no score at its last attempt); empty as a rule.
    """

    pool: PromptPool
    payloads: list[Payload] = field(default_factory=list[Payload])
    num_waves: int = 0
    failure: str = ""


class _Visit(Generic[Payload]):
    """An open prompt.

    `wanted`: the policy asked for indices below this. `sent`: those below were sent or queued; of these, `out` have no
    answer yet, `ahead` wait for their wave, and `parked` are to be sent again once they are wanted. `failed_at`: the
    first rollout that failed at its last attempt, for this `reason` (`maxsize`: none did); nothing from there on can
    enter the pool.
    """

    __slots__ = (
        "ahead", "failed_at", "finished", "num_back", "out", "parked", "reason", "sent", "tokens_back", "wanted",
    )  # fmt: skip

    def __init__(self, pool: PromptPool) -> None:
        self.finished = FinishedPool[Payload](pool)
        self.wanted = 0
        self.sent = 0
        self.out: dict[int, Request] = {}
        self.ahead: dict[int, tuple[Sample, Payload]] = {}
        self.parked: dict[int, Request] = {}
        self.failed_at = maxsize
        self.reason = ""
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

    @property
    def is_hopeless(self) -> bool:
        """Does the wave need a rollout that has failed for good, with all before it in?

        A lower index that is still out may fail as well; then the reason is its own, whichever came first.
        """
        before = range(len(self.pool), self.failed_at)
        return self.failed_at < self.wanted and all(index in self.ahead for index in before)

    def fail_at(self, index: int, reason: str) -> list[Request]:
        """This rollout has no score and gets no further attempt; returns those after it, which are in vain now."""
        # Those after an earlier one are in vain already, and not heard of here.
        self.failed_at, self.reason = index, reason
        return [self.out.pop(later) for later in list(self.out) if later > index]

    def next_ahead(self) -> Request:
        """The next rollout to send ahead: one that was lost with its engine, else the first that was never sent."""
        # One that failed has an attempt behind it, and the next has to wait until it is wanted.
        lost = [request for request in self.parked.values() if not request.attempt]
        return min(lost, default=Request(self.pool.key, self.sent))


class Scheduler(Generic[Payload]):
    """Samples all prompts, whose pools come empty, until the policy has closed them.

    Ask for requests with `take_required` and `take_speculative`, and answer each with `finish`, `fail`, `give_up`,
    `lose` or `acknowledge_abort`. What these return is to be aborted.

    `least_chance`: a sample is speculated on only if it is needed with at least this probability.
    `given_up`: closed for want of a score so far, in order of time.
    """

    def __init__(
        self, policy: Policy, pools: Sequence[PromptPool], name: SchedulerName, *, least_chance: float
    ) -> None:
        self.waste = Waste()
        self.num_sent = 0
        self.num_outstanding = 0
        self.given_up: list[FinishedPool[Payload]] = []
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
            # It may have become needless in the queue.
            visit = self._open.get(request.key)
            if visit is not None and request.index < visit.failed_at:
                return self._send(visit, request)
        return None

    def take_speculative(self) -> Request | None:
        """The rollout that is most likely to be asked for later."""
        key = self._candidates.take()
        if key is None:
            return None
        visit = self._open[key]
        request = self._send(visit, visit.next_ahead())
        if visit.parked.pop(request.index, None) is None:
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
        index, chance = visit.next_ahead().index, 0.0
        if index < visit.failed_at:
            ahead = [sample for sample, _ in visit.ahead.values()]
            chance = self._policy.chance_of_need(visit.pool, ahead, index)
        if chance > 0 and chance >= self._least_chance:
            self._candidates.offer(visit.pool.key, chance)
        else:
            self._candidates.withdraw(visit.pool.key)

    # -- what comes back ----------------------------------------------------------------------------------------------

    def finish(self, request: Request, sample: Sample, payload: Payload) -> list[Request]:
        """A rollout has its score; returns the requests that nobody needs any more."""
        visit = self._answered(request)
        if visit is None:
            self.waste.surplus.add(sample.num_tokens)
            return []
        visit.ahead[request.index] = (sample, payload)
        visit.num_back += 1
        visit.tokens_back += sample.num_tokens
        return self._advance(visit)

    def fail(self, request: Request, num_tokens: int) -> None:
        """A rollout got no score: repeat it before anything else, or park it until its policy asks for it."""
        self.waste.failed.add(num_tokens)
        visit = self._answered(request)
        if visit is not None:
            self._repeat(visit, Request(request.key, request.index, request.attempt + 1))

    def give_up(self, request: Request, num_tokens: int, reason: str) -> list[Request]:
        """A rollout got no score at its last attempt: its prompt ends here if its policy asks for this rollout.

        Returns what nobody needs any more.
        """
        self.waste.failed.add(num_tokens)
        visit = self._answered(request)
        if visit is None:
            return []
        return visit.fail_at(request.index, reason) + self._advance(visit)

    def lose(self, request: Request) -> None:
        """Its engine died; if its policy asked for it, it is sent again before anything else, else when it is due."""
        self.waste.lost.add(0)
        visit = self._answered(request)
        if visit is not None:
            self._repeat(visit, request)

    def acknowledge_abort(self, request: Request, num_tokens: int) -> None:
        """A rollout was stopped after so many tokens."""
        if self._answered(request) is not None:
            raise RuntimeError(f"{request} was aborted, but its prompt is open and may need it")
        self.waste.stopped.add(num_tokens)

    def _answered(self, request: Request) -> _Visit[Payload] | None:
        """Its prompt, if that is open and may still need it."""
        self.num_outstanding -= 1
        visit = self._open.get(request.key)
        if visit is None or visit.out.pop(request.index, None) is None:
            return None
        return visit

    def _repeat(self, visit: _Visit[Payload], request: Request) -> None:
        if request.index < visit.wanted:
            self._queue(request, inf)
        else:
            visit.parked[request.index] = request
            self._offer(visit)

    def _advance(self, visit: _Visit[Payload]) -> list[Request]:
        """One of its rollouts is in, or has failed for good; returns what to abort."""
        if visit.take_wave():
            if not self._has_barrier:
                return self._decide([visit])
            self._ready.append(visit)
            return self._decide_at_barrier()
        if visit.is_hopeless:
            return self._give_up(visit) + self._decide_at_barrier()
        self._offer(visit)
        return []

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
                elif visit.is_hopeless:
                    needless += self._give_up(visit)
                else:
                    self._offer(visit)
            visits = complete
        return needless

    def _want(self, visit: _Visit[Payload], count: int) -> None:
        visit.wanted = len(visit.pool) + count
        for index in sorted(index for index in visit.parked if index < visit.wanted):
            self._queue(visit.parked.pop(index), inf)
        for index in range(visit.sent, visit.wanted):
            self._queue(Request(visit.pool.key, index), visit.mean_tokens)
        visit.sent = max(visit.sent, visit.wanted)

    def _queue(self, request: Request, expected_tokens: float) -> None:
        """Long answers first: what is started last must not be what takes longest."""
        self._num_queued += 1
        heapq.heappush(self._required, (-expected_tokens, self._num_queued, request))

    def _give_up(self, visit: _Visit[Payload]) -> list[Request]:
        visit.finished.failure = visit.reason
        self.given_up.append(visit.finished)
        return self._close(visit)

    def _close(self, visit: _Visit[Payload]) -> list[Request]:
        key = visit.pool.key
        del self._open[key]
        self._closed[key] = visit.finished
        self._candidates.withdraw(key)
        for sample, _ in visit.ahead.values():
            self.waste.surplus.add(sample.num_tokens)
        return list(visit.out.values())
