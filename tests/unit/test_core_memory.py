"""What Ada-Seq remembers: pass rates without the bias of its own stopping rule (R11), kept over a restart."""

from __future__ import annotations

import json
from itertools import cycle, islice

import numpy as np
import pytest
from cases import pool_of, sequential

from openrlhf_ada.core.estimators import PassRateCounts
from openrlhf_ada.core.policies import Memory, Sequential
from openrlhf_ada.simulation.coin_flips import simulate

RATES = (0.05, 0.1, 0.3, 0.5, 0.9, 0.95)
PER_RATE = 64


def remembering(k_pos: int, k_neg: int, strength: float = 2.0) -> Sequential:
    plain = sequential(k_pos, k_neg, n=4, wave=8, cap=32, baseline="estimator", correction="stratum")
    memory = Memory(PassRateCounts(half_life=50, prior_mean=0.5, prior_strength=strength, give_up=0), 0.5)
    return Sequential(plain.rule, plain.wave, plain.max_samples, plain.builder, memory)


@pytest.mark.slow
@pytest.mark.parametrize(("k_pos", "k_neg"), [(1, 0), (2, 2)], ids=["pos", "balance"])
def test_estimates_under_real_stopping_are_unbiased(k_pos: int, k_neg: int) -> None:
    """64 prompts of each pass rate, 24 visits each: mean estimate within 0.01 of the truth.

    A pool's own mean would be off by up to 0.03 here. The prior, which by intent draws towards the mean of all
    prompts, counts next to nothing.
    """
    policy = remembering(k_pos, k_neg, strength=1e-6)
    truth = np.repeat(RATES, PER_RATE)
    rows = range(len(truth))
    steps = simulate(policy, islice(cycle([list(rows)]), 24), lambda step, r: truth[r], seed=0)
    last = [step.pools for step in steps][-1]
    predicted = np.array([pool.predicted for pool in last]).reshape(len(RATES), PER_RATE)
    assert predicted.mean(axis=1) == pytest.approx(np.array(RATES), abs=0.01)


@pytest.mark.slow
def test_pools_own_mean_is_biased_where_the_memory_is_not() -> None:
    policy = remembering(1, 0)
    (step,) = simulate(policy, iter([list(range(4000))]), lambda step, r: np.full(len(r), 0.1), seed=0)
    assert np.mean([pool.scores.mean() for pool in step.pools]) == pytest.approx(0.130, abs=0.005)
    assert np.mean([pool.scores[:8].mean() for pool in step.pools]) == pytest.approx(0.1, abs=0.005)


def test_shaped_rewards_never_enter_the_counts() -> None:
    policy = remembering(2, 2)
    assert policy.memory is not None
    pool = pool_of([1, 0, 0, 0, 1, 0, 0, 0])
    policy.decide([pool_of([], row=0)])
    pool.predicted = 0.5
    policy.observe([pool])
    assert policy.memory.counts.state_dict()["positives"] == [2.0]


def test_resumed_memory_predicts_the_same() -> None:
    rates = np.random.default_rng(0).random(32)
    batches = [list(range(start, start + 16)) for start in (0, 16)] * 4
    whole, resumed = remembering(2, 2), remembering(2, 2)
    list(simulate(whole, iter(batches), lambda step, r: rates[r], seed=0))
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    outcomes = [list(simulate(p, iter(batches), lambda step, r: rates[r], seed=1)) for p in (whole, resumed)]
    for a, b in zip(*outcomes, strict=True):
        assert a.groups == b.groups
        assert a.figures == b.figures


def test_a_checkpoint_without_pass_rates_says_how_to_go_on() -> None:
    with pytest.raises(ValueError, match=r"memory.* --ada_"):
        remembering(2, 2).load_state_dict({})
