"""Which objective PPO's coefficients optimise, by exact enumeration of everything that sampling can come to.

Effective-weight identity: E[sum c_i grad log pi(y_i)] = grad p x f'_eff(p) with f'_eff(p) = E[C+ / p + C- / (1 - p)],
C+ the sum of coefficient x advantage over kept positives, C- minus that over kept negatives. PPO's objective is the
pass rate itself, so f'_eff should not depend on p; what is left is the bias of stopping once both outcomes came.
"""

from __future__ import annotations

from collections import defaultdict
from math import comb

import numpy as np
import pytest

from openrlhf_ada.core.policies import Close, PromptView, Sequential
from openrlhf_ada.core.stopping import ExitRule
from openrlhf_ada.core.types import PromptPool, Sample

WAVE, CAP, N = 4, 16, 4
POLICY = Sequential(ExitRule(N // 2, N // 2, 0.5), wave=WAVE, max_samples=CAP, group_size=N, estimator="gae")


def pool_of(positives: int, total: int) -> list[Sample]:
    return [Sample(0, i, metric=float(i < positives), reward=float(i < positives), num_tokens=1) for i in range(total)]


def closed_pools(p: float) -> dict[tuple[int, int], float]:
    """Probability of every (positives, drawn) at which the policy closes a prompt of pass rate p."""
    still_open, closed = {(0, 0): 1.0}, defaultdict(float)
    while still_open:
        following: dict[tuple[int, int], float] = defaultdict(float)
        for (positives, drawn), probability in still_open.items():
            (action,) = POLICY.decide([PromptView(0, pool_of(positives, drawn))])
            if isinstance(action, Close):
                closed[positives, drawn] += probability
                continue
            for k in range(action.count + 1):
                chance = comb(action.count, k) * p**k * (1 - p) ** (action.count - k)
                following[positives + k, drawn + action.count] += probability * chance
        still_open = following
    return closed


def effective_weight(p: float, *, weighted: bool) -> float:
    """f'_eff(p) with a perfect critic: the advantage is 1 - p for a positive and -p for a negative."""
    total = 0.0
    for (positives, drawn), probability in closed_pools(p).items():
        group = POLICY.build(PromptPool(0, pool_of(positives, drawn)), np.random.default_rng(0))
        for index, coefficient in zip(group.indices, group.coefficients, strict=True):
            weight = coefficient if weighted else 1.0
            total += probability * weight * ((1 - p) / p if index < positives else p / (1 - p))
    return total


def test_enumeration_is_complete() -> None:
    for p in (0.02, 0.3, 0.9):
        assert sum(closed_pools(p).values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("p", "plain", "with_strata"), [(0.02, 3.89, 1.11), (0.1, 3.00, 1.26), (0.3, 1.37, 1.09), (0.9, 3.00, 1.26)]
)
def test_strata_make_prompts_of_all_pass_rates_weigh_about_the_same(
    p: float, plain: float, with_strata: float
) -> None:
    for weighted, expected in ((False, plain), (True, with_strata)):
        relative = effective_weight(p, weighted=weighted) / effective_weight(0.5, weighted=weighted)
        assert relative == pytest.approx(expected, abs=0.01)
