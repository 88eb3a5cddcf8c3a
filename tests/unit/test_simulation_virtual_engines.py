"""Engines in virtual time against arithmetic, and what completion order would do to the pools."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from cases import sequential

from openrlhf_ada.core.fleet import Aborted, DispatchLimits, Finished, run
from openrlhf_ada.core.scheduling import Request, Scheduler
from openrlhf_ada.core.types import PromptPool, Sample
from openrlhf_ada.simulation.virtual_engines import EngineModel, SampleOf, VirtualFleet

TENTH = EngineModel(batch_sizes=(1, 2), step_seconds=(0.1, 0.1), slots=2)
SLOWING = EngineModel(batch_sizes=(1, 2), step_seconds=(0.1, 0.2), slots=4)


def tokens(*lengths: int) -> SampleOf:
    return lambda request: Sample(request.key, request.index, 0.0, 0.0, lengths[request.index])


def requests(count: int) -> list[Request]:
    return [Request(0, index) for index in range(count)]


def ends(fleet: VirtualFleet, count: int) -> list[tuple[int, float]]:
    """(index, time) of the next answers."""
    out: list[tuple[int, float]] = []
    while len(out) < count:
        out += [(answer.request.index, round(fleet.now, 9)) for answer in fleet.wait()]
    return out


@pytest.mark.parametrize(
    ("model", "lengths", "expected"),
    [
        (TENTH, (10,), [(0, 1.0)]),
        (TENTH, (10, 5), [(1, 0.5), (0, 1.0)]),
        (TENTH, (10, 5, 10), [(1, 0.5), (0, 1.0), (2, 1.5)]),
        # Two together take 0.2 s a step, and 0.1 s once one is alone.
        (SLOWING, (10, 5), [(1, 1.0), (0, 1.5)]),
        # Beyond what was measured the line goes on: 0.4 s with four.
        (SLOWING, (1, 1, 1, 2), [(0, 0.4), (1, 0.4), (2, 0.4), (3, 0.5)]),
        (EngineModel((1, 2), (0.1, 0.1), 4, prefill=1.0, shared_prefill=0.25), (10, 10), [(0, 2.25), (1, 2.25)]),
    ],
    ids=["alone", "together", "waiting for a slot", "slower together", "extrapolated", "prefill"],
)
def test_time_is_that_of_the_steps(
    model: EngineModel, lengths: Sequence[int], expected: list[tuple[int, float]]
) -> None:
    fleet = VirtualFleet(1, model, tokens(*lengths))
    fleet.submit(0, requests(len(lengths)))
    assert ends(fleet, len(lengths)) == expected


def test_abort_frees_the_slot_and_reports_tokens() -> None:
    fleet = VirtualFleet(1, TENTH, tokens(10, 3, 10, 10))
    fleet.submit(0, requests(4))
    assert ends(fleet, 1) == [(1, 0.3)]
    fleet.abort(0, [Request(0, 0), Request(0, 3)])
    assert fleet.wait() == [Aborted(Request(0, 0), 3), Aborted(Request(0, 3), 0)]
    assert ends(fleet, 1) == [(2, 1.3)]


def test_late_answers_arrive_with_those_that_end_meanwhile() -> None:
    """The first ends at 0.3 s, the second at 0.5 s: both are there at 0.55 s, and the third 0.25 s after its end."""
    model = EngineModel((1, 4), (0.1, 0.1), slots=4, latency=0.25)
    fleet = VirtualFleet(1, model, tokens(3, 5, 9))
    fleet.submit(0, requests(3))
    assert [answer.request.index for answer in fleet.wait()] == [0, 1]
    assert fleet.now == pytest.approx(0.55)
    assert ends(fleet, 1) == [(2, pytest.approx(1.15))]
    fleet.submit(0, [Request(1, 0)])
    fleet.abort(0, [Request(1, 0)])
    assert fleet.wait() == [Aborted(Request(1, 0), 0)]
    assert fleet.now == pytest.approx(1.4), "a refusal is an answer, too"


def test_waiting_without_requests_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="nothing is running"):
        VirtualFleet(1, TENTH, tokens(1)).wait()


def test_a_model_needs_two_points() -> None:
    with pytest.raises(ValueError, match="two"):
        EngineModel((1,), (0.1,), slots=4)


def test_engines_do_not_slow_each_other_down() -> None:
    fleet = VirtualFleet(2, SLOWING, tokens(10, 10))
    for engine, request in enumerate(requests(2)):
        fleet.submit(engine, [request])
    assert ends(fleet, 2) == [(0, 1.0), (1, 1.0)]


# -- why the order of completion must not decide ---------------------------------------------------------------------

RATES = (0.02, 0.1, 0.3, 0.5, 0.8)
GPU_LIKE = EngineModel(batch_sizes=(1, 256), step_seconds=(0.008, 0.022), slots=64)


def lognormal(request: Request) -> Sample:
    """Outcome and length are independent, and decided by identity."""
    rng = np.random.default_rng([11, request.key, request.index])
    score = float(rng.random() < RATES[request.key % 5])
    return Sample(request.key, request.index, score, score, int(np.clip(rng.lognormal(5, 0.9), 1, 4096)))


def pools(count: int) -> list[PromptPool]:
    return [PromptPool(key, row=key) for key in range(count)]


def lengths_of(finished: Sequence[PromptPool]) -> list[int]:
    return [sample.num_tokens for pool in finished for sample in pool.samples]


def first_come_first_kept(count: int) -> list[int]:
    """A scheduler as one would write it first: send the cap, keep what arrives, stop when the rule holds."""
    policy = sequential(1, 1, n=4, wave=4, cap=16)
    fleet = VirtualFleet(2, GPU_LIKE, lognormal)
    for key in range(count):
        fleet.submit(key % 2, [Request(key, index) for index in range(16)])
    arrived: dict[int, PromptPool] = {pool.key: pool for pool in pools(count)}
    left = 16 * count
    while left:
        for answer in fleet.wait():
            assert isinstance(answer, Finished)
            left -= 1
            pool, sample = arrived[answer.request.key], answer.sample
            is_met = len(pool) >= 4 and policy.rule.is_met(len(pool), pool.count_positives(policy.rule.threshold))
            if not is_met:
                pool.add([Sample(pool.key, len(pool), sample.score, sample.reward, sample.num_tokens)])
    return lengths_of(list(arrived.values()))


@pytest.mark.slow
def test_completion_order_would_keep_short_answers() -> None:
    count = 200
    drawn = [lognormal(Request(key, index)).num_tokens for key in range(count) for index in range(16)]
    mean, spread = float(np.mean(drawn)), float(np.std(drawn))
    for name in ("rounds", "stream"):
        scheduler = Scheduler[None](sequential(1, 1, n=4, wave=4, cap=16), pools(count), name, least_chance=0.1)
        finished = run(scheduler, VirtualFleet(2, GPU_LIKE, lognormal), DispatchLimits(64, 64))
        kept = lengths_of([entry.pool for entry in finished])
        assert abs(np.mean(kept) - mean) < 3 * spread / len(kept) ** 0.5, name
    naive = first_come_first_kept(count)
    assert float(np.mean(naive)) < mean - 6 * spread / len(naive) ** 0.5
    assert float(np.mean(naive)) < 0.9 * mean
