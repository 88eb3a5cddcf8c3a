"""Which objective each builder really optimises, by exact enumeration of everything that sampling can come to.

Effective-weight identity: E[sum c_i grad log pi(y_i)] = n f'_eff(p) grad p, with
f'_eff(p) = E[C+ / p + C- / (1 - p)] / n, C+ the sum of the coefficients of kept positives, C- minus that of negatives.
"""

from __future__ import annotations

import itertools
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pytest
from cases import expected_weight, pool_of, sequential

from openrlhf_ada.core.advantages import BASELINES
from openrlhf_ada.core.corrections import CORRECTIONS
from openrlhf_ada.core.grouping import GroupBuilder
from openrlhf_ada.core.objectives import OBJECTIVES, Objective, effective_weight
from openrlhf_ada.core.pieces import Need
from openrlhf_ada.core.policies import Sequential
from openrlhf_ada.core.selection import Selection
from openrlhf_ada.core.stopping import ExitRule, StoppingPlan
from openrlhf_ada.core.types import PromptPool, TrainingGroup

RATES = (0.01, 0.05, 0.3, 0.5, 0.9, 0.99)
EXITS = {"pos": (1, 0), "pos 2": (2, 0), "balance": (2, 2), "balance 1+1": (1, 1), "fixed": (0, 0)}
SIZES = [(8, 32, 4), (4, 16, 4), (2, 10, 3), (5, 12, 2)]
"""(M, N_max, n)."""


def ended_with(drawn: int, positives: int, predicted: float | None = None) -> PromptPool:
    pool = pool_of([1] * positives + [0] * (drawn - positives))
    pool.predicted = predicted
    return pool


@lru_cache(maxsize=1000)
def group_of(policy: Sequential, drawn: int, positives: int, predicted: float | None) -> TrainingGroup:
    return policy.build(ended_with(drawn, positives, predicted), np.random.default_rng(0))


def achieved(policy: Sequential, p: float, predicted: float | None = None) -> float:
    """E[f'_eff] over all ends of sampling. How many of each outcome are kept is not random."""

    def weight(drawn: int, positives: int) -> float:
        group = group_of(policy, drawn, positives, predicted)
        return effective_weight(group.coefficients, [i < positives for i in group.indices], p, policy.group_size)

    return expected_weight(policy.plan, p, weight)


# -- the published builders ---------------------------------------------------------------------------------------

SHIPPED = {  # p: pos E[N], E[pool mean], f'; balance E[N], E[pool mean], f', f' with 1/p (peers' table of the code)
    0.01: (28.5, 0.0194, 6.61, 31.7, 0.0112, 7.52, 205),
    0.02: (25.5, 0.0364, 5.88, 30.9, 0.0241, 7.17, 169),
    0.05: (19.2, 0.0776, 4.27, 27.3, 0.0663, 5.86, 96.8),
    0.10: (13.6, 0.1297, 2.80, 21.0, 0.1321, 3.95, 41.4),
    0.30: (8.5, 0.309, 1.23, 10.3, 0.328, 1.35, 5.10),
    0.50: (8.0, 0.501, 0.97, 8.6, 0.500, 1.00, 2.24),
    0.70: (8.0, 0.700, 1.15, 10.3, 0.672, 1.35, 2.07),
    0.90: (8.0, 0.900, 1.58, 21.0, 0.868, 3.95, 4.62),
    0.95: (8.0, 0.950, 1.68, 27.3, 0.934, 5.86, 6.48),
}


@pytest.mark.parametrize("p", SHIPPED)
@pytest.mark.parametrize(("k_pos", "k_neg", "column"), [(1, 0, 0), (2, 2, 3)], ids=["pos", "balance"])
def test_table_of_the_shipped_rule(p: float, k_pos: int, k_neg: int, column: int) -> None:
    """M = 8, N_max = 32, n = 4, pool mean, no correction: cost, bias of the pool mean, what is really optimised."""
    policy = sequential(k_pos, k_neg, n=4, wave=8, cap=32)
    cost, pool_mean, weight = SHIPPED[p][column : column + 3]
    outcomes = policy.plan.outcomes(p)
    assert policy.plan.expected_draws(p) == pytest.approx(cost, abs=0.06)
    assert sum(mass * k / n for (n, k), mass in outcomes.items()) == pytest.approx(pool_mean, abs=6e-4)
    assert achieved(policy, p) == pytest.approx(weight, abs=0.006)


