"""What is optimised: J = E_x f(p_x), with p_x the pass rate of prompt x. A gradient needs f' only.

Sources: Reinforce-Ada (arXiv 2510.04996v3, section 3) for log and powers; `arcsin` is what GRPO's division by the
group's standard deviation tends to for large groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from openrlhf_ada.core.stopping_paths import StoppingPlan

OBJECTIVES = ("linear", "sqrt", "log", "arcsin", "power")


@dataclass(frozen=True, slots=True)
class Objective:
    """f, by its derivative. `power` is f = p^a / a with a = `exponent` in (0, 1]: sqrt is 1/2, linear is 1.

    | name | f(p) | f'(p) |
    |---|---|---|
    | linear | p | 1 |
    | sqrt | 2 sqrt(p) | 1 / sqrt(p) |
    | log | log p | 1 / p |
    | arcsin | 2 arcsin sqrt(p) | 1 / sqrt(p (1 - p)) |
    | power | p^a / a | p^(a - 1) |
    """

    name: str = "linear"
    exponent: float | None = None

    def __post_init__(self) -> None:
        if self.name not in OBJECTIVES:
            raise ValueError(f"unknown objective {self.name!r}, expected one of {', '.join(OBJECTIVES)}")
        if (self.name == "power") != (self.exponent is not None):
            raise ValueError(f"objective {self.name!r} with exponent {self.exponent}: exactly `power` has one")
        if self.exponent is not None and not 0.0 < self.exponent <= 1.0:
            raise ValueError(f"exponent is {self.exponent}, expected a number above 0, at most 1")

    def weight(self, p: float, floor: float = 0.0) -> float:
        """f'(p), with p moved into [floor, 1 - floor] first: two of these grow without bound at the ends."""
        p = min(max(p, floor), 1.0 - floor)
        if self.name == "arcsin":
            return 1.0 / math.sqrt(p * (1.0 - p))
        return p ** (self._power - 1.0)

    @property
    def _power(self) -> float:
        return {"linear": 1.0, "sqrt": 0.5, "log": 0.0}.get(self.name, self.exponent or 0.0)


def effective_weight(coefficients: ArrayLike, positive: ArrayLike, p: float, group_size: int) -> float:
    """The weight of grad p that one trained group stands for: (C+ / p + C- / (1 - p)) / n.

    C+ is the sum of the coefficients (weight x advantage) of kept positives, C- minus that of kept negatives. Its
    expectation over everything that sampling can come to is f' of the objective that is really optimised, as long as
    stopping and selection look at metrics only.

    Args:
        coefficients: of the kept samples, shape (k,).
        positive: which of them are positive, bool, shape (k,).
        p: pass rate, in (0, 1).
        group_size: n, the number of samples that the step counts for this prompt.
    """
    c, is_positive = np.asarray(coefficients, dtype=np.float64), np.asarray(positive, dtype=bool)
    return float(c[is_positive].sum() / p - c[~is_positive].sum() / (1.0 - p)) / group_size


def expected_weight(plan: StoppingPlan, p: float, weight_of: Callable[[int, int], float]) -> float:
    """E[weight] at pass rate p, `weight_of(drawn, positives)` being the effective weight of a final state's group."""
    return sum(chance * weight_of(*state) for state, chance in plan.outcomes(p).items())
