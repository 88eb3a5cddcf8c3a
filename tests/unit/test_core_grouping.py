"""R1, group identity: a sample's advantage depends on its own pool and on nothing else.

What users may rely on: order of samples and of groups does not matter; a constant group has advantage exactly 0, for
any reward and any size; every value is finite; the numbers are those of a float64 reference.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from cases import pool_of, sequential
from hypothesis import assume, given
from hypothesis import strategies as st

from openrlhf_ada.core.advantages import NO_SPREAD, is_spread
from openrlhf_ada.core.grouping import GroupBuilder
from openrlhf_ada.core.objectives import Objective
from openrlhf_ada.core.selection import Selection
from openrlhf_ada.core.types import PromptPool, RewardScale, Sample, TrainingGroup

BASELINED = ("group_norm", "dr_grpo", "reinforce_baseline", "rloo")
AWKWARD = (0.0, 0.1, 0.3, 0.35, 1 / 3, -0.7, 1e4 / 3, 1e-8)
"""Constants whose mean is not exactly themselves in floating point."""

pools = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=16)
spread_pools = st.lists(st.floats(-10, 10), min_size=2, max_size=16).filter(lambda r: is_spread(np.array(r)))


def reference(rewards: Sequence[float], estimator: str) -> list[float]:
    """The formulas of OpenRLHF's documentation in plain Python."""
    mean = statistics.fmean(rewards)
    if estimator == "group_norm":
        return [(r - mean) / (statistics.stdev(rewards) + 1e-9) for r in rewards]
    if estimator == "rloo":
        return [r - (math.fsum(rewards) - r) / (len(rewards) - 1) for r in rewards]
    return [r - mean for r in rewards]


def make_pool(rewards: Sequence[float], scores: Sequence[float] | None = None, key: int = 0) -> PromptPool:
    scores = [float(r > 0) for r in rewards] if scores is None else scores
    samples = [Sample(key, i, m, r, 1) for i, (r, m) in enumerate(zip(rewards, scores, strict=True))]
    return PromptPool(key, samples)


def build(pool: PromptPool, estimator: str, n: int = 4) -> TrainingGroup:
    return sequential(2, 2, n=n, wave=4, cap=32, estimator=estimator).build(pool, np.random.default_rng(0))


def advantages(rewards: Sequence[float], estimator: str, **options: Any) -> np.ndarray:
    """Of every sample of a pool, all of which are trained; outcomes differ wherever rewards do."""
    pool = make_pool(rewards, scores=_ranks(rewards))
    baseline = {"rloo": "loo"}.get(estimator, "pool")
    builder = GroupBuilder(Selection("all", len(rewards), 0.5), estimator, **({"baseline": baseline} | options))
    return np.array(builder.build(pool, np.random.default_rng(0)).coefficients)


def _ranks(rewards: Sequence[float]) -> list[float]:
    order = sorted(set(rewards))
    return [order.index(r) / max(len(order) - 1, 1) for r in rewards]


# -- values -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("dr_grpo", [0.75, -0.25, -0.25, -0.25]),
        ("reinforce_baseline", [0.75, -0.25, -0.25, -0.25]),
        ("rloo", [1.0, -1 / 3, -1 / 3, -1 / 3]),  # 1 - 0, 0 - 1/3
        ("group_norm", [1.5, -0.5, -0.5, -0.5]),  # unbiased std of (1, 0, 0, 0) is 1/2
    ],
)
def test_one_positive_of_four(estimator: str, expected: list[float]) -> None:
    assert advantages([1, 0, 0, 0], estimator).tolist() == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("estimator", BASELINED)