@pytest.mark.parametrize("p", SHIPPED)
def test_dividing_by_pass_rate_is_not_the_log_objective(p: float) -> None:
    policy = sequential(2, 2, n=4, wave=8, cap=32, correction="paper", objective=Objective("log"))
    assert achieved(policy, p) == pytest.approx(SHIPPED[p][6], rel=0.006)


@pytest.mark.parametrize(("n", "expected"), [(4, (1.73, 1.71, 1.69, 1.62)), (8, (2.61, 2.47, 2.33, 1.86))])
def test_uniform_grpo_with_std_is_flat_at_finite_n(n: int, expected: tuple[float, ...]) -> None:
    policy = sequential(0, 0, n=n, wave=n, cap=n, estimator="group_norm")
    # The published figures divide by the population's std.
    scale = ((n - 1) / n) ** -0.5
    for p, weight in zip((0.01, 0.05, 0.1, 0.5), expected, strict=True):
        assert achieved(policy, p) * scale == pytest.approx(weight, abs=0.006)


def test_uniform_is_linear_and_own_mean_costs_one_in_n() -> None:
    for n, p in itertools.product((2, 4, 8), RATES):
        fixed: dict[str, Any] = {"n": n, "wave": n, "cap": n}
        assert achieved(sequential(0, 0, **fixed), p) == pytest.approx((n - 1) / n)
        assert achieved(sequential(0, 0, **fixed, estimator="rloo"), p) == pytest.approx(1.0)
        assert achieved(sequential(0, 0, **fixed, baseline="none"), p) == pytest.approx(1.0)


