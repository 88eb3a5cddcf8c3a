"""Policies and pools as tests need them: named by what matters, everything else at a plain default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from openrlhf_ada.core.grouping import GroupBuilder
from openrlhf_ada.core.policies import Sequential
from openrlhf_ada.core.selection import Selection
from openrlhf_ada.core.stopping import ExitRule, StoppingPlan
from openrlhf_ada.core.types import PromptPool, Sample

THRESHOLD = 0.5


def sequential(
    k_pos: int, k_neg: int, *, n: int, wave: int, cap: int, estimator: str = "dr_grpo", **builder_options: Any
) -> Sequential:
    """Ada-Seq with balanced groups of n; the baseline is the one that the flags would give this estimator."""
    baseline = {"rloo": "loo", "gae": "critic"}.get(estimator, "pool")
    builder = GroupBuilder(Selection("balanced", n, THRESHOLD), estimator, **{"baseline": baseline} | builder_options)
    return Sequential(ExitRule(k_pos, k_neg, THRESHOLD), wave, cap, builder)


def pool_of(outcomes: Sequence[float], key: int = 0, row: int = 0) -> PromptPool:
    """A pool whose samples have these outcomes, as score and as reward, and one token each."""
    return PromptPool(key, [Sample(key, i, o, o, num_tokens=1) for i, o in enumerate(outcomes)], row=row)


def expected_weight(plan: StoppingPlan, p: float, weight_of: Callable[[int, int], float]) -> float:
    """E[weight] at pass rate p, `weight_of(drawn, positives)` being the effective weight of a final state's group."""
    return sum(chance * weight_of(*state) for state, chance in plan.outcomes(p).items())
