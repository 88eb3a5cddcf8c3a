"""What settings optimise (core/exact.py), against figures of the papers and against brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from cases import THRESHOLD, pool_of, sequential

from openrlhf_ada.core.exact import drawn_weight, estimated_weights, expected_split, sequential_weight
from openrlhf_ada.core.grouping import GroupBuilder
from openrlhf_ada.core.objectives import Objective, effective_weight
from openrlhf_ada.core.policies import Sequential
from openrlhf_ada.core.selection import Selection
from openrlhf_ada.core.stopping import ExitRule

RATES = (0.01, 0.05, 0.1, 0.5)


def builder(select: str, n: int, estimator: str = "dr_grpo", **options: object) -> GroupBuilder:
    return GroupBuilder(Selection(select, n, THRESHOLD), estimator, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("k_pos", "k_neg", "expected"), [(2, 2, (38.7, 23.1, 12.6, 1.98)), (1, 0, (27.9, 15.5, 8.6, 1.95))]
)
def test_group_norm_weighs_rare_outcomes_twenty_to_one(k_pos: int, k_neg: int, expected: tuple[float, ...]) -> None:
    policy = sequential(k_pos, k_neg, n=4, wave=8, cap=32, estimator="group_norm")
    for p, weight in zip(RATES, expected, strict=True):
        assert sequential_weight(policy, p).effective == pytest.approx(weight, abs=0.05)


def test_group_norm_of_four_uniform_rollouts_is_nearly_flat() -> None:
    weights = [drawn_weight(builder("all", 4, "group_norm"), 4, p).effective for p in RATES]
    assert weights == pytest.approx([1.50, 1.48, 1.46, 1.40], abs=0.005)


@pytest.mark.parametrize("most", [1, 4, 8])
def test_first_right_optimises_log_p_as_far_as_its_rollouts_reach(most: int) -> None:
    """Over all outcomes of at most N rollouts, by hand: the derivative of the sum of pass@k / k, k = 1 to N. MaxRL's
    mean of positives (arXiv 2602.02710) has it with N rollouts of every prompt."""
    options: dict[str, str] = {"baseline": "none", "correction": "none"}
    policy = Sequential(ExitRule(1, 0, THRESHOLD), 1, most, builder("best_random", 1, "flash_reinforce", **options))
    maxrl = builder("all", most, correction="positives", objective=Objective("log"))
    for p in RATES:
        pass_at_k = sum((1 - p) ** (k - 1) for k in range(1, most + 1))
        found = sum((1 - p) ** failures * p for failures in range(most))
        assert sequential_weight(policy, p).effective == pytest.approx(pass_at_k)
        assert drawn_weight(maxrl, most, p).effective == pytest.approx(pass_at_k)
        assert found / p == pytest.approx(pass_at_k), "one right answer, of coefficient 1, where one is found"


@pytest.mark.parametrize("n", [2, 4, 8])
def test_dr_grpo_optimises_the_pass_rate_up_to_one_in_n(n: int) -> None:
    """Dr. GRPO (arXiv 2503.20783): r - mean(r), which keeps (n - 1)/n of the gradient of p."""
    for p in RATES:
        assert drawn_weight(builder("all", n), n, p).effective == pytest.approx((n - 1) / n)


def test_pods_trains_with_the_statistics_of_the_kept_group() -> None:
    """PODS (arXiv 2504.13818), 16 -> 4 at p = .1: by hand over K = 1, 2 to 14 and 15 positives of 16."""
    pods = builder("max_variance", 4, "group_norm", baseline="kept")
    p = 0.1
    chance = [math.comb(16, k) * p**k * (1 - p) ** (16 - k) for k in range(17)]
    half = math.sqrt(3) / 2  # (1 - 1/2) over the unbiased standard deviation of 1, 1, 0, 0
    by_hand = sum(chance[2:15]) * (2 * half / p + 2 * half / (1 - p)) / 4
    by_hand += chance[1] * (1.5 / p + 3 * 0.5 / (1 - p)) / 4 + chance[15] * (3 * 0.5 / p + 1.5 / (1 - p)) / 4
    assert drawn_weight(pods, 16, p).effective == pytest.approx(by_hand)
    assert by_hand == pytest.approx(3.71, abs=0.005)


def test_pods_tends_to_one_over_twice_p_times_one_minus_p() -> None:
    """Of a pool large enough to show two of each outcome, with the population's standard deviation as published."""
    pods = builder("max_variance", 4, "group_norm", baseline="kept")
    for p in (0.2, 0.5, 0.8):
        published = drawn_weight(pods, 128, p).effective / (math.sqrt(3) / 2)
        assert published == pytest.approx(1 / (2 * p * (1 - p)), rel=1e-6)


