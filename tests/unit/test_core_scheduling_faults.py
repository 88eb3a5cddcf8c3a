"""A rollout that nobody has asked for decides nothing: with failures, too, every schedule has the same result."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from cases import sequential
from fleets import FaultyFleet

from openrlhf_ada.core.fleet import DispatchLimits, Failed, Finished, run
from openrlhf_ada.core.policies import Close, Sequential
from openrlhf_ada.core.scheduling import SCHEDULERS, Request, Scheduler
from openrlhf_ada.core.types import Ledger, PromptKey, PromptPool, Sample, TrainingGroup

CAP = 24
"""At most so many rollouts of a prompt in these tests."""


@dataclass(frozen=True)
class Ending:
    """What must not depend on the schedule: a prompt's pool, its group (None: given up), and why it was given up."""

    key: PromptKey
    samples: list[Sample]
    group: TrainingGroup | None
    failure: str


@dataclass(frozen=True)
class World:
    """Everything that can happen, fixed before anything is sampled; `seed` decides it.

    `failing`: share of attempts without a score; `lost_causes`: share of rollouts of which no attempt has one.
    """

    seed: int
    policy: Sequential
    num_prompts: int
    limits: DispatchLimits
    num_engines: int = 1
    failing: float = 0.0
    lost_causes: float = 0.0
    time_limit: float = np.inf
    late: float = 0.0
    dying: float = 0.0
    least_chance: float = 0.2

    @cached_property
    def scores(self) -> np.ndarray:
        """0 or 1, shape (prompts, CAP)."""
        rng = np.random.default_rng([self.seed, 0])
        rates = rng.beta(0.8, 0.8, size=(self.num_prompts, 1))
        return (rng.random((self.num_prompts, CAP)) < rates).astype(float)

    @cached_property
    def tokens(self) -> np.ndarray:
        """Right answers are four times as long, shape (prompts, CAP)."""
        lengths = np.random.default_rng([self.seed, 1]).lognormal(3.0, 0.5, self.scores.shape)
        return np.ceil(lengths * (1.0 + 3.0 * self.scores)).astype(int)

    @cached_property
    def fails(self) -> np.ndarray:
        """Has this attempt no score? Shape (prompts, CAP, attempts)."""
        rng = np.random.default_rng([self.seed, 2])
        always = rng.random((*self.scores.shape, 1)) < self.lost_causes
        return always | (rng.random((*self.scores.shape, self.limits.attempts)) < self.failing)

    def answer(self, request: Request) -> Finished[Request] | Failed:
        key, index = request.key, request.index
        tokens = int(self.tokens[key, index])
        if self.fails[key, index, request.attempt]:
            return Failed(request, tokens, f"rollout {index} has no score")
        score = float(self.scores[key, index])
        return Finished(request, Sample(key, index, score, score, tokens), request)

    def fleet(self) -> FaultyFleet[Request]:
        return FaultyFleet(
            self.answer,
            num_engines=self.num_engines,
            time_limit=self.time_limit,
            late=self.late,
            dying=self.dying,
            seed=self.seed,
        )

    def group(self, pool: PromptPool) -> TrainingGroup:
        return self.policy.build(pool, np.random.default_rng([self.seed, pool.key]))

    def reference(self, key: PromptKey) -> Ending:
        """The published loop for one prompt, as plain as it gets; in a wave the first rollout that fails decides."""
        pool = PromptPool(key, row=key)
        while not isinstance(action := self.policy.decide([pool])[0], Close):
            wave = [self._last_answer(key, index) for index in range(len(pool), len(pool) + action.count)]
            failures = [answer.reason for answer in wave if isinstance(answer, Failed)]
            if failures:
                return Ending(key, pool.samples, None, failures[0])
            pool.add(answer.sample for answer in wave if isinstance(answer, Finished))
        return Ending(key, pool.samples, self.group(pool), "")

    def _last_answer(self, key: PromptKey, index: int) -> Finished[Request] | Failed:
        attempts = range(self.limits.attempts)
        answers = [self.answer(Request(key, index, attempt)) for attempt in attempts]
        if self.tokens[key, index] > self.time_limit:
            return Failed(Request(key, index), 0, f"rollout {index} took too long")
        return next((answer for answer in answers if isinstance(answer, Finished)), answers[-1])

    def run(self, name: Any) -> tuple[list[Ending], Scheduler[Request], FaultyFleet[Request]]:
        pools = [PromptPool(key, row=key) for key in range(self.num_prompts)]
        scheduler = Scheduler[Request](self.policy, pools, name, least_chance=self.least_chance)
        fleet = self.fleet()
        endings = [
            Ending(e.pool.key, e.pool.samples, None if e.failure else self.group(e.pool), e.failure)
            for e in run(scheduler, fleet, self.limits)
        ]
        return endings, scheduler, fleet


def random_world(seed: int) -> World:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 5))
    k_pos, k_neg = [(1, 0), (1, 1), (2, 2), (0, 1), (0, 0)][rng.integers(5)]
    slots = int(rng.integers(1, 40))
    return World(
        seed=seed,
        policy=sequential(k_pos, k_neg, n=n, wave=int(rng.integers(1, 7)), cap=int(rng.integers(n, CAP + 1))),
        num_prompts=int(rng.integers(1, 7)),
        limits=DispatchLimits(slots, int(rng.integers(0, slots + 1)), attempts=int(rng.integers(1, 4))),
        num_engines=int(rng.integers(1, 4)),
        failing=float(rng.choice([0.0, 0.1, 0.4])),
        lost_causes=float(rng.choice([0.0, 0.02, 0.1])),
        time_limit=float(rng.choice([np.inf, 150.0])),
        late=float(rng.choice([0.0, 0.5, 1.0])),
        dying=float(rng.choice([0.0, 0.05, 0.2])),
        least_chance=float(rng.choice([0.0, 0.2, 0.6])),
    )


