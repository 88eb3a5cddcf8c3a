"""Rewards that say more than the outcome: which gradient the trained group stands for, by exact enumeration.

Three answers, two of them above the threshold, with rewards 3, 1 and -2. The policy is a softmax over them, so the
gradient of log pi(answer) is one-hot minus pi, and that of the mean reward is known in closed form.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from cases import sequential
from numpy.typing import NDArray

from openrlhf_ada.core.objectives import Objective
from openrlhf_ada.core.policies import Close, Sequential
from openrlhf_ada.core.types import PromptPool, Sample

Floats = NDArray[np.float64]

REWARDS, METRICS = np.array([3.0, 1.0, -2.0]), np.array([1.0, 1.0, 0.0])
POLICIES = [np.array(p) for p in ([0.1, 0.2, 0.7], [0.45, 0.05, 0.5], [0.6, 0.3, 0.1])]
N, CAP = 2, 6


def stopped(policy: Sequential, answers: tuple[int, ...]) -> PromptPool:
    """What is in the pool of these answers, one after the other, when the rule ends sampling."""
    pool = PromptPool(0)
    while not isinstance(action := policy.decide([pool])[0], Close):
        drawn = range(len(pool), len(pool) + action.count)
        pool.add([Sample(0, i, METRICS[answers[i]], REWARDS[answers[i]], 1) for i in drawn])
    return pool


def expected_update(policy: Sequential, chances: Floats, *, in_ppo: bool) -> Floats:
    """E of the sum of c x grad log pi over the trained group, over all pools and all choices among equal outcomes.

    In PPO with a critic that says 0: the advantage is the reward, a coefficient its weight.
    """
    total = np.zeros(3)
    rate = float(chances @ METRICS)
    for answers in itertools.product(range(3), repeat=CAP):
        pool = stopped(policy, answers)
        group = policy.builder.build(pool, np.random.default_rng(0), rate, unbiased_rate=policy.plan.unbiased_rate)
        kept, update = list(group.indices), np.zeros(3)
        for outcome in (0.0, 1.0):
            members = [i for i in range(len(pool)) if pool.scores[i] == outcome]
            chosen = [i for i in kept if pool.scores[i] == outcome]
            if not chosen:
                continue
            # Every member is equally likely to be kept, with the same weight of its reward.
            own = group.coefficients[kept.index(chosen[0])]
            weight = own if in_ppo else own / pool.rewards[chosen[0]]
            for i in members:
                update += len(chosen) / len(members) * weight * pool.rewards[i] * (np.eye(3)[answers[i]] - chances)
        total += np.prod(chances[list(answers)]) * update
    return total


def mean_reward_gradient(chances: Floats) -> Floats:
    return chances * (REWARDS - chances @ REWARDS)


@pytest.mark.slow
@pytest.mark.parametrize("chances", POLICIES, ids=str)
@pytest.mark.parametrize("objective", ["linear", "sqrt", "log"])
def test_ppo_stratum_is_f_prime_times_mean_reward_gradient(chances: Floats, objective: str) -> None:
    """Also where outcomes end sampling: within an outcome rewards are as the policy gives them."""
    policy = sequential(
        1, 1, n=N, wave=2, cap=CAP, estimator="gae", correction="stratum", objective=Objective(objective), graded=True
    )
    weight = Objective(objective).weight(float(chances @ METRICS), 0.0)
    expected = N * weight * mean_reward_gradient(chances)
    assert expected_update(policy, chances, in_ppo=True) == pytest.approx(expected, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("chances", POLICIES, ids=str)
def test_linear_stratum_is_gradient_of_mean_reward(chances: Floats) -> None:
    """Of pools whose size no outcome decides."""
    policy = sequential(
        0, 0, n=N, wave=2, cap=CAP, baseline="none", correction="stratum", objective=Objective("linear"), graded=True
    )
    expected = N * mean_reward_gradient(chances)
    assert expected_update(policy, chances, in_ppo=False) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("rewards", [[1.0, 3.0, 2.0], [2.0, 2.0, 2.0]], ids=["spread", "equal"])
def test_one_outcome_with_graded_rewards_has_gradient(rewards: list[float], graded: bool) -> None:
    pool = PromptPool(0, [Sample(0, i, 1.0, reward, 1) for i, reward in enumerate(rewards)])
    policy = sequential(1, 1, n=3, wave=3, cap=3, graded=graded)
    group = policy.builder.build(pool, np.random.default_rng(0))
    assert not group.resolved, "for --ada_unresolved outcomes count"
    expected = [r - 2.0 for r in rewards] if graded else [0.0] * 3
    assert group.coefficients == pytest.approx(expected)