@pytest.mark.parametrize("estimator", ["dr_grpo", "group_norm"])
def test_kept_means_are_over_trained_samples(estimator: str) -> None:
    pool = pool_of([1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    group = builder("balanced", 4, estimator, baseline="kept").build(pool, np.random.default_rng(0))
    unit = 0.5 if estimator == "dr_grpo" else 0.5 / math.sqrt(1 / 3)
    assert group.coefficients == pytest.approx([unit if i in (0, 5) else -unit for i in group.indices])


def test_a_kept_group_of_one_outcome_has_no_gradient() -> None:
    pool = pool_of([1.0] + [0.0] * 7)
    for seed in range(20):
        group = builder("random", 4, baseline="kept").build(pool, np.random.default_rng(seed))
        assert any(group.coefficients) == (0 in group.indices)


@pytest.mark.parametrize("baseline", ["pool", "kept"])
def test_random_selection_matches_enumeration(baseline: str) -> None:
    """6 drawn, 3 of them trained: every sequence of outcomes, and every choice of 3."""
    random, p = builder("random", 3, baseline=baseline), 0.3
    total = 0.0
    choices = list(itertools.combinations(range(6), 3))
    for outcome in itertools.product((0.0, 1.0), repeat=6):
        scores = np.array(outcome)
        chance = math.prod(p if o else 1 - p for o in outcome)
        for kept in choices:
            coefficients, _ = random.weigh(scores, scores, kept)
            total += chance / len(choices) * effective_weight(coefficients, scores[list(kept)] > 0.5, p, 3)
    assert drawn_weight(random, 6, p).effective == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("baseline", ["pool", "kept"])
def test_best_random_matches_enumeration(baseline: str) -> None:
    """5 drawn, 3 of them trained: every sequence of outcomes, each best one, and every pair of the others."""
    rule, p = builder("best_random", 3, baseline=baseline), 0.3
    total = 0.0
    for outcome in itertools.product((0.0, 1.0), repeat=5):
        scores = np.array(outcome)
        chance = math.prod(p if o else 1 - p for o in outcome)
        best = np.flatnonzero(scores == scores.max()).tolist()
        groups = [(i, *pair) for i in best for pair in itertools.combinations(set(range(5)) - {i}, 2)]
        for kept in groups:
            coefficients, _ = rule.weigh(scores, scores, kept)
            total += chance / len(groups) * effective_weight(coefficients, scores[list(kept)] > 0.5, p, 3)
    assert drawn_weight(rule, 5, p).effective == pytest.approx(total, rel=1e-12)


def test_pf_ppo_by_hand() -> None:
    """4 drawn, 2 trained, the mean of all 4 is the baseline. With k right, the best has 1 - k/4; the other is right
    with chance (k-1)/3."""
    p, expected = 0.2, 0.0
    for k in range(1, 4):
        chance, other = math.comb(4, k) * p**k * (1 - p) ** (4 - k), (k - 1) / 3
        expected += chance * ((1 + other) * (1 - k / 4) / p + (1 - other) * (k / 4) / (1 - p)) / 2
    assert drawn_weight(builder("best_random", 2), 4, p).effective == pytest.approx(expected)


def test_noise_of_a_coefficient_by_hand() -> None:
    """Two rollouts, no baseline, p = 1/4: coefficients are 0/1 with mean p, which is their mean square too."""
    weight = drawn_weight(builder("all", 2, baseline="none"), 2, 0.25)
    assert (weight.effective, weight.square, weight.noise) == pytest.approx((1.0, 0.25, 0.5))


def test_ada_est_in_its_batch() -> None:
    """The split is the policy's own, and `stratum` with the prediction is exact down to the floor."""

    from openrlhf_ada.config.schema import AdaConfig
    from openrlhf_ada.config.settings import make_policy, resolve
    from openrlhf_ada.core.policies import Estimated

    policy = make_policy(resolve(AdaConfig(mode="est", budget=8.0), n=4, advantage="dr_grpo", batch=1))
    assert isinstance(policy, Estimated)
    rates = np.array([0.01, 0.05, 0.1, 0.5, 0.9])
    split = expected_split(policy, rates)
    assert split.sum() == 40
    assert (np.diff(split) <= 0).all()
    weights = [weight.effective for weight in estimated_weights(policy, rates)]
    assert weights == pytest.approx([1 / 0.02, 20, 10, 2, 1 / 0.9])
    assert Objective("log").weight(0.01, policy.floor) == pytest.approx(weights[0])


@pytest.mark.parametrize(("wave", "predicted"), [(1, 0.5), (2, 0.5), (2, 0.05), (4, 0.9)])
def test_all_samples_until_one_is_right_weigh_a_prompt_by_their_number(wave: int, predicted: float) -> None:
    """Wald's identity: with a baseline from before the visit the expected update is E[N] times that of one sample.

    With waves of M and at most 8 = cM: E[N]/M = (1 - q^8) / (1 - q^M), q = 1 - p. With M = 1 that is the weight of
    log p, 1/p, as far as 8 samples reach.
    """
    whole = GroupBuilder(Selection("all", wave, THRESHOLD), "dr_grpo", baseline="estimator")
    policy = Sequential(ExitRule(1, 0, THRESHOLD), wave, 8, whole)
    for p in RATES:
        expected = (1 - (1 - p) ** 8) / (1 - (1 - p) ** wave)
        assert sequential_weight(policy, p, predicted).effective == pytest.approx(expected)


def test_comparing_samples_with_each_other_too_changes_that_weight_by_less_than_a_tenth() -> None:
    """Two at a time, with a rating that is worth one sample: by enumeration of all sequences of outcomes."""
    whole = GroupBuilder(Selection("all", 2, THRESHOLD), "flash_reinforce", baseline="blend")
    policy = Sequential(ExitRule(1, 0, THRESHOLD), 2, 8, whole)
    for p in (0.05, 0.1, 0.3, 0.5, 0.9):
        weight = 0.0
        for outcomes in itertools.product((0, 1), repeat=8):
            ends = next((n for n in (2, 4, 6) if any(outcomes[:n])), 8)
            if any(outcomes[ends:]):
                continue  # counted once, with nothing after the end
            drawn, k = outcomes[:ends], sum(outcomes[:ends])
            chance = p**k * (1 - p) ** (ends - k)
            for right in drawn:
                others = (p + k - right) / ends
                weight += chance * (right - others) * (1 / p if right else -1 / (1 - p)) / 2
        assert sequential_weight(policy, p).effective == pytest.approx(weight)
        assert weight == pytest.approx((1 - (1 - p) ** 8) / (1 - (1 - p) ** 2), rel=0.1)


@pytest.mark.parametrize("rounding", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("objective", ["linear", "log"])
def test_rounding_a_predicted_baseline_changes_no_weight(objective: str, rounding: float) -> None:
    """Any b that a sample has no part in gives the same expected update; below the rounding it varies 1/(1 - p) as
    much, and only the share p of the samples has a coefficient."""
    whole = Selection("all", 2, THRESHOLD)
    chosen = {"baseline": "estimator", "correction": "stratum", "objective": Objective(objective), "floor": 0.01}
    exact, rounded = (GroupBuilder(whole, "dr_grpo", rounding=value, **chosen) for value in (0.0, rounding))
    for p in (0.02, 0.09, 0.25, 0.45, 0.55, 0.8, 0.95):
        before, after = drawn_weight(exact, 2, p), drawn_weight(rounded, 2, p)
        assert after.effective == pytest.approx(before.effective)
        rare = min(p, 1 - p)
        growth = 1 / (1 - rare) if rare < rounding else 1.0
        assert after.square == pytest.approx(growth * before.square)


@pytest.mark.parametrize(
    ("scores", "predicted", "zeros"), [((0, 0, 1), 0.2, 2), ((1, 1, 0), 0.8, 2), ((0, 1), 0.5, 0)]
)
@pytest.mark.parametrize("baseline", ["estimator", "blend"])
def test_expected_outcomes_have_no_coefficient(
    scores: tuple[int, ...], predicted: float, zeros: int, baseline: str
) -> None:
    whole, pool = Selection("all", len(scores), THRESHOLD), pool_of(scores)
    # The prediction is worth more than the other rollouts.
    pool.strength = 1e6
    group = GroupBuilder(whole, "dr_grpo", baseline=baseline, rounding=0.3).build(
        pool, np.random.default_rng(0), predicted=predicted
    )
    assert group.coefficients.count(0.0) == zeros