@given(rewards=spread_pools)
def test_equals_the_reference(estimator: str, rewards: list[float]) -> None:
    assert advantages(rewards, estimator).tolist() == pytest.approx(reference(rewards, estimator), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("estimator", BASELINED)
@given(rewards=pools)
def test_always_finite_and_of_the_pools_length(estimator: str, rewards: list[float]) -> None:
    values = advantages(rewards, estimator)
    assert values.dtype == np.float64
    assert values.shape == (len(rewards),)
    assert np.isfinite(values).all()


@pytest.mark.parametrize("estimator", BASELINED)
@given(rewards=spread_pools)
def test_sums_to_zero_and_keeps_the_order_of_rewards(estimator: str, rewards: list[float]) -> None:
    values = advantages(rewards, estimator)
    assert abs(values.sum()) < 1e-6 * max(1.0, np.abs(values).sum())
    assert (np.diff(values[np.argsort(rewards)]) >= -1e-9).all()


@pytest.mark.parametrize("estimator", BASELINED)
@given(rewards=spread_pools, data=st.data())
def test_order_of_samples_does_not_matter(estimator: str, rewards: list[float], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(rewards))))
    permuted = advantages([rewards[i] for i in order], estimator)
    assert permuted.tolist() == pytest.approx(advantages(rewards, estimator)[order].tolist(), rel=1e-9, abs=1e-9)


# -- degenerate pools ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", BASELINED)
@pytest.mark.parametrize("reward", AWKWARD)
def test_constant_pool_is_exactly_zero(estimator: str, reward: float) -> None:
    for n in range(2, 17):
        for value in (reward, float(np.float32(reward)), -reward):
            assert advantages([value] * n, estimator).tolist() == [0.0] * n


@pytest.mark.parametrize("estimator", BASELINED)
def test_float_noise_is_no_signal(estimator: str) -> None:
    """0.1 + 0.2 and 0.3 differ by 6e-17; dividing that by its own std would give advantages near 1."""
    assert advantages([0.1 + 0.2, 0.3, 0.3], estimator).tolist() == [0.0] * 3
    assert advantages([1e9, 1e9 + 1.0], estimator).tolist() == [0.0] * 2, "relative to the size of the rewards"


@pytest.mark.parametrize("estimator", BASELINED)
def test_small_but_real_differences_are_signal(estimator: str) -> None:
    assert advantages([0.0, 10 * NO_SPREAD], estimator)[1] > 0


@pytest.mark.parametrize("estimator", BASELINED)
@pytest.mark.parametrize("reward", [*AWKWARD, 1e308])
def test_pool_of_one_is_zero(estimator: str, reward: float) -> None:
    assert advantages([reward], estimator).tolist() == [0.0]


# -- the trained group --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", BASELINED)
@given(rewards=st.lists(st.floats(-1, 1), min_size=4, max_size=16))
def test_group_inherits_the_whole_pools_statistics(estimator: str, rewards: list[float]) -> None:
    group = build(make_pool(rewards), estimator)
    # A pool of one outcome has no signal, however its rewards are shaped.
    values = advantages(rewards, estimator) if group.resolved else [0.0] * len(rewards)
    assert len(group.indices) == 4
    assert list(group.indices) == sorted(set(group.indices))
    assert list(group.coefficients) == [values[i] for i in group.indices]


@pytest.mark.parametrize("estimator", BASELINED)
def test_baseline_is_the_pools_not_the_kept_groups(estimator: str) -> None:
    """2 positives in 8: a kept group of 2 + 2 has mean 1/2, the pool has 1/4."""
    group = build(make_pool([1, 0, 0, 0, 1, 0, 0, 0]), "dr_grpo")
    assert sorted(group.coefficients) == [-0.25, -0.25, 0.75, 0.75]
    assert build(make_pool([1, 0, 0, 0, 1, 0, 0, 0]), estimator).resolved


@pytest.mark.parametrize("estimator", BASELINED)
@pytest.mark.parametrize("reward", AWKWARD)
def test_constant_pool_has_zero_group_and_is_unresolved(estimator: str, reward: float) -> None:
    group = build(make_pool([reward] * 8, scores=[1.0] * 8), estimator)
    assert group.coefficients == (0.0,) * 4
    assert not group.resolved


def test_unresolved_pool_with_shaped_rewards_is_zero() -> None:
    """R7: equal outcomes with different length penalties carry no signal."""
    group = build(make_pool([0.0, -0.5, 0.0, -1.0], scores=[0.0] * 4), "group_norm")
    assert not group.resolved
    assert group.coefficients == (0.0,) * 4


