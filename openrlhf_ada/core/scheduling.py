"""Schedulers as one state machine, without engines or clock: which rollout is sent next, and when is a prompt done?

A pool grows in order of index, by as many samples as its policy asked for, whatever finishes first. So a policy sees
the same pools under every scheduler, and short answers have no advantage from finishing early.

- `rounds`: the policy is asked when the waves of all prompts are in (Reinforce-Ada, Algorithm 2; the reference).
- `waves`: each prompt's policy is asked when its own wave is in.
- `stream`: as `waves`, and free slots sample beyond the wave, the samples most likely to be needed first. These wait
  outside of the pool until the policy asks for them. If their prompt closes first, they are aborted.

Failures obey the same order. A rollout that fails before its policy has asked for it is parked. Only when the policy
asks for it is it repeated, or its prompt given up. So only rollouts that a prompt needs decide its fate.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from sys import maxsize
from typing import Generic, Literal, NamedTuple, TypeVar

import numpy as np

from openrlhf_ada.core.advantages import is_spread
from openrlhf_ada.core.policies import Close, Policy
from openrlhf_ada.core.speculation import LEAST_CHANCE, SpeculationQueue
from openrlhf_ada.core.types import PromptKey, PromptPool, Sample, Tally, Waste

Payload = TypeVar("Payload")

SCHEDULERS = ("rounds", "waves", "stream")
SchedulerName = Literal["rounds", "waves", "stream"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a step's sampling is.

    Prompts: `done` are closed; of those that are open, `unresolved` have equal scores so far, and `open` are all the
    others. `rollouts`, `tokens`: that have ended, waste included. `right`: mean score of each prompt's first n
    samples. `signal`: share of prompts with different scores. Both of those that have finished a wave, or None.
    """

    open: int
    unresolved: int
    done: int
    rollouts: int
    tokens: int
    right: float | None
    signal: float | None


class Request(NamedTuple):
    """One rollout to sample. `attempt` counts the ones before it that failed."""

    key: PromptKey
    # A tuple's method of that name is of no use here.
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    attempt: int = 0


def rollout_seed(run_seed: int, request: Request) -> int:
    """A seed of 63 bits from the identity of a rollout: the same on any engine, in any order, at any attempt.

    With a new seed, rollouts that tend to fail, such as long ones, would become rarer than the policy makes them.
    """
    identity = [run_seed, request.key, request.index]
    return int(np.random.SeedSequence(identity).generate_state(1, np.uint64)[0] >> np.uint64(1))


@dataclass(slots=True)
class FinishedPool(Generic[Payload]):
    """A closed pool and, at the same positions, what the plumbing keeps of each sample.

    `failure`: why the prompt was given up before its policy closed it, by its first rollout in index order without a
    score; empty for all others. `wanted`: rollouts that the policy had asked for by then.
    """

    pool: PromptPool
    payloads: list[Payload] = field(default_factory=list[Payload])
    failure: str = ""
    wanted: int = 0


@dataclass(slots=True)
class _OpenPrompt(Generic[Payload]):
    """A prompt whose policy still decides about it, and asked for indices below `wanted`. Those below `sent` are
    `outstanding` (no answer yet), `waiting` (finished, for their wave), `parked` (sent again once wanted) or queued.
    `failed_at`: the first index without a score for good (`maxsize`: none), which with all after it enters no pool."""

    finished: FinishedPool[Payload]
    wanted: int = 0
    sent: int = 0
    outstanding: dict[int, Request] = field(default_factory=dict[int, Request])
    waiting: dict[int, tuple[Sample, Payload]] = field(default_factory=dict[int, "tuple[Sample, Payload]"])
    parked: dict[int, Request] = field(default_factory=dict[int, Request])
    failed_at: int = maxsize
    reason: str = ""
    answered: Tally = field(default_factory=Tally)

    @property
    def pool(self) -> PromptPool:
        return self.finished.pool

    def complete_wave(self) -> bool:
        """Move the wave into the pool if all of it has finished; had it?"""
        wave = range(len(self.pool), self.wanted)
        # The first test alone nearly always tells, and it does not take longer with the wave's size.
        if len(self.waiting) < len(wave) or not all(index in self.waiting for index in wave):
            return False
        arrived = [self.waiting.pop(index) for index in wave]
        self.pool.add(sample for sample, _ in arrived)
        self.finished.payloads += [payload for _, payload in arrived]
        return True

    @property
    def is_hopeless(self) -> bool:
        """Does the wave need a rollout that has failed at its last attempt, with all before it finished?"""
        # A lower index that is still outstanding may fail too, and then its reason counts.
        before = range(len(self.pool), self.failed_at)
        return self.failed_at < self.wanted and all(index in self.waiting for index in before)

    def mark_failed(self, index: int, reason: str) -> list[Request]:
        """This rollout has no score and gets no further attempt; returns the later ones, which are useless now."""
        self.failed_at, self.reason = index, reason
        return [self.outstanding.pop(later) for later in list(self.outstanding) if later > index]

    def next_speculative(self) -> Request:
        """The next rollout to send ahead: one that was lost with its engine, else the first never sent."""
        # A rollout that failed has attempt > 0; it is repeated only once it is wanted.
        following = Request(self.pool.key, self.sent)
        return min((request for request in self.parked.values() if not request.attempt), default=following)


