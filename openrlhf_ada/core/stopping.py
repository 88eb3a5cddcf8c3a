"""When is a prompt done? Rules that read the index-ordered prefix of its pool, and all states in which they end it.

A rule looks at scores only, never at length, text or time of arrival: that is the condition of the effective-weight
identity, and the reason why short answers gain nothing by finishing first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from openrlhf_ada.core.pieces import Need, Piece, Table
from openrlhf_ada.core.types import Floats

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

    A sample is positive iff its score exceeds `threshold`. `gate`: takes the place of the counts, and is read once.
    """

    k_pos: int
    k_neg: int
    threshold: float
    gate: Gate | None = None

    @property
    def is_fixed(self) -> bool:
        """Do outcomes have no say in how many are drawn?"""
        return not (self.k_pos or self.k_neg or self.gate)

    def is_met(self, drawn: int, positives: int) -> bool:
        """Do `positives` of `drawn` rollouts end sampling?"""
        if self.gate is not None:
            return not self.gate.is_open(positives)
        return (self.k_pos or self.k_neg) > 0 and positives >= self.k_pos and drawn - positives >= self.k_neg


# -- all states in which sampling can end -----------------------------------------------------------------------------

State = tuple[int, int]
"""(N drawn, K positive)."""


@dataclass(frozen=True)
class StoppingPlan:
    """Waves of `wave` rollouts up to `max_samples`; the rule is read from `first_look` rollouts on.

    A fixed rule always draws `max_samples`; a gate decides at the first look whether they are drawn.

    On outcomes of 0 and 1 sampling ends in a state (N drawn, K positive). The number of orders of draws that lead to a
    state does not depend on p. So, of all orders that end in a state, the share whose first draw is positive is an
    unbiased estimate of p (Girshick, Mosteller and Savage 1946). The pool's mean K/N is biased.
    """

    rule: ExitRule
    wave: int
    first_look: int
    max_samples: int

    @classmethod
    def of(cls, rule: ExitRule, group_size: int, *, wave: int, max_samples: int) -> StoppingPlan:
        """The rule is first read after whole waves that hold at least the group's n, or at the cap."""
        if rule.gate is not None:
            return cls(rule, max_samples - rule.gate.pilot, rule.gate.pilot, max_samples)
        return cls(rule, wave, min(-(-group_size // wave) * wave, max_samples), max_samples)

    def is_final(self, drawn: int, positives: int) -> bool:
        """Does sampling end in this state?"""
        return drawn >= self.max_samples or self.rule.is_met(drawn, positives)

    @cached_property
    def looks(self) -> list[int]:
        """Numbers of rollouts at which the rule is read, the cap included."""
        if self.rule.is_fixed:
            return [self.max_samples]
        return [*range(self.first_look, self.max_samples, self.wave), self.max_samples]

    def next_draw(self, drawn: int) -> int:
        """Rollouts to draw next: all up to the first look at once, then a wave, cut at the cap; 0 at the cap."""
        return min(self.wave, self.max_samples - drawn) if drawn else self.looks[0]

    def outcomes(self, p: float) -> dict[State, float]:
        """Probability of every final state for a prompt of pass rate p in [0, 1]."""
        final: dict[State, float] = {}
        still_open, drawn = np.array([1.0]), 0
        for look in self.looks:
            reached = _convolve(still_open, _binomial(look - drawn, p))
            still_open, drawn = self._split(reached, look, final), look
        return final

    def _split(self, reached: Floats, drawn: int, final: dict[State, float]) -> Floats:
        """Move the mass of final states to `final`; returns what goes on."""
        going_on = reached.copy()
        for positives in range(drawn + 1):
            if self.is_final(drawn, positives):
                if reached[positives] > 0:
                    final[drawn, positives] = float(reached[positives])
                going_on[positives] = 0.0
        return going_on

    def expected_draws(self, p: float) -> float:
        """E[N] at pass rate p."""
        return sum(drawn * chance for (drawn, _), chance in self.outcomes(p).items())

    def unbiased_rate(self, drawn: int, positives: int) -> float:
        """The estimate of p without stopping bias in a final state, in [0, 1].

        Raises ValueError for a state in which this plan does not end.
        """
        if self.rule.is_fixed and drawn == self.max_samples:
            return positives / drawn
        try:
            return self._rates[drawn, positives]
        except KeyError:
            raise ValueError(f"{self} does not end with {positives} positives of {drawn}") from None

    @cached_property
    def _rates(self) -> dict[State, float]:
        """Orders that start with a positive over all orders, both counted as probability at p = 1/2."""
        every: dict[State, float] = {}
        positive_first: dict[State, float] = {}
        reached_all, reached_first, drawn = np.array([1.0]), np.array([]), 0
        for look in self.looks:
            step = _binomial(look - drawn, 0.5)
            if drawn == 0:
                reached_first = np.concatenate([[0.0], 0.5 * _binomial(look - 1, 0.5)])
            else:
                reached_first = _convolve(reached_first, step)
            reached_all = self._split(_convolve(reached_all, step), look, every)
            reached_first = self._split(reached_first, look, positive_first)
            # Only ratios count; without this they would underflow from a thousand rollouts on.
            scale = max(float(reached_all.max()), 1e-300)
            reached_all, reached_first, drawn = reached_all / scale, reached_first / scale, look
        return {state: positive_first.get(state, 0.0) / mass for state, mass in every.items()}


def _binomial(n: int, p: float) -> Floats:
    """Probabilities of 0..n positives, shape (n + 1,)."""
    row = np.array([1.0])
    for _ in range(n):
        row = _convolve(row, np.array([1.0 - p, p]))
    return row


def _convolve(a: Floats, b: Floats) -> Floats:
    return np.convolve(a, b).astype(np.float64)