def test_reward_sets_coefficient_score_sets_selection() -> None:
    """Positive by score, but penalised to the smaller reward: kept as a positive, trained with its reward."""
    pool = make_pool(rewards=[-0.5, 0.0, 0.0, -0.5], scores=[1.0, 0.0, 0.0, 1.0])
    group = build(pool, "dr_grpo", n=4)
    assert group.resolved
    assert group.coefficients == (-0.25, 0.25, 0.25, -0.25)


@given(rewards=st.lists(st.sampled_from([0.0, 1.0]), min_size=4, max_size=12), data=st.data())
def test_group_does_not_depend_on_the_order_of_arrival(rewards: list[float], data: st.DataObject) -> None:
    assume(len(rewards) >= 4)
    in_order = make_pool(rewards)
    arrived = PromptPool(0)
    arrived.add(in_order.samples[i] for i in data.draw(st.permutations(range(len(rewards)))))
    assert build(arrived, "group_norm") == build(in_order, "group_norm")


# -- baselines from outside the pool --------------------------------------------------------------------------------


def outside(rewards: Sequence[float], baseline: str, predicted: float = 0.25, **options: Any) -> list[float]:
    scores = [float(r > 0) for r in rewards]
    builder = GroupBuilder(Selection("all", len(rewards), 0.5), "dr_grpo", baseline, **options)
    pool = make_pool(rewards, scores)
    return list(builder.build(pool, np.random.default_rng(0), predicted, RewardScale(-1.0, 1.0)).coefficients)


def test_predicted_baseline_gives_one_outcome_a_gradient() -> None:
    """What was predicted with 1/4 and came out wrong four times is a surprise of 1/4 each, in units of the reward."""
    assert outside([0, 0, 0, 0], "estimator") == pytest.approx([-0.25] * 4)


def test_missing_outcome_is_worth_its_prior() -> None:
    """Rewards of -1 and 1, all wrong: the baseline is 1/4 x 1 + 3/4 x (-1) = -1/2."""
    assert outside([-1, -1, -1, -1], "critic") == pytest.approx([-0.5] * 4)
    assert outside([1, 1], "critic") == pytest.approx([1.5] * 2)


def test_no_baseline_trains_the_reward_itself() -> None:
    assert outside([1, 0, 0, 1], "none") == [1, 0, 0, 1]


def test_prediction_that_is_missing_is_an_error() -> None:
    builder = GroupBuilder(Selection("all", 2, 0.5), "dr_grpo", "estimator")
    with pytest.raises(ValueError, match="'estimator' needs a pass rate known before sampling"):
        builder.build(make_pool([1, 0]), np.random.default_rng(0))


def test_shaped_rewards_keep_baseline_at_strata_means() -> None:
    """A length penalty moves both means: b = 1/2 x 0.9 + 1/2 x (-0.2) for a predicted pass rate of one half."""
    pool = make_pool([0.8, 1.0, -0.2, -0.2], scores=[1, 1, 0, 0])
    builder = GroupBuilder(Selection("all", 4, 0.5), "dr_grpo", "estimator")
    group = builder.build(pool, np.random.default_rng(0), predicted=0.5)
    assert group.coefficients == pytest.approx([0.45, 0.65, -0.55, -0.55])


# -- corrections, by hand -----------------------------------------------------------------------------------------


def corrected(outcomes: Sequence[int], correction: str, *, floor: float = 0.0, n: int = 4) -> list[float]:
    builder = GroupBuilder(
        Selection("balanced", n, 0.5), "dr_grpo", "pool", correction, Objective("log"), floor
    )  # fmt: skip
    return sorted(builder.build(make_pool(outcomes), np.random.default_rng(0)).coefficients)


EIGHT = [1, 1, 0, 0, 0, 0, 0, 0]
"""p = 1/4; 2 + 2 are kept of it, with advantages 3/4 and -1/4."""


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        ("none", [-1 / 4, -1 / 4, 3 / 4, 3 / 4]),
        ("paper", [-1, -1, 3, 3]),  # x 1/p = 4
        ("stratum", [-1.5, -1.5, 1.5, 1.5]),  # x 4 and x (1/4)/(1/2) or (3/4)/(1/2)
        ("positives", [0, 0, 2, 2]),  # n/k+
    ],
)
def test_one_pool_with_every_correction(correction: str, expected: list[float]) -> None:
    assert corrected(EIGHT, correction) == pytest.approx(expected)


