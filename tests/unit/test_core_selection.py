"""Which samples of a pool are trained: balanced, seeded, blind to the order of arrival, and honestly weighted."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from openrlhf_ada.core.grouping import select_balanced, stratum_factors
from openrlhf_ada.core.stopping import ExitRule
from openrlhf_ada.core.types import PromptPool, Sample

RULE = ExitRule(k_pos=1, k_neg=1, threshold=0.5)


def make_pool(*metrics: float) -> list[Sample]:
    return [Sample(0, i, m, m, 1) for i, m in enumerate(metrics)]


def select(pool: list[Sample], n: int, seed: int = 0, **options: int) -> tuple[int, ...]:
    return select_balanced(pool, n, RULE, np.random.default_rng([seed, 0]), **options)


def all_counts(max_each: int = 6, max_n: int = 6):
    """Every (positives, negatives, n) that fills a group."""
    for positives, negatives in itertools.product(range(max_each + 1), repeat=2):
        for n in range(1, min(positives + negatives, max_n) + 1):
            yield positives, negatives, n


# -- how many of each ---------------------------------------------------------------------------------------------


def test_half_positives_with_backfill_from_the_other_side() -> None:
    for positives, negatives, n in all_counts():
        pool = make_pool(*[1.0] * positives, *[0.0] * negatives)
        kept = select(pool, n)
        kept_positives = sum(pool[i].metric > 0.5 for i in kept)
        if positives < n // 2:
            expected = positives
        elif negatives < n - n // 2:
            expected = n - negatives
        else:
            expected = n // 2
        assert kept_positives == expected, (positives, negatives, n)
        assert len(kept) == n
        assert list(kept) == sorted(set(kept)), "ascending, no sample twice"


@pytest.mark.parametrize(("metrics", "kept"), [((1, 1, 1, 1), (0, 1, 2, 3)), ((0, 0, 0), (0, 1, 2))])
def test_pool_as_large_as_the_group_is_kept_whole(metrics: tuple[float, ...], kept: tuple[int, ...]) -> None:
    assert select(make_pool(*metrics), len(metrics)) == kept


def test_pool_smaller_than_the_group_is_refused() -> None:
    with pytest.raises(ValueError, match="pool of 3 samples cannot fill a group of 4"):
        select(make_pool(1, 0, 1), 4)


def test_positive_means_above_the_threshold_not_at_it() -> None:
    pool = make_pool(0.5, 0.5, 0.50001, 1.0)
    assert [RULE.is_positive(s) for s in pool] == [False, False, True, True]


# -- the draw -----------------------------------------------------------------------------------------------------


def test_same_seed_same_choice_and_another_seed_another_choice() -> None:
    pool = make_pool(*[1.0, 0.0] * 16)
    assert select(pool, 8, seed=3) == select(pool, 8, seed=3)
    assert len({select(pool, 8, seed=s) for s in range(20)}) == 20


def test_uniform_within_strata() -> None:
    """2 of 4 positives and 2 of 4 negatives: 36 equally likely groups; chi-square over 3600 fixed seeds."""
    pool = make_pool(1, 0, 0, 1, 1, 0, 1, 0)
    counts = Counter(select(pool, 4, seed=s) for s in range(3600))
    assert len(counts) == 36
    chi_square = sum((count - 100) ** 2 / 100 for count in counts.values())
    assert chi_square < 66.6, "99.9 % quantile with 35 degrees of freedom"


def test_early_indices_are_not_preferred() -> None:
    """The published code keeps the first k of a stratum; here every index is kept equally often."""
    pool = make_pool(*[1.0] * 6, *[0.0] * 6)
    counts = Counter(i for s in range(2000) for i in select(pool, 4, seed=s))
    assert sorted(counts) == list(range(12))
    # Each is kept with probability 1/3: 667 +- 21 (one standard deviation).
    assert all(560 < count < 770 for count in counts.values()), counts


def test_choice_does_not_depend_on_the_order_of_arrival() -> None:
    pool = make_pool(1, 0, 0, 1, 1, 0)
    expected = select(pool, 4)
    for order in itertools.permutations(pool):
        arrived = PromptPool(0)
        arrived.add(order)
        assert select(arrived.samples, 4) == expected


def test_choice_looks_at_metrics_only() -> None:
    """Length and reward change nothing: that is the condition of the effective-weight identity."""
    metrics = (1, 0, 0, 1, 1, 0)
    odd = [Sample(0, i, m, reward=-9.0 * i, num_tokens=1000 - i) for i, m in enumerate(metrics)]
    for seed in range(10):
        assert select(odd, 4, seed) == select(make_pool(*metrics), 4, seed)


# -- stratum factors ----------------------------------------------------------------------------------------------


def test_weighted_mean_over_the_kept_is_the_pools_mean_exactly() -> None:
    for positives, negatives, n in all_counts():
        if n == 1 and positives and negatives:
            continue  # one sample cannot stand for two outcomes; see the next test
        pool = make_pool(*[1.0] * positives, *[0.0] * negatives)
        kept = select(pool, n)
        factors = [Fraction(f).limit_denominator(1000) for f in stratum_factors(pool, kept, RULE)]
        weighted = sum(f * Fraction(pool[i].metric) for f, i in zip(factors, kept, strict=True)) / n
        assert weighted == Fraction(positives, positives + negatives), (positives, negatives, n)
        assert sum(factors) == n, "the factors are weights: they average to 1"


def test_degenerate_group_of_one_cannot_represent_a_mixed_pool() -> None:
    """n // 2 = 0 positives are wanted, so a group of one is always the failure: why n = 1 has no meaning here."""
    for seed in range(20):
        kept = select(make_pool(1, 1, 1, 0), 1, seed)
        assert kept == (3,)
    assert stratum_factors(make_pool(1, 1, 1, 0), (3,), RULE) == (0.25,)


@pytest.mark.parametrize("metric", [0.0, 1.0])
def test_one_outcome_only_has_factor_one(metric: float) -> None:
    assert stratum_factors(make_pool(*[metric] * 6), (0, 2, 5), RULE) == (1.0, 1.0, 1.0)


def test_factors_by_hand() -> None:
    """1 positive in 8, kept 1 + 3 of n = 4: (1/8)/(1/4) = 1/2 and (7/8)/(3/4) = 7/6."""
    pool = make_pool(0, 0, 1, 0, 0, 0, 0, 0)
    assert stratum_factors(pool, (0, 2, 3, 7), RULE) == pytest.approx((7 / 6, 1 / 2, 7 / 6, 7 / 6))