# -- exact corrections --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("exit_name", EXITS)
@pytest.mark.parametrize(("wave", "cap", "n"), SIZES)
def test_stratum_is_exact_for_every_objective(name: str, exit_name: str, wave: int, cap: int, n: int) -> None:
    """With the share of positives free of stopping bias and f' taken at a pass rate known before sampling."""
    f = Objective(name)
    policy = sequential(
        *EXITS[exit_name], n=n, wave=wave, cap=cap, baseline="estimator", correction="stratum", objective=f
    )
    for p in RATES:
        assert achieved(policy, p, predicted=p) == pytest.approx(f.weight(p), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("exit_name", EXITS)
@pytest.mark.parametrize("predicted", [0.02, 0.5, 0.97])
def test_linear_is_exact_with_wrong_prediction(exit_name: str, predicted: float) -> None:
    """A baseline from outside the pool may be wrong: it moves the variance, not the expectation."""
    policy = sequential(*EXITS[exit_name], n=4, wave=8, cap=32, baseline="estimator", correction="stratum")
    for p in RATES:
        assert achieved(policy, p, predicted) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("exit_name", EXITS)
@pytest.mark.parametrize(("wave", "cap", "n"), SIZES)
def test_mean_of_positives_is_truncated_log(exit_name: str, wave: int, cap: int, n: int) -> None:
    """(1 - (1-p)^N)/p, the derivative of sum over k <= N of pass@k / k, wherever sampling stops after a success."""
    policy = sequential(*EXITS[exit_name], n=n, wave=wave, cap=cap, correction="positives", objective=Objective("log"))
    for p in RATES:
        assert achieved(policy, p) == pytest.approx((1 - (1 - p) ** cap) / p, rel=1e-9)


def by_formula(policy: Sequential, p: float, predicted: float, drawn: int, positives: int) -> float:
    """(C+/p + C-/(1-p))/n from the documentation's formulas, for rewards of 0 and 1 and balanced groups."""
    builder, n = policy.builder, policy.group_size
    kept_pos = min(positives, max(n // 2, n - (drawn - positives)))
    kept_neg = n - kept_pos
    share, pool = policy.plan.unbiased_rate(drawn, positives), positives / drawn
    own = {"pool": pool, "loo": pool, "kept": kept_pos / n, "none": 0.0, "unbiased": share}
    b = own.get(builder.baseline, predicted)
    scale = drawn / (drawn - 1) if builder.baseline == "loo" else 1.0
    s = pool if builder.baseline in ("pool", "loo", "kept", "none") else share
    point = {"unbiased": share}.get(builder.baseline, pool) if builder.baseline not in OUTSIDE else predicted
    weight = 1.0 if builder.correction == "none" else builder.objective.weight(point, builder.floor)
    factors = (s * n / max(kept_pos, 1), (1 - s) * n / max(kept_neg, 1)) if builder.correction == "stratum" else (1, 1)
    if builder.correction == "positives":
        return (n / p if kept_pos else 0.0) / n
    if pool in (0.0, 1.0) and builder.baseline not in (*OUTSIDE, "none"):
        return 0.0
    # The prediction is worth one rollout.
    of_pos, of_neg = ((predicted + positives - m) / drawn if builder.baseline == "blend" else b for m in (1, 0))
    gain = kept_pos * weight * factors[0] * (1 - of_pos) * scale
    loss = kept_neg * weight * factors[1] * of_neg * scale
    return (gain / p + loss / (1 - p)) / n


OUTSIDE = ("estimator", "critic", "blend")

DIFFERENCES = [name for name, piece in BASELINES.items() if Need.PLAIN_ADVANTAGES not in piece.lacks]
"""Baselines that are subtracted. `posterior` is more than that, and takes no correction (test_core_published.py)."""


@pytest.mark.slow
@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("baseline", DIFFERENCES)
@pytest.mark.parametrize("exit_name", EXITS)
def test_every_combination_has_its_formulas_weight(exit_name: str, baseline: str, correction: str) -> None:
    """Exit x (M, N_max, n) x baseline x correction x objective, at right and at wrong predictions."""
    for (wave, cap, n), name, predicted in itertools.product(SIZES, ("linear", "log"), (0.1, 0.5)):
        if correction == "positives" and name != "log":
            continue
        policy = sequential(
            *EXITS[exit_name], n=n, wave=wave, cap=cap, baseline=baseline, correction=correction,
            objective=Objective(name), floor=0.01,
        )  # fmt: skip
        for p in (0.05, 0.5, 0.9):
            weight = partial(by_formula, policy, p, predicted)
            assert achieved(policy, p, predicted) == pytest.approx(
                expected_weight(policy.plan, p, weight), rel=1e-9, abs=1e-12
            )


def test_pool_rates_have_the_documented_bias() -> None:
    """Stratum with the pool's own rates: near the target, biased by stopping as the table in the docs says."""
    for exit_name, (low, high) in {"pos": (0.87, 1.79), "balance": (0.90, 1.22)}.items():
        linear = sequential(*EXITS[exit_name], n=4, wave=8, cap=32, correction="stratum")
        weights = [achieved(linear, p) for p in SHIPPED]
        assert low <= min(weights) <= max(weights) <= high, (exit_name, weights)
        unbiased = sequential(*EXITS[exit_name], n=4, wave=8, cap=32, correction="stratum", baseline="unbiased")
        weights = [achieved(unbiased, p) for p in SHIPPED]
        assert 0.85 <= min(weights) <= max(weights) <= 0.97, "its own baseline takes (N-1)/N"


# -- Ada-Est: numbers of rollouts decided before sampling ----------------------------------------------------------


def estimated_weight(p: float, drawn: int, n: int, predicted: float | None = None, **options: Any) -> float:
    """Effective weight per n of a prompt that was allotted `drawn` rollouts, all trained."""
    builder = GroupBuilder(Selection("all", n, 0.5), "dr_grpo", **options)

    def weight(drawn: int, positives: int) -> float:
        group = builder.build(ended_with(drawn, positives), np.random.default_rng(0), predicted)
        return effective_weight(group.coefficients, [i < positives for i in group.indices], p, n)

    return expected_weight(StoppingPlan(ExitRule(0, 0, 0.5), drawn, drawn, drawn), p, weight)


@pytest.mark.parametrize("drawn", [2, 5, 8, 32])
def test_training_all_samples_weighs_prompts_by_count(drawn: int) -> None:
    for p in RATES:
        assert estimated_weight(p, drawn, 8, baseline="loo") == pytest.approx(drawn / 8)
        assert estimated_weight(p, drawn, 8) == pytest.approx((drawn - 1) / 8), "the pool's own mean costs one rollout"


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("drawn", [2, 5, 8, 32])
def test_stratum_takes_the_allocations_weight_out_again(name: str, drawn: int) -> None:
    for p in RATES:
        weight = estimated_weight(
            p, drawn, 8, p, baseline="estimator", correction="stratum", objective=Objective(name)
        )
        assert weight == pytest.approx(Objective(name).weight(p), rel=1e-9)


def test_hybrid_splits_weight_into_number_and_gradient() -> None:
    """n ~ 1/sqrt(p) and gradient x 1/sqrt(p): 1/p, with the pass rate known."""
    for p, drawn in ((0.04, 25), (0.25, 10), (1.0 - 1e-12, 5)):
        weight = estimated_weight(
            p, drawn, 5, baseline="critic", correction="paper", objective=Objective("log"),
            predicted=p, allocated=lambda rate: rate**-0.5,
        )  # fmt: skip
        assert weight == pytest.approx(1 / p, rel=1e-6)


# -- PPO ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("correction", ["paper", "stratum"])
@pytest.mark.parametrize("drawn", [2, 5, 16])
def test_ppo_in_est_takes_weight_at_the_prediction(drawn: int, correction: str) -> None:
    """A pool's own pass rate is 0 for every all-wrong pair of a prompt that is right half of the time."""
    builder = GroupBuilder(
        Selection("all", 8, 0.5), "gae", "critic", correction, Objective("log"), 0.02, allocated=lambda p: p**-0.5
    )
    for p in (0.05, 0.5, 0.9):
        groups = [builder.build(ended_with(drawn, k), np.random.default_rng(0), predicted=p) for k in range(drawn + 1)]
        expected = {"paper": p**-0.5, "stratum": 8 / drawn / p}[correction]
        assert all(group.coefficients == pytest.approx([expected] * drawn) for group in groups)


def ppo_weight(policy: Sequential, p: float, *, weighted: bool, predicted: float | None = None) -> float:
    """f'_eff with a perfect critic: the advantage is 1 - p for a positive and -p for a negative."""

    def weight(drawn: int, positives: int) -> float:
        group = policy.build(ended_with(drawn, positives, predicted), np.random.default_rng(0))
        positive = np.array([i < positives for i in group.indices])
        factors = np.array(group.coefficients) if weighted else np.ones(len(positive))
        return effective_weight(factors * np.where(positive, 1 - p, -p), positive, p, policy.group_size)

    return expected_weight(policy.plan, p, weight)


@pytest.mark.parametrize(
    ("p", "plain", "with_strata"), [(0.02, 3.89, 1.11), (0.1, 3.00, 1.26), (0.3, 1.37, 1.09), (0.9, 3.00, 1.26)]
)
def test_strata_even_out_prompt_weights_in_ppo(p: float, plain: float, with_strata: float) -> None:
    policy = sequential(2, 2, n=4, wave=4, cap=16, estimator="gae")
    for weighted, expected in ((False, plain), (True, with_strata)):
        relative = ppo_weight(policy, p, weighted=weighted) / ppo_weight(policy, 0.5, weighted=weighted)
        assert relative == pytest.approx(expected, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("exit_name", EXITS)
def test_stratum_makes_ppo_exact(exit_name: str, name: str) -> None:
    """The policy's weight is f' at the prediction, and the critic's weighted target is the pass rate itself."""
    policy = sequential(
        *EXITS[exit_name], n=4, wave=8, cap=32, estimator="gae", correction="stratum", objective=Objective(name)
    )

    def target(p: float, drawn: int, positives: int) -> float:
        group = policy.build(ended_with(drawn, positives, p), np.random.default_rng(0))
        return sum(w * (i < positives) for i, w in zip(group.indices, group.critic_weights, strict=True)) / 4

    for p in RATES:
        achieved_weight = ppo_weight(policy, p, weighted=True, predicted=p)
        assert achieved_weight == pytest.approx(Objective(name).weight(p), rel=1e-9)
        assert expected_weight(policy.plan, p, partial(target, p)) == pytest.approx(p, abs=1e-9)


@pytest.mark.parametrize("p", [0.05, 0.5])
def test_random_groups_are_fair_samples_and_carry_no_strata(p: float) -> None:
    builder = GroupBuilder(Selection("random", 4, 0.5), "gae", "critic")
    for seed in range(50):
        group = builder.build(ended_with(16, round(16 * p)), np.random.default_rng(seed))
        assert group.coefficients == group.critic_weights == (1.0,) * 4
