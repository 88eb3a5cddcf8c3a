"""When is a prompt done? Rules that read the index-ordered prefix of its pool.

A rule looks at scores only, never at length, text or time of arrival: that is the condition of the effective-weight
identity, and the reason why short answers gain nothing by finishing first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from openrlhf_ada.core.pieces import Need, Piece, Table
from openrlhf_ada.core.types import PromptPool

ROUNDING = 1e-9
"""A share such as 0.3 of 10 rollouts may come out just above the whole number that it is."""

EXITS: Table[Callable[[int], tuple[int, int]]] = Table()
"""Functions n -> (K_pos, K_neg): what ends sampling where the flags do not say how many. (0, 0): nothing does."""


@EXITS.add("pos")
def one_positive(group_size: int) -> tuple[int, int]:
    """Enough positives, one unless told (Reinforce-Ada, Algorithm 2, positive-focused)."""
    return 1, 0


@EXITS.add("balance")
def half_of_each(group_size: int) -> tuple[int, int]:
    """Enough positives and enough negatives, half of n each unless told (Reinforce-Ada, Algorithm 2, balanced)."""
    half = max(1, group_size // 2)
    return half, max(1, group_size - half)


@EXITS.add("gate")
def by_first_rollouts(group_size: int) -> tuple[int, int]:
    """The first rollouts alone decide: N_max of a prompt if their mean is within bounds, else no more (`Gate`)."""
    return 0, 0


@EXITS.add("fixed")
def never(group_size: int) -> tuple[int, int]:
    """No evidence ends sampling: exactly N_max rollouts are drawn."""
    return 0, 0


DROPPING = Piece(
    by_first_rollouts,
    lacks={
        Need.UNBIASED_RATE: "drops prompts by their first rollouts, since n is more than --ada_pilot",
        Need.POSITIVES_KEPT: "drops prompts with their positives, since n is more than --ada_pilot",
        Need.FAIR_OUTCOMES: "drops prompts by their first rollouts, since n is more than --ada_pilot",
    },
)
"""Exit `gate` where n is more than the first rollouts: prompts that do not go on cannot fill a group."""


def is_enough(k_pos: int, k_neg: int, drawn: int, positives: int) -> bool:
    """Do `positives` of `drawn` rollouts end sampling? Never where both counts are 0."""
    return (k_pos or k_neg) > 0 and positives >= k_pos and drawn - positives >= k_neg


@dataclass(frozen=True, slots=True)
class Gate:
    """After `pilot` rollouts, a prompt goes on if the share of positives is in [low, high].

    Pilot-Commit (arXiv 2605.26606); with bounds that exclude 0 and 1 alone, SPEED (arXiv 2506.09016).
    """

    pilot: int
    low: float
    high: float

    @property
    def fewest(self) -> int:
        """The least number of positives that goes on."""
        return max(math.ceil(self.low * self.pilot - ROUNDING), 0)

    @property
    def most(self) -> int:
        """The largest number of positives that goes on."""
        return min(math.floor(self.high * self.pilot + ROUNDING), self.pilot)

    def is_open(self, positives: int) -> bool:
        """Do so many positives among the first rollouts go on?"""
        return self.fewest <= positives <= self.most


@dataclass(frozen=True, slots=True)
class ExitRule:
    """Done when at least `k_pos` positives and `k_neg` negatives are in the prefix; (0, 0) is `fixed`.

    A sample is positive iff its score exceeds `threshold`.

    `gate`: takes the place of the counts. It is read once, when its first rollouts are in.
    """

    k_pos: int
    k_neg: int
    threshold: float
    gate: Gate | None = None

    def is_met(self, prefix: PromptPool) -> bool:
        """Is the prompt done, with what is in the pool now?"""
        if self.gate is not None:
            return not self.gate.is_open(prefix.count_positives(self.threshold))
        return is_enough(self.k_pos, self.k_neg, len(prefix), prefix.count_positives(self.threshold))
