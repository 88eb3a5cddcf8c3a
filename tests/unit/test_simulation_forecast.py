"""Forecasts: what is answered in virtual time, and the bounds between which every schedule lies."""

from __future__ import annotations

import numpy as np
import pytest
from cases import sequential

from openrlhf_ada.core.scheduling import SCHEDULERS, Request, SchedulerName
from openrlhf_ada.core.types import PromptPool, Sample
from openrlhf_ada.simulation.forecast import Cluster, Forecast, forecast
from openrlhf_ada.simulation.virtual_engines import EngineModel
from openrlhf_ada.simulation.workload import SyntheticRollouts

ENGINE = EngineModel(batch_sizes=(1, 16), step_seconds=(0.01, 0.02), slots=16, prefill=0.005, latency=0.01)
MADE_UP = SyntheticRollouts(alpha=1.0, beta=1.0, median=40.0, spread=0.8, longest=400, seed=3)


def step(scheduler: SchedulerName) -> Forecast:
    policy = sequential(1, 1, n=4, wave=4, cap=16)
    pools = [PromptPool(key, row=key) for key in range(40)]
    return forecast(policy, pools, MADE_UP, scheduler, Cluster(2, ENGINE, speculation=16))


# -- answers ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_made_up_first_rollout_is_as_often_right_as_later_ones() -> None:
    """It has other random numbers than its prompt's pass rate: Beta(1, 1) has 1/2 whatever the index."""
    answer = SyntheticRollouts(alpha=1.0, beta=1.0, median=10.0, spread=0.5, longest=100)
    for index in (0, 1):
        rate = np.mean([answer(Request(key, index)).score for key in range(4000)])
        assert rate == pytest.approx(0.5, abs=0.035), index


@pytest.mark.slow
def test_synthetic_rollouts_have_requested_statistics() -> None:
    answer = SyntheticRollouts(alpha=2.0, beta=3.0, median=100.0, spread=0.5, longest=10**6, shared=0.4, seed=1)
    samples = [[answer(Request(key, index)) for index in range(20)] for key in range(2000)]
    rates = np.array([[s.score for s in row] for row in samples]).mean(axis=1)
    assert rates.mean() == pytest.approx(0.4, abs=0.02)
    # Var of the mean of 20 flips with p ~ Beta(2, 3): Var p + E p(1-p) / 20 = 0.04 + 0.2 / 20
    assert rates.var() == pytest.approx(0.04 + 0.2 / 20, rel=0.1)
    logs = np.log([[s.num_tokens for s in row] for row in samples])
    assert np.exp(np.median(logs)) == pytest.approx(100, rel=0.03)
    assert logs.std() == pytest.approx(0.5, rel=0.03)
    assert logs.mean(axis=1).var() == pytest.approx(0.25 * (0.4 + 0.6 / 20), rel=0.1)
    assert answer(Request(5, 7)) == answer(Request(5, 7, attempt=1)), "by identity"


def test_skipped_zeros_are_sampled_and_not_trained() -> None:
    """Groups of one outcome, whose coefficients are 0."""
    answer = SyntheticRollouts(alpha=0.3, beta=2.0, median=40.0, spread=0.8, longest=400, seed=3)
    found = [
        forecast(
            sequential(1, 1, n=4, wave=4, cap=4),
            [PromptPool(key, row=key) for key in range(40)],
            *(answer, "stream", Cluster(1, ENGINE, speculation=16)),
            skips_zeros=skips,
        )
        for skips in (False, True)
    ]
    whole, rest = found
    assert whole.trained == 160 and rest.trained == round(4 * 40 * rest.signal_share) < 160
    assert rest.trained_tokens < whole.trained_tokens and rest.tokens == whole.tokens
    # Of a group of both outcomes those that are right.
    right = [s for s in rest.samples if s.score and sum(o.score for o in rest.samples if o.key == s.key) < 4]
    assert whole.raised == rest.raised == len(right) < rest.trained
    assert whole.raised_tokens == rest.raised_tokens == sum(s.num_tokens for s in right)


# -- forecasts ----------------------------------------------------------------------------------------------------


def test_schedulers_agree_on_groups_and_stream_is_fastest() -> None:
    rounds, waves, stream = (step(name) for name in SCHEDULERS)
    assert rounds.signal_share == waves.signal_share == stream.signal_share > 0.8
    assert stream.seconds < waves.seconds < rounds.seconds
    assert rounds.waste_share == waves.waste_share == 0 < stream.waste_share < 0.5
    needed = rounds.tokens
    assert stream.tokens - stream.wasted_tokens == waves.tokens == needed
    assert sorted(stream.samples, key=identity) == sorted(rounds.samples, key=identity)


def identity(sample: Sample) -> tuple[int, int]:
    return sample.key, sample.index


def test_sample_time_is_prefill_tokens_and_return() -> None:
    policy = sequential(0, 0, n=1, wave=1, cap=1)
    result = forecast(
        policy,
        [PromptPool(0)],
        lambda request: Sample(0, 0, 1.0, 1.0, 50),
        "rounds",
        Cluster(1, ENGINE, speculation=0),
    )
    assert result.seconds == pytest.approx(0.005 + 50 * 0.01 + 0.01)
    assert (result.rollouts, result.tokens, result.wasted_tokens) == (1, 50, 0)