class Scheduler(Generic[Payload]):
    """Decides what to sample until the policy has closed all prompts. `pools` come empty.

    Ask for requests with `take_required` and `take_speculative`, and answer each with `finish`, `fail`, `give_up`,
    `lose` or `acknowledge_abort`. What these return is to be aborted.

    `least_chance`: a sample is speculated on only if it is needed with at least this probability.
    `given_up`: those of which a rollout got no score, in order of time.
    """

    def __init__(
        self, policy: Policy, pools: Sequence[PromptPool], name: SchedulerName, *, least_chance: float = LEAST_CHANCE
    ) -> None:
        self.waste = Waste()
        self.num_sent = 0
        self.num_outstanding = 0
        self.num_tokens = 0
        self.given_up: list[FinishedPool[Payload]] = []
        self._policy = policy
        self._speculates = name == "stream"
        self._has_barrier = name == "rounds"
        self._least_chance = least_chance
        self._keys = [pool.key for pool in pools]
        self._open = {pool.key: _OpenPrompt[Payload](FinishedPool(pool)) for pool in pools}
        self._closed: dict[PromptKey, FinishedPool[Payload]] = {}
        self._required: list[tuple[float, int, Request]] = []
        self._num_queued = 0
        self._speculation_queue = SpeculationQueue()
        self._at_barrier: list[_OpenPrompt[Payload]] = []
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

    def progress(self, first: int) -> Progress:
        """Where sampling stands now. `first`: n, how many samples of each prompt make the score."""
        open_pools = [prompt.pool for prompt in self._open.values()]
        seen = [pool.scores for pool in (*open_pools, *(entry.pool for entry in self._closed.values())) if len(pool)]
        unresolved = sum(len(pool) > 0 and not is_spread(pool.scores) for pool in open_pools)
        return Progress(
            open=len(open_pools) - unresolved,
            unresolved=unresolved,
            done=len(self._closed),
            rollouts=self.num_sent - self.num_outstanding,
            tokens=self.num_tokens,
            right=float(np.mean([scores[:first].mean() for scores in seen])) if seen else None,
            signal=sum(map(is_spread, seen)) / len(seen) if seen else None,
        )

    # -- what to send -------------------------------------------------------------------------------------------------

    def take_required(self) -> Request | None:
        """The next rollout that a policy waits for."""
        while self._required:
            request = heapq.heappop(self._required)[2]
            # Its prompt may have closed, or failed, since it was queued.
            prompt = self._open.get(request.key)
            if prompt is not None and request.index < prompt.failed_at:
                return self._mark_sent(prompt, request)
        return None

    def take_speculative(self) -> Request | None:
        """The rollout that its policy will most likely ask for."""
        key = self._speculation_queue.take()
        if key is None:
            return None
        prompt = self._open[key]
        request = self._mark_sent(prompt, prompt.next_speculative())
        if prompt.parked.pop(request.index, None) is None:
            prompt.sent += 1
        self._offer_speculation(prompt)
        return request

    def _mark_sent(self, prompt: _OpenPrompt[Payload], request: Request) -> Request:
        prompt.outstanding[request.index] = request
        self.num_sent += 1
        self.num_outstanding += 1
        return request

    def _offer_speculation(self, prompt: _OpenPrompt[Payload]) -> None:
        if not self._speculates:
            return
        index, chance = prompt.next_speculative().index, 0.0
        if index < prompt.failed_at:
            ahead = [sample for sample, _ in prompt.waiting.values()]
            chance = self._policy.chance_of_need(prompt.pool, ahead, index)
        if chance > 0 and chance >= self._least_chance:
            self._speculation_queue.offer(prompt.pool.key, chance)
        else:
            self._speculation_queue.withdraw(prompt.pool.key)

    # -- what comes back ----------------------------------------------------------------------------------------------

    def finish(self, request: Request, sample: Sample, payload: Payload) -> list[Request]:
        """A rollout has its score; returns the requests that nobody needs any more."""
        prompt = self._take_outstanding(request, sample.num_tokens)
        if prompt is None:
            self.waste.surplus.add(sample.num_tokens)
            return []
        prompt.waiting[request.index] = (sample, payload)
        prompt.answered.add(sample.num_tokens)
        return self._advance(prompt)

    def fail(self, request: Request, num_tokens: int) -> None:
        """A rollout got no score: repeat it before all others, or park it until its policy asks for it."""
        self.waste.failed.add(num_tokens)
        prompt = self._take_outstanding(request, num_tokens)
        if prompt is not None:
            self._resend(prompt, Request(request.key, request.index, request.attempt + 1))

    def give_up(self, request: Request, num_tokens: int, reason: str) -> list[Request]:
        """A rollout got no score at its last attempt: its prompt is given up if its policy asks for this rollout;
        returns the requests that nobody needs any more."""
        self.waste.failed.add(num_tokens)
        prompt = self._take_outstanding(request, num_tokens)
        if prompt is None:
            return []
        return prompt.mark_failed(request.index, reason) + self._advance(prompt)

    def lose(self, request: Request) -> None:
        """Its engine died: send it again, before all others if its policy asked for it, else when it is due."""
        self.waste.lost.add(0)
        prompt = self._take_outstanding(request, 0)
        if prompt is not None:
            self._resend(prompt, request)

    def acknowledge_abort(self, request: Request, num_tokens: int) -> None:
        """A rollout was stopped after so many tokens."""
        if self._take_outstanding(request, num_tokens) is not None:
            raise RuntimeError(f"{request} was aborted, but its prompt is open and may need it")
        self.waste.stopped.add(num_tokens)

    def _take_outstanding(self, request: Request, num_tokens: int) -> _OpenPrompt[Payload] | None:
        """The request's prompt, if it is open and may still need the rollout, which has ended after so many tokens."""
        self.num_outstanding -= 1
        self.num_tokens += num_tokens
        prompt = self._open.get(request.key)
        if prompt is None or prompt.outstanding.pop(request.index, None) is None:
            return None
        return prompt

    def _resend(self, prompt: _OpenPrompt[Payload], request: Request) -> None:
        if request.index < prompt.wanted:
            self._queue(request, inf)
        else:
            prompt.parked[request.index] = request
            self._offer_speculation(prompt)

    def _advance(self, prompt: _OpenPrompt[Payload]) -> list[Request]:
        """A rollout has finished, or failed at its last attempt; returns what to abort."""
        if prompt.complete_wave():
            if not self._has_barrier:
                return self._decide([prompt])
            self._at_barrier.append(prompt)
            return self._decide_at_barrier()
        if prompt.is_hopeless:
            return self._give_up(prompt) + self._decide_at_barrier()
        self._offer_speculation(prompt)
        return []

    # -- decisions ----------------------------------------------------------------------------------------------------

    def _decide_at_barrier(self) -> list[Request]:
        if not self._at_barrier or len(self._at_barrier) < len(self._open):
            return []
        ready, self._at_barrier = self._at_barrier, []
        return self._decide(ready)

    def _decide(self, prompts: list[_OpenPrompt[Payload]]) -> list[Request]:
        """Ask the policy about these prompts until each waits for a sample or is closed; returns what to abort."""
        needless: list[Request] = []
        while prompts:
            actions = self._policy.decide([prompt.pool for prompt in prompts])
            complete: list[_OpenPrompt[Payload]] = []
            for prompt, action in zip(prompts, actions, strict=True):
                if isinstance(action, Close):
                    needless += self._close(prompt)
                    continue
                self._ask_for(prompt, action.count)
                if prompt.complete_wave():
                    complete.append(prompt)
                elif prompt.is_hopeless:
                    needless += self._give_up(prompt)
                else:
                    self._offer_speculation(prompt)
            prompts = complete
        return needless

    def _ask_for(self, prompt: _OpenPrompt[Payload], count: int) -> None:
        prompt.wanted = len(prompt.pool) + count
        for index in sorted(index for index in prompt.parked if index < prompt.wanted):
            self._queue(prompt.parked.pop(index), inf)
        for index in range(prompt.sent, prompt.wanted):
            self._queue(Request(prompt.pool.key, index), prompt.answered.mean)
        prompt.sent = max(prompt.sent, prompt.wanted)

    def _queue(self, request: Request, expected_tokens: float) -> None:
        """Prompts with long answers first, so that the last rollouts to start are short ones."""
        self._num_queued += 1
        heapq.heappush(self._required, (-expected_tokens, self._num_queued, request))

    def _give_up(self, prompt: _OpenPrompt[Payload]) -> list[Request]:
        prompt.finished.failure, prompt.finished.wanted = prompt.reason, prompt.wanted
        self.given_up.append(prompt.finished)
        return self._close(prompt)

    def _close(self, prompt: _OpenPrompt[Payload]) -> list[Request]:
        key = prompt.pool.key
        del self._open[key]
        self._closed[key] = prompt.finished
        self._speculation_queue.withdraw(key)
        for sample, _ in prompt.waiting.values():
            self.waste.surplus.add(sample.num_tokens)
        return list(prompt.outstanding.values())
