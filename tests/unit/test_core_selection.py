"""Which samples of a pool are trained: balanced, seeded, blind to the order of arrival, and honestly weighted."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from cases import pool_of

from openrlhf_ada.core.grouping import GroupBuilder
from openrlhf_ada.core.pieces import Trait
from openrlhf_ada.core.selection import SELECTIONS, Selection
from openrlhf_ada.core.types import PromptPool, Sample


def make_pool(*scores: float) -> PromptPool:
    return pool_of(scores)


def select(pool: PromptPool, n: int, seed: int = 0, name: str = "balanced") -> tuple[int, ...]:
    return Selection(name, n, threshold=0.5).keep(pool.scores, np.random.default_rng([seed, 0]))


def factors_of(pool: PromptPool, n: int, seed: int = 0) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """(kept, stratum factors) of a balanced group."""
    builder = GroupBuilder(Selection("balanced", n, 0.5), "dr_grpo")
    group = builder.build(pool, np.random.default_rng([seed, 0]))
    return group.indices, group.critic_weights


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
        kept_positives = sum(pool.scores[list(kept)] > 0.5)
        if positives < n // 2:
            expected = positives
        elif negatives < n - n // 2:
            expected = n - negatives
        else:
            expected = n // 2
        assert kept_positives == expected, (positives, negatives, n)
        assert len(kept) == n
        assert list(kept) == sorted(set(kept)), "ascending, no sample twice"


@pytest.mark.parametrize(("scores", "kept"), [((1, 1, 1, 1), (0, 1, 2, 3)), ((0, 0, 0), (0, 1, 2))])
def test_pool_as_large_as_the_group_is_kept_whole(scores: tuple[float, ...], kept: tuple[int, ...]) -> None:
    assert select(make_pool(*scores), len(scores)) == kept


def test_pool_smaller_than_the_group_is_refused() -> None:
    with pytest.raises(ValueError, match="pool of 3 samples cannot fill a group of 4"):
        select(make_pool(1, 0, 1), 4)


def test_positive_means_above_the_threshold_not_at_it() -> None:
    pool = make_pool(0.5, 0.5, 0.50001, 1.0, 0.0)
    assert pool.count_positives(0.5) == 2
    assert {2, 3} < set(select(pool, 4))


# -- the draw -----------------------------------------------------------------------------------------------------


def test_choice_depends_on_the_seed() -> None:
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
    for order in itertools.permutations(pool.samples):
        arrived = PromptPool(0)
        arrived.add(order)
        assert select(arrived, 4) == expected


def test_choice_depends_on_scores_only() -> None:
    """Length and reward change nothing: that is the condition of the effective-weight identity."""
    scores = (1, 0, 0, 1, 1, 0)
    odd = PromptPool(0, [Sample(0, i, m, reward=-9.0 * i, num_tokens=1000 - i) for i, m in enumerate(scores)])
    for seed in range(10):
        assert select(odd, 4, seed) == select(make_pool(*scores), 4, seed)


# -- other selections ---------------------------------------------------------------------------------------------


def test_random_is_a_fair_sample_of_the_pool() -> None:
    """2 of 8 right: a group of 4 has one on average, and every index is kept equally often."""
    pool = make_pool(1, 1, 0, 0, 0, 0, 0, 0)
    counts = Counter(i for s in range(2000) for i in select(pool, 4, seed=s, name="random"))
    assert all(900 < counts[i] < 1100 for i in range(8)), counts


def test_max_variance_equals_brute_force() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        scores = rng.choice([0.0, 0.2, 0.5, 0.9, 1.0], size=rng.integers(2, 8))
        n = int(rng.integers(1, len(scores) + 1))
        best = max(np.var(c) for c in itertools.combinations(scores.tolist(), n))
        kept = select(make_pool(*scores), n, name="max_variance")
        assert len(set(kept)) == n
        assert np.var(scores[list(kept)]) == pytest.approx(best, abs=1e-9)


def test_max_variance_of_right_and_wrong_is_half_and_half() -> None:
    for positives, negatives in itertools.product(range(2, 7), repeat=2):
        pool = make_pool(*[1.0] * positives, *[0.0] * negatives)
        assert sum(pool.scores[list(select(pool, 4, name="max_variance"))]) == 2


def test_max_variance_ties_are_broken_by_chance() -> None:
    pool = make_pool(*[1.0] * 6, *[0.0] * 6)
    counts = Counter(i for s in range(2000) for i in select(pool, 4, seed=s, name="max_variance"))
    assert all(560 < counts[i] < 770 for i in range(12)), counts


def test_best_random_keeps_the_best_and_any_of_the_others() -> None:
    """Scores 1, .5, 1, 0 with n = 2: each of the best in half of the groups, each of the other three in a third."""
    pool = make_pool(1.0, 0.5, 1.0, 0.0)
    counts = Counter(select(pool, 2, seed, "best_random") for seed in range(3000))
    expected = {(0, 1): 1, (0, 2): 2, (0, 3): 1, (1, 2): 1, (2, 3): 1}
    assert dict(counts) == {kept: pytest.approx(500 * share, abs=90) for kept, share in expected.items()}
    assert len(select(pool, 1, 0, "best_random")) == 1


def test_all_keeps_every_sample_of_any_pool() -> None:
    for size in (1, 2, 9):
        assert select(make_pool(*[1.0] * size), 4, name="all") == tuple(range(size))


@pytest.mark.parametrize("name", SELECTIONS)
def test_traits_are_true(name: str) -> None:
    """Of 2 right and 4 wrong, a fair sample of 4 has 0, 1 or 2 right in 1, 8 and 6 of 15 groups. With the best kept
    and 3 of the other 5, 1 or 2 are right in 4 and 6 of 10. Others: one count."""
    pool = make_pool(0, 1, 0, 0, 1, 0)
    counts = Counter(int(sum(pool.scores[list(select(pool, 4, seed, name))])) for seed in range(1500))
    assert len(SELECTIONS[name].traits) == 1
    if Selection(name, 4, 0.5).has(Trait.FAIR_SAMPLE):
        assert [counts[k] for k in range(3)] == pytest.approx([100, 800, 600], abs=70)
    elif Selection(name, 4, 0.5).has(Trait.BEST_AND_FAIR):
        assert [counts[k] for k in range(3)] == pytest.approx([0, 600, 900], abs=70)
    else:
        assert len(counts) == 1


# -- stratum factors ----------------------------------------------------------------------------------------------


def test_weighted_kept_mean_is_the_pool_mean() -> None:
    for positives, negatives, n in all_counts():
        if n == 1 and positives and negatives:
            continue  # one sample cannot stand for two outcomes; see the next test
        pool = make_pool(*[1.0] * positives, *[0.0] * negatives)
        kept, factors = factors_of(pool, n)
        exact = [Fraction(f).limit_denominator(1000) for f in factors]
        weighted = sum(f * Fraction(pool.scores[i]) for f, i in zip(exact, kept, strict=True)) / n
        assert weighted == Fraction(positives, positives + negatives), (positives, negatives, n)
        assert sum(exact) == n, "the factors are weights: they average to 1"


def test_group_of_one_cannot_represent_mixed_pool() -> None:
    """n // 2 = 0 positives are wanted, so a group of one is always the failure: why n = 1 has no meaning here."""
    for seed in range(20):
        assert factors_of(make_pool(1, 1, 1, 0), 1, seed) == ((3,), (0.25,))


@pytest.mark.parametrize("score", [0.0, 1.0])
def test_one_outcome_only_has_factor_one(score: float) -> None:
    assert factors_of(make_pool(*[score] * 6), 3)[1] == (1.0, 1.0, 1.0)


def test_factors_by_hand() -> None:
    """1 positive in 8, kept 1 + 3 of n = 4: (1/8)/(1/4) = 1/2 and (7/8)/(3/4) = 7/6."""
    kept, factors = factors_of(make_pool(0, 0, 1, 0, 0, 0, 0, 0), 4)
    assert factors == pytest.approx([0.5 if i == 2 else 7 / 6 for i in kept])