def check_costs(world: World, endings: list[Ending], scheduler: Scheduler[Request], fleet: Any) -> Ledger:
    """Every rollout is accounted for, and none was repeated in vain."""
    waste, ledger = scheduler.waste, Ledger()
    for ending in endings:
        ledger.record_group(ending.samples, ending.group.indices if ending.group else ())
    kept_and_unused = (ledger.kept, ledger.unused, ledger.kept_tokens, ledger.unused_tokens)
    ledger.record_waste(waste)
    ledger.check(drawn=scheduler.num_sent)
    assert len(fleet.sent) == scheduler.num_sent
    assert waste.lost.rollouts == fleet.num_lost
    again = Counter(fleet.sent)
    assert sum(again.values()) - len(again) <= fleet.num_lost, "an attempt is repeated only where its engine died"
    for ending in endings:
        if not ending.failure:
            repeated = [r.index for r in fleet.sent if r.key == ending.key and r.attempt]
            assert all(index < len(ending.samples) for index in repeated), "a rollout in vain is not repeated"
    assert kept_and_unused == (ledger.kept, ledger.unused, ledger.kept_tokens, ledger.unused_tokens)
    return ledger


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 400, 50))
def test_schedules_agree_on_pools_groups_and_failures(first: int) -> None:
    """Random policies and engines; failures, time limits, late aborts and deaths; right answers are late."""
    for seed in range(first, first + 50):
        world = random_world(seed)
        expected = [world.reference(key) for key in range(world.num_prompts)]
        ledgers: list[tuple[int, ...]] = []
        for name in SCHEDULERS:
            endings, scheduler, fleet = world.run(name)
            assert endings == expected, f"seed {seed}, {name}"
            ledger = check_costs(world, endings, scheduler, fleet)
            ledgers.append((ledger.kept, ledger.unused, ledger.kept_tokens, ledger.unused_tokens))
        assert ledgers[0] == ledgers[1] == ledgers[2]


@pytest.mark.slow
def test_the_worlds_have_every_kind_of_fault() -> None:
    """Else the test above would show little."""
    seen: Counter[str] = Counter()
    for seed in range(400):
        world = random_world(seed)
        endings, scheduler, fleet = world.run("stream")
        waste = scheduler.waste
        given_up = [ending for ending in endings if ending.failure]
        seen["given up"] += len(given_up)
        seen["given up after a wave"] += sum(bool(ending.samples) for ending in given_up)
        seen["too late"] += sum("too long" in ending.failure for ending in given_up)
        seen["trained"] += len(endings) - len(given_up)
        seen["stopped"] += waste.stopped.rollouts
        seen["surplus"] += waste.surplus.rollouts
        seen["lost"] += waste.lost.rollouts
        closed = {ending.key: len(ending.samples) for ending in endings if not ending.failure}
        in_vain = [
            (key, index)
            for key, size in closed.items()
            for index in range(size, CAP)
            if Request(key, index) in fleet.sent and world.fails[key, index, 0]
        ]
        seen["failed ahead, in vain"] += len(in_vain)
    assert all(seen[what] >= 50 for what in seen), seen


# -- by hand ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEDULERS)
def test_sample_ahead_that_fails_twice_keeps_its_prompt(name: Any) -> None:
    """The first wave's only right answer, index 7, is its slowest; index 8, sent ahead, fails at both attempts."""

    def answer(request: Request) -> Finished[None] | Failed:
        if request.index == 8:
            return Failed(request, 1, "no score")
        score = float(request.index == 7)
        tokens = 1000 if request.index == 7 else 10
        return Finished(request, Sample(request.key, request.index, score, score, tokens), None)

    policy = sequential(1, 0, n=4, wave=8, cap=24)
    scheduler = Scheduler[None](policy, [PromptPool(0)], name, least_chance=0.2)
    fleet = FaultyFleet(answer)
    (finished,) = run(scheduler, fleet, DispatchLimits(64, 64))
    assert not finished.failure
    assert len(finished.pool) == 8
    failed = scheduler.waste.failed.rollouts
    assert failed == (1 if name == "stream" else 0), "what nobody has asked for is tried once"


def given_up(world: World, name: Any) -> np.ndarray:
    """Which prompts were given up, shape (prompts,)."""
    return np.array([bool(ending.failure) for ending in world.run(name)[0]])


@pytest.mark.slow
def test_every_schedule_gives_up_as_many_prompts() -> None:
    """One rollout in a hundred has no score. Going by what was sent ahead would give up twice as many prompts."""
    policy = sequential(2, 2, n=4, wave=4, cap=CAP)
    world = World(0, policy, 1000, DispatchLimits(8000, 8000), lost_causes=0.01, least_chance=0.0)
    by_schedule = {name: given_up(world, name) for name in SCHEDULERS}
    assert (by_schedule["rounds"] == by_schedule["waves"]).all()
    assert (by_schedule["rounds"] == by_schedule["stream"]).all()
    drawn = [len(world.reference(key).samples) for key in range(1000)]
    expected = 1.0 - np.mean(0.99 ** np.array(drawn))
    assert by_schedule["rounds"].mean() == pytest.approx(expected, abs=0.03)
