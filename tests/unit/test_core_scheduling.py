"""Three schedulers, one result: pools do not depend on what finishes first, and every rollout is accounted for."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from cases import sequential
from fleets import FakeFleet, Outcome, Preference
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_ada.core.fleet import DispatchLimits, Failed, Finished, run
from openrlhf_ada.core.policies import Close, Draw, Policy
from openrlhf_ada.core.scheduling import SCHEDULERS, FinishedPool, Progress, Request, Scheduler
from openrlhf_ada.core.types import Ledger, PromptKey, PromptPool, Sample, Tally


def hashed(*numbers: int) -> float:
    """A number in [0, 1) that these decide."""
    return float(np.random.default_rng(list(numbers)).random())


def flips(seed: int) -> Outcome:
    """0 or 1 by the identity of the rollout; prompts have pass rates from 0 to 1."""
    return lambda request: float(hashed(seed, request.key, request.index) < request.key % 5 / 4)


ORDERS: dict[str, Preference] = {
    "in order": lambda r: r.index,
    "backwards": lambda r: -r.index,
    "by prompt": lambda r: r.key,
    "one prompt last": lambda r: r.key == 3,
    "first ones last": lambda r: r.index < 2,
    "any": lambda r: hashed(7, r.key, r.index, r.attempt),
}


def reference(policy: Policy, pools: Sequence[PromptPool], outcome: Outcome) -> list[PromptPool]:
    """The published loop, as plain as it gets: a wave for every open prompt, and wait for all."""
    still_open = {pool.key: pool for pool in pools}
    while still_open:
        for action in policy.decide(list(still_open.values())):
            pool = still_open[action.key]
            if isinstance(action, Close):
                del still_open[action.key]
                continue
            for index in range(len(pool), len(pool) + action.count):
                score = outcome(Request(pool.key, index))
                pool.add([Sample(pool.key, index, score, score, num_tokens=index + 1)])
    return list(pools)


@dataclass
class Case:
    policy: Any
    keys: list[PromptKey]
    outcome: Outcome
    order: Preference
    num_engines: int
    limits: DispatchLimits
    failing: float
    late: float
    dying: float

    def pools(self) -> list[PromptPool]:
        return [PromptPool(key, row=key) for key in self.keys]

    def fleet(self) -> FakeFleet:
        return FakeFleet(
            self.outcome,
            self.order,
            num_engines=self.num_engines,
            failing=self.failing,
            late=self.late,
            dying=self.dying,
        )

    def run(self, name: Any, least_chance: float = 0.2) -> tuple[list[FinishedPool[Request]], Scheduler[Request]]:
        scheduler = Scheduler[Request](self.policy, self.pools(), name, least_chance=least_chance)
        return run(scheduler, self.fleet(), self.limits), scheduler


@st.composite
def cases(draw: st.DrawFn) -> Case:
    n = draw(st.integers(1, 4))
    cap = draw(st.integers(n, 16))
    k_pos, k_neg = draw(st.sampled_from([(1, 0), (1, 1), (2, 2), (0, 1), (0, 0)]))
    slots = draw(st.integers(1, 20))
    return Case(
        policy=sequential(k_pos, k_neg, n=n, wave=draw(st.integers(1, 6)), cap=cap),
        keys=draw(st.lists(st.integers(0, 60), min_size=1, max_size=6, unique=True)),
        outcome=flips(draw(st.integers(0, 10**6))),
        order=ORDERS[draw(st.sampled_from(sorted(ORDERS)))],
        num_engines=draw(st.integers(1, 3)),
        limits=DispatchLimits(slots, draw(st.integers(0, slots)), attempts=100),
        failing=draw(st.sampled_from([0.0, 0.2])),
        late=draw(st.sampled_from([0.0, 0.5, 1.0])),
        dying=draw(st.sampled_from([0.0, 0.1])),
    )


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(cases(), st.sampled_from(SCHEDULERS), st.sampled_from([0.0, 0.2, 0.8]))
def test_every_scheduler_gives_the_published_pools(case: Case, name: Any, least_chance: float) -> None:
    finished, scheduler = case.run(name, least_chance)
    expected = reference(case.policy, case.pools(), case.outcome)
    assert [entry.pool.samples for entry in finished] == [pool.samples for pool in expected]
    for entry in finished:
        identities = [(request.key, request.index) for request in entry.payloads]
        assert identities == [(entry.pool.key, i) for i in range(len(entry.pool))]
        groups = [
            case.policy.build(p, np.random.default_rng(0)) for p in (entry.pool, expected[finished.index(entry)])
        ]
        assert groups[0] == groups[1]
    sizes = case.policy.plan.looks
    assert all(len(entry.pool) in sizes for entry in finished), "whole waves"
    if name != "stream":
        assert scheduler.waste.surplus == scheduler.waste.stopped == Tally(), "nothing is sent that is not asked for"


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(cases(), st.sampled_from(SCHEDULERS))
def test_every_sent_sample_is_accounted_for(case: Case, name: Any) -> None:
    fleet = case.fleet()
    scheduler = Scheduler[Request](case.policy, case.pools(), name, least_chance=0.0)
    finished = run(scheduler, fleet, case.limits)
    waste = scheduler.waste
    in_pools = sum(len(entry.pool) for entry in finished)
    assert len(fleet.sent) == scheduler.num_sent == in_pools + waste.total.rollouts
    assert waste.lost.rollouts == fleet.num_lost
    again = len(fleet.sent) - len(set(fleet.sent))
    assert again <= fleet.num_lost, "an attempt is sent again only where its engine died"
    assert waste.failed.tokens == 2 * waste.failed.rollouts and waste.stopped.tokens == waste.stopped.rollouts
    slots = case.limits.slots
    assert max(fleet.most_at_once) <= slots + max(slots // 8, 1)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_prompt_with_repeated_failures_is_given_up(name: Any) -> None:
    """Rollout 2 of prompt 4 never comes to a score; the other prompt has what it needs all the same."""
    fleet = PoisonedFleet(flips(0), ORDERS["in order"], poison=(4, 2))
    policy = sequential(9, 9, n=2, wave=2, cap=8)
    scheduler = Scheduler[Request](policy, [PromptPool(4), PromptPool(3)], name, least_chance=0.0)
    failures: list[Request] = []
    given_up, other = run(
        scheduler, fleet, DispatchLimits(5, 5), on_failure=lambda failed: failures.append(failed.request)
    )
    assert failures == [Request(4, 2), Request(4, 2, attempt=1)]
    assert given_up.failure == "test" and not other.failure
    assert [s.index for s in given_up.pool.samples] == [0, 1], "the waves before it"
    assert len(other.pool) == 8
    assert scheduler.waste.failed == Tally(2, 4)


class PoisonedFleet(FakeFleet):
    """One rollout always fails."""

    def __init__(self, *args: Any, poison: tuple[int, int]) -> None:
        super().__init__(*args)
        self.poison = poison

    def _outcome_of(self, request: Request) -> Finished[Request] | Failed:
        self._failing = float((request.key, request.index) == self.poison)
        return super()._outcome_of(request)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_progress_by_hand(name: Any) -> None:
    """Prompt 5 is mixed at once, prompt 7 in the second round, prompt 9 never: 2 + 4 + 4 rollouts in two rounds."""
    outcomes = {5: [0, 1, 0, 0], 7: [1, 1, 0, 1], 9: [1, 1, 1, 1]}
    fleet = FakeFleet(lambda r: outcomes[r.key][r.index], ORDERS["in order"])
    policy = sequential(1, 1, n=2, wave=2, cap=4, estimator="rloo")
    scheduler = Scheduler[Request](policy, [PromptPool(key) for key in outcomes], name, least_chance=1.0)
    progress: list[Progress] = []
    finished = run(scheduler, fleet, DispatchLimits(99, 99), lambda: progress.append(scheduler.progress(2)))
    assert [len(entry.pool) for entry in finished] == [2, 4, 4]
    assert scheduler.num_sent == len(fleet.sent) == 10
    done = [state.done for state in progress]
    assert all(later >= earlier for earlier, later in itertools.pairwise(done))
    assert all(state.open + state.unresolved + state.done == 3 for state in progress)
    assert any((state.unresolved, state.done) == (2, 1) for state in progress), (
        "7 and 9 are all right in the first round"
    )
    last = progress[-1]
    assert (last.open, last.unresolved, last.done, last.rollouts, last.tokens) == (0, 0, 3, 10, 3 + 10 + 10)
    assert last.right == pytest.approx((0.5 + 1 + 1) / 3), "of the first two of each"
    assert last.signal == pytest.approx(2 / 3)


def test_progress_before_the_first_wave_has_no_figures() -> None:
    scheduler = Scheduler[None](sequential(1, 1, n=2, wave=2, cap=4), [PromptPool(0)], "waves", least_chance=0.0)
    assert scheduler.progress(2) == Progress(1, 0, 0, 0, 0, None, None)


@given(cases(), st.sampled_from(SCHEDULERS))
def test_drawn_is_kept_unused_aborted_and_caps_hold(case: Case, name: Any) -> None:
    finished, scheduler = case.run(name)
    ledger = Ledger()
    for entry in finished:
        group = case.policy.build(entry.pool, np.random.default_rng([0, entry.pool.key]))
        assert len(group.indices) == case.policy.group_size
        assert case.policy.group_size <= len(entry.pool) <= case.policy.max_samples
        ledger.record_group(entry.pool.samples, group.indices)
    ledger.record_waste(scheduler.waste)
    ledger.check(drawn=scheduler.num_sent)
    assert ledger.drawn == ledger.kept + ledger.unused + ledger.aborted
    assert ledger.kept == case.policy.group_size * len(case.keys)
    in_pools = sum(n * (n + 1) // 2 for n in (len(entry.pool) for entry in finished))
    assert ledger.drawn_tokens == in_pools + scheduler.waste.total.tokens


@pytest.mark.slow
@given(cases(), st.sampled_from(SCHEDULERS), st.randoms())
def test_prompts_are_independent_of_order(case: Case, name: Any, random: Any) -> None:
    together = {entry.pool.key: entry.pool.samples for entry in case.run(name)[0]}
    random.shuffle(case.keys)
    reordered = case.run(name)[0]
    assert [entry.pool.key for entry in reordered] == case.keys, "results stand in the order of the keys"
    assert all(entry.pool.samples == together[entry.pool.key] for entry in reordered)
    for key in list(case.keys):
        case.keys = [key]
        (alone,) = case.run(name)[0]
        assert alone.pool.samples == together[key]


@pytest.mark.parametrize("name", SCHEDULERS)
def test_pools_are_the_ones_that_were_given(name: Any) -> None:
    pools = [PromptPool(key) for key in (3, 1, 2)]
    policy = sequential(1, 1, n=2, wave=2, cap=4)
    scheduler = Scheduler[Request](policy, pools, name, least_chance=0.2)
    finished = run(scheduler, FakeFleet(flips(0), ORDERS["any"]), DispatchLimits(9, 9))
    assert all(entry.pool is pool for entry, pool in zip(finished, pools, strict=True))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_no_prompts_need_no_engine(name: Any) -> None:
    scheduler = Scheduler[Request](sequential(1, 0, n=1, wave=1, cap=2), [], name, least_chance=0.2)
    assert run(scheduler, FakeFleet(flips(0), ORDERS["any"]), DispatchLimits(9, 9)) == []
    assert scheduler.num_sent == 0


@pytest.mark.parametrize("answered", [Request(0, 7), Request(1, 0), Request(0, 0, attempt=1)])
def test_unrequested_answer_is_an_error(answered: Request) -> None:
    class Confused(FakeFleet):
        def wait(self) -> list[Finished[Request]]:
            return [Finished(answered, Sample(answered.key, answered.index, 1.0, 1.0, 1), answered)]

    scheduler = Scheduler[Request](sequential(1, 0, n=1, wave=1, cap=2), [PromptPool(0)], "waves", least_chance=0.2)
    with pytest.raises(RuntimeError, match=r"an engine answered .*, which is not outstanding"):
        run(scheduler, Confused(flips(0), ORDERS["any"]), DispatchLimits(9, 9))


def test_repeated_answer_is_an_error() -> None:
    class Stammering(FakeFleet):
        def wait(self) -> list[Any]:
            return [answer for answer in super().wait() for _ in range(2)]

    scheduler = Scheduler[Request](sequential(1, 0, n=1, wave=1, cap=2), [PromptPool(0)], "waves", least_chance=0.2)
    with pytest.raises(RuntimeError, match="not outstanding"):
        run(scheduler, Stammering(flips(0), ORDERS["any"]), DispatchLimits(9, 9))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_any_policy_can_be_carried_out(name: Any) -> None:
    """The scheduler decides nothing itself: a policy that draws 1, then 2, then closes is followed."""

    class Growing:
        def decide(self, pools: Sequence[PromptPool]) -> list[Draw | Close]:
            return [Close(pool.key) if len(pool) == 3 else Draw(pool.key, len(pool) + 1) for pool in pools]

        def chance_of_need(self, pool: PromptPool, ahead: Sequence[Sample], sent: int) -> float:
            return float(sent < 3)

    policy: Any = Growing()
    fleet = FakeFleet(lambda r: [0.0, 1.0, 1.0][r.index], ORDERS["backwards"])
    scheduler = Scheduler[Request](policy, [PromptPool(1)], name, least_chance=0.2)
    (finished,) = run(scheduler, fleet, DispatchLimits(9, 9))
    assert finished.pool.scores.tolist() == [0.0, 1.0, 1.0]
    assert len(fleet.sent) == 3


def test_unfinished_pools_are_not_handed_out() -> None:
    scheduler = Scheduler[None](sequential(1, 0, n=1, wave=1, cap=3), [PromptPool(0)], "waves", least_chance=0.5)
    with pytest.raises(RuntimeError, match="1 prompts are open"):
        _ = scheduler.finished


def test_an_aborted_request_of_an_open_prompt_is_an_error() -> None:
    scheduler = Scheduler[None](sequential(1, 0, n=1, wave=1, cap=3), [PromptPool(0)], "waves", least_chance=0.5)
    request = scheduler.take_required()
    assert request is not None
    with pytest.raises(RuntimeError, match="open"):
        scheduler.acknowledge_abort(request, 3)