def test_floor_bounds_the_weight() -> None:
    one_in_fifty = [1] + [0] * 49
    assert max(corrected(one_in_fifty, "paper")) == pytest.approx(50 * 0.98)
    assert max(corrected(one_in_fifty, "paper", floor=0.1)) == pytest.approx(10 * 0.98)


def test_mean_of_the_positives_needs_some() -> None:
    assert corrected([0] * 8, "positives") == [0.0] * 4
    assert corrected([1] * 8, "positives") == [1.0] * 4, "all right: the gradient of log p is still p's"


# -- partial credit ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("correction", ["paper", "stratum", "positives"])
@pytest.mark.parametrize("baseline", ["pool", "loo", "unbiased"])
def test_partial_credit_below_threshold_is_not_weighted(baseline: str, correction: str) -> None:
    """No positive: the pass rate of the pool is 0, and f'(floor) = 50 would multiply differences of nothing."""
    pool = pool_of([0.0, 0.1, 0.0, 0.4, 0.0, 0.0, 0.1, 0.0])
    selection = Selection("balanced", 4, 0.5)
    builder = GroupBuilder(selection, "dr_grpo", baseline, correction, Objective("log"), floor=0.02)
    group = builder.build(pool, np.random.default_rng(0))
    assert group.coefficients == (0.0,) * 4
    assert group.resolved is False


def test_partial_credit_without_correction_is_as_published() -> None:
    pool = pool_of([0.0, 0.1, 0.0, 0.4, 0.0, 0.0, 0.1, 0.0])
    group = GroupBuilder(Selection("all", 8, 0.5), "dr_grpo").build(pool, np.random.default_rng(0))
    assert group.coefficients == pytest.approx([m - 0.075 for m in pool.scores])
    assert group.resolved is True


@pytest.mark.parametrize("correction", ["paper", "stratum"])
def test_partial_credit_without_positive_is_not_weighted(correction: str) -> None:
    """With a prediction at the floor f' is 50. The pool is all wrong: its samples differ in nothing that f' is of."""
    selection = Selection("balanced", 4, 0.5)
    pool = pool_of([0.0, 0.1, 0.0, 0.4, 0.0, 0.0, 0.1, 0.0])
    predicting = GroupBuilder(selection, "dr_grpo", "estimator", correction, Objective("log"), floor=0.02)
    group = predicting.build(pool, np.random.default_rng(0), predicted=0.005)
    assert len(set(group.coefficients)) == 1
    assert abs(group.coefficients[0]) == pytest.approx(50 * abs(0.075 - (0.005 * 1.0 + 0.995 * 0.075)))
    bare = GroupBuilder(selection, "dr_grpo", "none", correction, Objective("log"), floor=0.02)
    assert bare.build(pool, np.random.default_rng(0)).coefficients == (0.0,) * 4


def test_kept_means_of_graded_rewards_train_one_outcome() -> None:
    pool = PromptPool(0, [Sample(0, i, 1.0, reward, 1) for i, reward in enumerate((3.0, 1.0, 2.0, 6.0))])
    selection = Selection("balanced", 4, 0.5)
    graded = GroupBuilder(selection, "dr_grpo", "kept", graded=True).build(pool, np.random.default_rng(0))
    assert graded.coefficients == pytest.approx((0.0, -2.0, -1.0, 3.0))
    verified = GroupBuilder(selection, "dr_grpo", "kept").build(pool, np.random.default_rng(0))
    assert verified.coefficients == (0.0,) * 4


def test_a_kept_group_of_one_outcome_is_unresolved() -> None:
    pool = pool_of([1.0] + [0.0] * 7)
    for seed in range(20):
        group = GroupBuilder(Selection("random", 4, 0.5), "dr_grpo", "kept").build(pool, np.random.default_rng(seed))
        assert group.resolved == (0 in group.indices)
