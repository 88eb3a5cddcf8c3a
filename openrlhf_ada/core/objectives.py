"""What is optimised: J = E_x f(p_x), with p_x the pass rate of prompt x. A gradient needs f' only.

Sources: Reinforce-Ada (arXiv 2510.04996v3, section 3) for log and sqrt; `arcsin` is what GRPO's division by the
group's standard deviation tends to for large groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from openrlhf_ada.core.pieces import Need, Table
from openrlhf_ada.core.types import Floats

OBJECTIVES: Table[Callable[[float], float]] = Table()
"""Functions p -> f'(p)."""

_NOT_LOG = {Need.LOG_OBJECTIVE: "is another"}


@OBJECTIVES.add("linear", lacks=_NOT_LOG)
def linear(p: float) -> float:
    """f = p, the mean pass rate: f' = 1."""
    return 1.0


@OBJECTIVES.add("sqrt", lacks=_NOT_LOG)
def sqrt(p: float) -> float:
    """f = 2 sqrt(p): f' = 1 / sqrt(p)."""
    return p**-0.5


@OBJECTIVES.add("log")
def log(p: float) -> float:
    """f = log p (Reinforce-Ada): f' = 1 / p."""
    return p**-1.0


@OBJECTIVES.add("arcsin", lacks=_NOT_LOG)
def arcsin(p: float) -> float:
    """f = 2 arcsin sqrt(p), what GRPO's division by the std tends to: f' = 1 / sqrt(p (1 - p))."""
    return 1.0 / math.sqrt(p * (1.0 - p))


@dataclass(frozen=True, slots=True)
class Objective:
    """f, by its derivative: one of OBJECTIVES."""

    name: str = "linear"

    def __post_init__(self) -> None:
        if self.name not in OBJECTIVES:
            raise ValueError(f"unknown objective {self.name!r}, expected one of {', '.join(OBJECTIVES)}")

    def weight(self, p: float, floor: float = 0.0) -> float:
        """f'(p), with p moved into [floor, 1 - floor] first: two of these grow without bound at the ends."""
        p = min(max(p, floor), 1.0 - floor)
        return OBJECTIVES[self.name].function(p)


@dataclass(frozen=True, slots=True)
class TabulatedObjective:
    """f' as a table, for objectives without a formula: such as what another run's settings really optimise.

    `rates` rise within (0, 1), `weights` are above 0. Between them log f' is linear in logit p, beyond them constant.
    Raises ValueError for a table that breaks these rules.
    """

    name: str
    rates: tuple[float, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        p, w = np.array(self.rates), np.array(self.weights)
        if len(p) != len(w) or len(p) < 2 or (np.diff(p) <= 0).any() or p[0] <= 0.0 or p[-1] >= 1.0:
            raise ValueError(f"objective {self.name!r}: expected rising pass rates in (0, 1), and as many weights")
        if not (np.isfinite(w).all() and (w > 0).all()):
            worst = int(np.argmin(np.where(np.isfinite(w), w, -np.inf)))
            raise ValueError(
                f"objective {self.name!r} has the weight {w[worst]:.3g} at p = {p[worst]:.3g}, not above 0"
            )

    def weight(self, p: float, floor: float = 0.0) -> float:
        """f'(p), with p moved into [floor, 1 - floor] first."""
        p = min(max(p, floor, self.rates[0]), 1.0 - floor, self.rates[-1])
        return math.exp(np.interp(_logit(p), _logit(np.array(self.rates)), np.log(self.weights)))


def _logit(p: ArrayLike) -> Floats:
    rate = np.asarray(p, dtype=np.float64)
    return np.log(rate / (1.0 - rate))


def effective_weight(coefficients: ArrayLike, positive: ArrayLike, p: float, group_size: int) -> float:
    """The weight of grad p that one trained group stands for: (C+ / p + C- / (1 - p)) / n.

    C+ is the sum of the coefficients (weight x advantage) of kept positives, C- minus that of kept negatives. Its
    expectation over all states in which sampling can end is f' of the objective that is really optimised, if stopping
    and selection look at scores only.

    Args:
        coefficients: of the kept samples, shape (k,).
        positive: which of them are positive, bool, shape (k,).
        p: pass rate, in (0, 1).
        group_size: n, the number of samples that the step counts for this prompt.
    """
    c, is_positive = np.asarray(coefficients, dtype=np.float64), np.asarray(positive, dtype=bool)
    return float(c[is_positive].sum() / p - c[~is_positive].sum() / (1.0 - p)) / group_size
