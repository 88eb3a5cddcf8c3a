"""What a scheduler sends when, and where to: the state machine and the placement, call by call."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from cases import sequential
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_ada.core.fleet import Aborted, Dispatcher, EngineDown, EngineUp, Lost
from openrlhf_ada.core.scheduling import Request, Scheduler
from openrlhf_ada.core.types import PromptKey, PromptPool, Sample, Tally
from openrlhf_ada.simulation.virtual_engines import EngineModel, VirtualFleet

# -- rounds, waves, stream: what is sent when ------------------------------------------------------------------------


def drain(scheduler: Scheduler[None]) -> list[tuple[PromptKey, int]]:
    """Everything that may be sent now, required first."""
    sent: list[tuple[PromptKey, int]] = []
    for take in (scheduler.take_required, scheduler.take_speculative):
        while (request := take()) is not None:
            sent.append((request.key, request.index))
    return sent


def answer(scheduler: Scheduler[None], key: PromptKey, *outcomes: float, first: int = 0) -> None:
    for index, outcome in enumerate(outcomes, start=first):
        scheduler.finish(Request(key, index), Sample(key, index, outcome, outcome, num_tokens=1), None)


def test_rounds_wait_for_all_prompts_waves_for_their_own() -> None:
    policy = sequential(1, 0, n=2, wave=2, cap=4)
    for name, expected in (("rounds", []), ("waves", [(0, 2), (0, 3)])):
        scheduler = Scheduler[None](policy, [PromptPool(0), PromptPool(1)], name, least_chance=0.0)  # type: ignore[arg-type]
        assert drain(scheduler) == [(0, 0), (0, 1), (1, 0), (1, 1)]
        answer(scheduler, 0, 0.0, 0.0)
        assert drain(scheduler) == expected
    answer(scheduler, 1, 1.0, 0.0)
    assert scheduler.num_closed == 1


def test_stream_sends_likely_samples_ahead() -> None:
    policy = sequential(1, 0, n=2, wave=2, cap=6)
    scheduler = Scheduler[None](policy, [PromptPool(0), PromptPool(1), PromptPool(2)], "stream", least_chance=0.5)
    assert len(drain(scheduler)) == 6, "with nothing known, two more are needed with probability 1/3"
    answer(scheduler, 0, 0.0)
    answer(scheduler, 1, 1.0)
    assert drain(scheduler) == [(0, 2), (0, 3), (0, 4), (0, 5)][:2], "a first wrong answer: 2/3, and 1/2 after that"
    answer(scheduler, 0, 0.0, first=1)
    assert drain(scheduler) == [(0, 4), (0, 5)], "what was sent ahead is now waited for"
    assert scheduler.num_outstanding == 7


def test_unneeded_samples_ahead_are_aborted_or_surplus() -> None:
    policy = sequential(1, 0, n=2, wave=2, cap=6)
    scheduler = Scheduler[None](policy, [PromptPool(0)], "stream", least_chance=0.0)
    assert drain(scheduler) == [(0, i) for i in range(6)], "at any probability"
    answer(scheduler, 0, 1.0, first=3)
    needless = scheduler.finish(Request(0, 0), Sample(0, 0, 0.0, 0.0, num_tokens=1), None)
    assert not needless, "the rule reads whole waves"
    needless = scheduler.finish(Request(0, 1), Sample(0, 1, 1.0, 1.0, num_tokens=1), None)
    assert sorted(r.index for r in needless) == [2, 4, 5]
    answer(scheduler, 0, 1.0, first=2)  # it finished before it could be stopped
    for index in (4, 5):
        scheduler.acknowledge_abort(Request(0, index), 10)
    (finished,) = scheduler.finished
    assert len(finished.pool) == 2, "the prefix decides, not what has come in"
    waste = scheduler.waste
    assert (waste.surplus, waste.stopped, waste.failed) == (Tally(2, 2), Tally(2, 20), Tally(0, 0))


def test_prompts_with_long_answers_go_first() -> None:
    policy = sequential(1, 0, n=1, wave=1, cap=3)
    scheduler = Scheduler[None](policy, [PromptPool(key) for key in (0, 1, 2)], "waves", least_chance=0.5)
    drain(scheduler)
    for key, tokens in ((0, 5), (1, 50), (2, 7)):
        scheduler.finish(Request(key, 0), Sample(key, 0, 0.0, 0.0, num_tokens=tokens), None)
    assert drain(scheduler) == [(1, 1), (2, 1), (0, 1)]


def test_failed_sample_is_repeated_first() -> None:
    policy = sequential(1, 0, n=1, wave=1, cap=3)
    scheduler = Scheduler[None](policy, [PromptPool(0), PromptPool(1)], "waves", least_chance=0.5)
    first = scheduler.take_required()
    assert first == Request(0, 0)
    scheduler.fail(first, num_tokens=4)
    assert scheduler.take_required() == Request(0, 0, attempt=1)
    assert scheduler.waste.failed == Tally(1, 4)


def test_unneeded_sample_is_not_repeated() -> None:
    """Both rollouts that are needed succeed; the one sent ahead fails after its prompt has closed, twice over."""
    policy = sequential(1, 0, n=2, wave=2, cap=3)
    scheduler = Scheduler[None](policy, [PromptPool(0)], "stream", least_chance=0.0)
    assert drain(scheduler) == [(0, 0), (0, 1), (0, 2)]
    answer(scheduler, 0, 1.0, 1.0)
    assert scheduler.num_closed == 1
    assert scheduler.give_up(Request(0, 2), 5, "twice over") == []
    assert scheduler.take_required() is None
    assert not scheduler.finished[0].failure
    assert [len(entry.pool) for entry in scheduler.finished] == [2]


# -- rollouts sent ahead that fail, and engines that die -------------------------------------------------------------


def ahead() -> Scheduler[None]:
    """One prompt, waves of 2, at most 6 rollouts, all of them on their way: the policy has asked for the first two."""
    policy = sequential(1, 0, n=2, wave=2, cap=6)
    scheduler = Scheduler[None](policy, [PromptPool(0)], "stream", least_chance=0.0)
    assert drain(scheduler) == [(0, i) for i in range(6)]
    return scheduler


def test_sample_failed_ahead_is_repeated_on_request() -> None:
    scheduler = ahead()
    scheduler.fail(Request(0, 3), num_tokens=4)
    scheduler.fail(Request(0, 5), num_tokens=4)
    assert drain(scheduler) == [], "neither before anything else nor ahead"
    answer(scheduler, 0, 0.0, 0.0)
    assert scheduler.take_required() == Request(0, 3, attempt=1)
    assert drain(scheduler) == [], "the third wave is not asked for"
    assert scheduler.waste.failed == Tally(2, 8)


def test_sample_that_fails_twice_costs_its_prompt() -> None:
    scheduler = ahead()
    scheduler.fail(Request(0, 2), num_tokens=4)
    answer(scheduler, 0, 0.0, 0.0)
    assert drain(scheduler) == [(0, 2)]
    needless = scheduler.give_up(Request(0, 2, attempt=1), 4, "again")
    assert sorted(r.index for r in needless) == [3, 4, 5]
    assert [entry.failure for entry in scheduler.given_up] == ["again"]


def test_sample_failed_ahead_of_closed_prompt_counts_once() -> None:
    scheduler = ahead()
    scheduler.fail(Request(0, 3), num_tokens=4)
    assert scheduler.give_up(Request(0, 4), 5, "for good") == [Request(0, 5)]
    scheduler.acknowledge_abort(Request(0, 5), 1)
    answer(scheduler, 0, 1.0)
    needless = scheduler.finish(Request(0, 1), Sample(0, 1, 0.0, 0.0, num_tokens=1), None)
    assert needless == [Request(0, 2)]
    scheduler.acknowledge_abort(Request(0, 2), 1)
    (finished,) = scheduler.finished
    assert (finished.failure, len(finished.pool), scheduler.given_up) == ("", 2, [])
    assert (scheduler.waste.failed, scheduler.waste.stopped) == (Tally(2, 9), Tally(2, 2))


def test_first_failure_in_order_is_the_reason() -> None:
    """Rollout 3 fails first, then 2. Nothing after them can enter the pool, whatever it comes to."""
    scheduler = ahead()
    assert scheduler.give_up(Request(0, 3), 1, "three") == [Request(0, 4), Request(0, 5)]
    answer(scheduler, 0, 1.0, first=5)  # it finished before it could be stopped
    scheduler.acknowledge_abort(Request(0, 4), 1)
    assert scheduler.give_up(Request(0, 2), 1, "two") == []
    assert drain(scheduler) == [] and not scheduler.num_closed, "the first wave may show what is needed"
    answer(scheduler, 0, 0.0, 0.0)
    (finished,) = scheduler.finished
    assert (finished.failure, len(finished.pool)) == ("two", 2)
    assert scheduler.waste.surplus == Tally(1, 1)


@pytest.mark.parametrize(("first_fails", "reason"), [(True, "first"), (False, "second")])
@pytest.mark.parametrize("name", ["rounds", "waves", "stream"])
def test_first_failure_in_a_wave_is_the_reason(name: Any, first_fails: bool, reason: str) -> None:
    """Rollout 1 of 4 fails for good: 2 and 3 are in vain, and 0, which is still out, may be the reason instead."""
    policy = sequential(1, 0, n=4, wave=4, cap=8)
    scheduler = Scheduler[None](policy, [PromptPool(0)], name, least_chance=1.0)
    assert drain(scheduler) == [(0, i) for i in range(4)]
    answer(scheduler, 0, 1.0, first=2)
    assert scheduler.give_up(Request(0, 1), 1, "second") == [Request(0, 3)]
    scheduler.acknowledge_abort(Request(0, 3), 1)
    assert not scheduler.num_closed
    scheduler.fail(Request(0, 0), 1)
    assert scheduler.take_required() == Request(0, 0, attempt=1)
    if first_fails:
        scheduler.give_up(Request(0, 0, attempt=1), 1, "first")
    else:
        scheduler.finish(Request(0, 0, attempt=1), Sample(0, 0, 1.0, 1.0, num_tokens=1), None)
    (finished,) = scheduler.finished
    assert (finished.failure, len(finished.pool)) == (reason, 0)


def test_round_continues_after_its_last_prompt_is_given_up() -> None:
    policy = sequential(1, 0, n=2, wave=2, cap=4)
    scheduler = Scheduler[None](policy, [PromptPool(0), PromptPool(1)], "rounds", least_chance=0.0)
    drain(scheduler)
    answer(scheduler, 1, 0.0, 0.0)
    scheduler.give_up(Request(0, 1), 1, "for good")
    assert drain(scheduler) == [], "rollout 0 of the other prompt is still out"
    answer(scheduler, 0, 1.0)
    assert drain(scheduler) == [(1, 2), (1, 3)]
    assert [entry.pool.key for entry in scheduler.given_up] == [0]


def test_engine_death_with_samples_ahead_blocks_nobody() -> None:
    """They go out again as any rollout ahead does, in order, and before anything else once they are asked for."""
    scheduler = ahead()
    for index in (5, 3, 2):
        scheduler.lose(Request(0, index))
    assert scheduler.take_required() is None
    assert scheduler.take_speculative() == Request(0, 2)
    answer(scheduler, 0, 0.0, 0.0)
    assert scheduler.take_required() == Request(0, 3)
    assert scheduler.take_required() is None
    assert scheduler.take_speculative() == Request(0, 5)
    assert scheduler.take_speculative() is None
    assert scheduler.waste.lost == Tally(3, 0)


def test_nothing_is_sent_after_a_final_failure() -> None:
    """Rollouts 2, 4 and 5 die with their engine; after rollout 3 has failed, only 2 can still matter."""
    scheduler = ahead()
    scheduler.lose(Request(0, 5))
    scheduler.lose(Request(0, 2))
    assert scheduler.give_up(Request(0, 3), 1, "for good") == [Request(0, 4)]
    scheduler.lose(Request(0, 4))
    answer(scheduler, 0, 0.0, 0.0)
    assert drain(scheduler) == [(0, 2)]
    answer(scheduler, 0, 1.0, first=2)
    assert scheduler.finished[0].failure == "for good"


# -- which engine ----------------------------------------------------------------------------------------------------


class ScriptedFleet:
    """`wait` gives the next of `events`; the calls are remembered."""

    def __init__(self, *events: list[Any], num_engines: int = 2) -> None:
        self.num_engines = num_engines
        self.events = list(events)
        self.calls: list[tuple[str, int, list[Request]]] = []

    def submit(self, engine: int, requests: Sequence[Request]) -> None:
        self.calls.append(("submit", engine, list(requests)))

    def abort(self, engine: int, requests: Sequence[Request]) -> None:
        self.calls.append(("abort", engine, list(requests)))

    def wait(self) -> list[Any]:
        return self.events.pop(0)


def placed(dispatcher: Dispatcher[Any], fleet: ScriptedFleet, *requests: Request) -> list[int]:
    """Which engines get these, one after the other."""
    for request in requests:
        once = iter([request])
        dispatcher.send((lambda once=once: next(once, None), 10**6))
    return [engine for _, engine, _ in fleet.calls[-len(requests) :]]


def ended(dispatcher: Dispatcher[Any], fleet: ScriptedFleet, *events: Any) -> list[Any]:
    fleet.events.append(list(events))
    return dispatcher.wait()


def test_a_prompt_stays_on_its_engine_unless_another_has_far_less() -> None:
    """Engines of 16 slots: at most two ahead. Both then have the prefix, and the emptier one gets the next."""
    fleet = ScriptedFleet(num_engines=3)
    dispatcher = Dispatcher[Any](fleet, slots=16)
    assert placed(dispatcher, fleet, *(Request(0, i) for i in range(5))) == [0, 0, 1, 1, 2]
    assert placed(dispatcher, fleet, Request(1, 0)) == [2], "the emptiest"
    ended(dispatcher, fleet, *(Aborted(Request(0, i), 1) for i in (2, 3)))
    assert placed(dispatcher, fleet, Request(1, 1)) == [1], "two ahead"
    assert placed(dispatcher, fleet, Request(1, 2), Request(1, 3)) == [1, 1], "it has this prefix, too"


def test_a_prompts_rollout_waits_where_its_prefix_is() -> None:
    fleet = ScriptedFleet()
    dispatcher = Dispatcher[Any](fleet, slots=16)
    assert placed(dispatcher, fleet, *(Request(key, 0) for key in range(31))) == [0, 1] * 15 + [0]
    assert placed(dispatcher, fleet, Request(0, 1)) == [0], "its 17th, while the other engine has a slot"


@pytest.mark.parametrize(("prefill", "most"), [(0.0, 1.1), (0.02, 1.1), (0.1, 1.2)])
def test_allocation_is_near_the_best_that_brute_force_finds(prefill: float, most: float) -> None:
    """Two rollouts of three prompts each on two engines, of all 64 ways the one that takes the least time, which knows
    their lengths: 10 to 100 tokens, 10 to 20 ms each. Mean over cases."""
    model = EngineModel((1, 8), (0.01, 0.02), slots=8, prefill=prefill)
    requests = [Request(key, index) for key in range(3) for index in range(2)]
    ratios: list[float] = []
    for case in range(20):
        drawn = np.random.default_rng(case).integers(10, 100, len(requests)).tolist()
        lengths = dict(zip(requests, drawn, strict=True))

        def seconds(give: Callable[[VirtualFleet], object], lengths: dict[Request, int] = lengths) -> float:
            fleet = VirtualFleet(2, model, lambda r: Sample(r.key, r.index, 0.0, 0.0, lengths[r]))
            give(fleet)
            left = len(requests)
            while left:
                left -= len(fleet.wait())
            return fleet.now

        def split(fleet: VirtualFleet, first: tuple[bool, ...]) -> None:
            for engine in (0, 1):
                chosen = [r for r, is_first in zip(requests, first, strict=True) if is_first is (engine == 0)]
                fleet.submit(engine, chosen)

        ways = itertools.product((True, False), repeat=len(requests))
        best = min(seconds(partial(split, first=way)) for way in ways)
        waiting = iter(requests)
        ours = seconds(lambda fleet, w=waiting: Dispatcher[Any](fleet, 8).send((lambda: next(w, None), 8)))
        ratios.append(ours / best)
    assert min(ratios) > 1 - 1e-9
    assert statistics.mean(ratios) < most


@given(st.integers(1, 5), st.lists(st.booleans(), max_size=60))
def test_prompts_go_to_the_emptiest_engine(num_engines: int, arrivals: list[bool]) -> None:
    """New prompts, and ends in between: nobody is given more than the least loaded has."""
    fleet = ScriptedFleet(num_engines=num_engines)
    dispatcher = Dispatcher[Any](fleet, slots=10**6)
    running: list[tuple[Request, int]] = []
    loads = [0] * num_engines
    for number, arrives in enumerate(arrivals):
        if arrives or not running:
            (engine,) = placed(dispatcher, fleet, Request(number, 0))
            assert loads[engine] == min(loads)
            loads[engine] += 1
            running.append((Request(number, 0), engine))
        else:
            request, engine = running.pop(number % len(running))
            loads[engine] -= 1
            ended(dispatcher, fleet, Aborted(request, 1))


def test_a_dead_engine_gets_nothing_until_it_is_back() -> None:
    """Two engines with room for two; the second dies with two rollouts and is empty when it comes back."""
    fleet = ScriptedFleet()
    dispatcher = Dispatcher[Any](fleet, slots=2)
    requests = [Request(key, 0) for key in range(4)]
    assert placed(dispatcher, fleet, *requests) == [0, 1, 0, 1]
    assert ended(dispatcher, fleet, EngineDown(1)) == [Lost(requests[1]), Lost(requests[3])]
    dispatcher.send((lambda: pytest.fail("only one engine is left, and it is full"), 2))
    ended(dispatcher, fleet, Aborted(requests[0], 1))
    assert placed(dispatcher, fleet, Request(1, 0)) == [0], "not to the one that has its prefix, for that is gone"
    ended(dispatcher, fleet, EngineUp(1))
    assert placed(dispatcher, fleet, Request(5, 0), Request(5, 1)) == [1, 1]


def test_one_batch_per_engine_and_a_dead_ones_returns() -> None:
    a, b, c, d = (Request(key, 0) for key in range(4))
    fleet = ScriptedFleet([Aborted(a, 1), EngineDown(1)], [EngineUp(1)], [Aborted(a, 1)])
    dispatcher = Dispatcher[Any](fleet, slots=2)
    required, ahead = iter([a, b]), iter([c, d])
    dispatcher.send((lambda: next(required, None), 2), (lambda: next(ahead, None), 2))
    assert fleet.calls == [("submit", 0, [a, c]), ("submit", 1, [b, d])]
    assert dispatcher.wait() == [Aborted(a, 1), Lost(b), Lost(d)]
    assert dispatcher.num_outstanding == 1
    dispatcher.abort([a, b, c])
    assert fleet.calls[2:] == [("abort", 0, [c])], "only what is outstanding"
    again = iter([b, d])
    dispatcher.send((lambda: next(again, None), 2))
    assert fleet.calls[3:] == [("submit", 0, [b])], "nothing goes to the dead engine"
    assert dispatcher.wait() == []
    with pytest.raises(RuntimeError, match="not outstanding"):
        dispatcher.wait()
