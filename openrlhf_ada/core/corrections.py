"""From advantages to coefficients c: how the kept samples of a pool are re-weighted to serve an objective E f(p).

What a correction optimises follows from the effective-weight identity (`objectives.effective_weight`);
docs/algorithms.md has the figures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from openrlhf_ada.core.objectives import Objective, TabulatedObjective
from openrlhf_ada.core.pieces import Need, Table
from openrlhf_ada.core.types import Bools, Floats


@dataclass(frozen=True, slots=True)
class KeptSamples:
    """What a correction reads of the k kept samples of a pool.

    Args:
        advantages, positive: shapes (k,).
        strata: s / (k+/k) for positives, (1 - s) / (k-/k) for negatives, so that the kept samples stand for the share
            s of positives in all that was drawn; shape (k,).
        point: pass rate at which f' is taken, no lower than `floor`.
        group_size: n, the number of samples that the step counts for this prompt.
        allocated: u(p), the weight that comes from drawing (and keeping) more; None where groups are equally large.
    """

    advantages: Floats
    positive: Bools
    strata: Floats
    point: float
    group_size: int
    objective: Objective | TabulatedObjective
    floor: float
    allocated: Callable[[float], float] | None

    @property
    def weight(self) -> float:
        """f'(point)."""
        return self.objective.weight(self.point, self.floor)


CORRECTIONS: Table[Callable[[KeptSamples], Floats]] = Table()
"""Functions that return coefficients, shape (k,)."""

_WEIGHED = {Need.PLAIN_ADVANTAGES, Need.WHOLE_POOL, Need.SUMMED_TOKENS}


@CORRECTIONS.add("none")
def no_correction(kept: KeptSamples) -> Floats:
    """c = A, the published code. What is optimised is whatever stopping and selection make of it."""
    return kept.advantages


@CORRECTIONS.add("paper", needs=_WEIGHED | {Need.WEIGHT, Need.COUNTS_AS_WEIGHT})
def papers_weight(kept: KeptSamples) -> Floats:
    """c = A f'(p) / u(p), as in Reinforce-Ada (arXiv 2510.04996v3): the part of f' that allocation has not given."""
    given = 1.0 if kept.allocated is None else kept.allocated(min(max(kept.point, kept.floor), 1.0))
    return kept.advantages * (kept.weight / given)


@CORRECTIONS.add(
    "stratum", needs=_WEIGHED | {Need.WEIGHT, Need.UNBIASED_RATE, Need.POSITIVES_KEPT, Need.FAIR_OUTCOMES}
)
def stratum(kept: KeptSamples) -> Floats:
    """Positives A f'(p) s (n/k+), negatives A f'(p) (1 - s) (n/k-). Exact for f with a predicted baseline."""
    return kept.advantages * kept.strata * (kept.weight * kept.group_size / len(kept.advantages))


@CORRECTIONS.add(
    "positives",
    needs=_WEIGHED | {Need.LOG_OBJECTIVE, Need.UNSHAPED_REWARDS, Need.NO_BASELINE, Need.POSITIVES_KEPT},
    lacks={Need.SILENT_UNRESOLVED: "gives those that are all right one"},
)
def mean_of_positives(kept: KeptSamples) -> Floats:
    """n/k+ for positives, 0 for negatives: the derivative of log p truncated at N (sum over k of pass@k / k)."""
    return np.where(kept.positive, kept.group_size / max(int(kept.positive.sum()), 1), 0.0)
