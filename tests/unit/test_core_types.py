"""Carriers of the method: what they refuse, and that the ledger balances."""

from __future__ import annotations

import itertools
import math

import pytest

from openrlhf_ada.core.types import Ledger, PromptPool, Sample, TrainingGroup


def sample(index: int, score: float = 1.0, *, key: int = 0, reward: float = 1.0, num_tokens: int = 1) -> Sample:
    return Sample(key=key, index=index, score=score, reward=reward, num_tokens=num_tokens)


@pytest.mark.parametrize("score", [-0.1, 1.1, -1.0, math.nan, math.inf])
def test_score_outside_0_to_1_is_refused(score: float) -> None:
    with pytest.raises(ValueError, match=r"sample 3 of prompt 7 has score .*reward_func"):
        sample(3, score, key=7)


@pytest.mark.parametrize("score", [0.0, 0.5, 1.0])
def test_score_within_0_to_1_is_accepted(score: float) -> None:
    assert sample(0, score).score == score


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_reward_that_is_not_finite_is_refused(reward: float) -> None:
    with pytest.raises(ValueError, match="reward"):
        sample(0, reward=reward)


# -- PromptPool ---------------------------------------------------------------------------------------------------


def test_pool_is_in_index_order_not_arrival_order() -> None:
    for order in itertools.permutations(range(4)):
        pool = PromptPool(0)
        pool.add(sample(i, score=i / 4) for i in order)
        assert [s.index for s in pool.samples] == [0, 1, 2, 3]
        assert [s.score for s in pool.samples] == [0.0, 0.25, 0.5, 0.75]


def test_pool_grows_wave_by_wave() -> None:
    pool = PromptPool(0)
    assert len(pool) == 0
    pool.add([sample(1), sample(0)])
    pool.add([sample(2)])
    pool.add([])
    assert len(pool) == 3


@pytest.mark.parametrize(
    ("arrivals", "message"),
    [
        ([sample(1)], "expected index 0, got 1"),
        ([sample(0), sample(2)], "expected index 1, got 2"),
        ([sample(0), sample(0)], "expected index 1, got 0"),
        ([sample(0, key=9)], "sample of prompt 9 offered to the pool of prompt 0"),
    ],
    ids=["gap at the start", "gap", "index twice", "foreign key"],
)
def test_pool_refuses_foreign_samples(arrivals: list[Sample], message: str) -> None:
    pool = PromptPool(0)
    with pytest.raises(ValueError, match=message):
        pool.add(arrivals)
    assert len(pool) == 0, "a refused wave leaves no trace"


def test_group_with_unequal_lengths_is_refused() -> None:
    with pytest.raises(ValueError, match="group of prompt 5: indices, coefficients and weights differ in length"):
        TrainingGroup(key=5, indices=(0, 1), coefficients=(1.0,), critic_weights=(1.0, 1.0), resolved=True)


# -- Ledger -------------------------------------------------------------------------------------------------------


def test_ledger_counts_samples_and_tokens() -> None:
    ledger = Ledger()
    ledger.record_group([sample(0, num_tokens=3), sample(1, num_tokens=5), sample(2, num_tokens=7)], kept=(0, 2))
    assert ledger == Ledger(drawn=3, kept=2, unused=1, drawn_tokens=15, kept_tokens=10, unused_tokens=5)
    ledger.check(drawn=3)


def test_empty_ledger_balances() -> None:
    Ledger().check(drawn=0)


@pytest.mark.parametrize(
    ("ledger", "message"),
    [
        (Ledger(drawn=2, kept=2), "3 samples were dispatched but 2 are accounted for"),
        (Ledger(drawn=3, kept=1, unused=1), "does not balance"),
        (Ledger(drawn=3, kept=2, unused=1, drawn_tokens=9, kept_tokens=5, unused_tokens=3), "in tokens"),
    ],
)
def test_ledger_that_does_not_reconcile_raises(ledger: Ledger, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        ledger.check(drawn=3)


def test_index_that_was_never_drawn_cannot_be_kept() -> None:
    """A kept index outside the pool shows as a group smaller than promised, not as a phantom sample."""
    ledger = Ledger()
    ledger.record_group([sample(0)], kept=(0, 5))
    assert (ledger.drawn, ledger.kept) == (1, 1)
