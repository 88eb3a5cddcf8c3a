"""All states in which sequential sampling can end, with their probabilities, and a pass rate without stopping bias.

On outcomes of 0 and 1 sampling ends in a state (N drawn, K positive). The number of orders of draws that lead to a
state does not depend on p. So, of all orders that end in a state, the share whose first draw is positive is an
unbiased estimate of p (Girshick, Mosteller and Savage 1946). The pool's mean K/N is biased.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from openrlhf_ada.core.stopping import ExitRule, Gate, is_enough

State = tuple[int, int]
"""(N drawn, K positive)."""


@dataclass(frozen=True)
class StoppingPlan:
    """Waves of `wave` rollouts up to `max_samples`; the rule (k_pos, k_neg) is read from `first_look` rollouts on.

    (0, 0) is a fixed plan: it always draws `max_samples`. With a `gate`, its first rollouts decide whether
    `max_samples` are drawn.
    """

    k_pos: int
    k_neg: int
    wave: int
    first_look: int
    max_samples: int
    gate: Gate | None = None

    @classmethod
    def of(cls, rule: ExitRule, group_size: int, *, wave: int, max_samples: int) -> StoppingPlan:
        """The rule is first read after whole waves that hold at least the group's n, or at the cap."""
        if rule.gate is not None:
            rest = max_samples - rule.gate.pilot
            return cls(0, 0, rest, rule.gate.pilot, max_samples, rule.gate)
        first_look = min(-(-group_size // wave) * wave, max_samples)
        return cls(rule.k_pos, rule.k_neg, wave, first_look, max_samples)

    @property
    def is_fixed(self) -> bool:
        """Do outcomes have no say in how many are drawn?"""
        return not (self.k_pos or self.k_neg or self.gate)

    def is_final(self, drawn: int, positives: int) -> bool:
        """Does sampling end in this state?"""
        if self.gate is not None and drawn < self.max_samples:
            return not self.gate.is_open(positives)
        return drawn >= self.max_samples or is_enough(self.k_pos, self.k_neg, drawn, positives)

    @cached_property
    def looks(self) -> list[int]:
        """Numbers of rollouts at which the rule is read, the cap included."""
        if self.is_fixed:
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

    def _split(self, reached: NDArray[np.float64], drawn: int, final: dict[State, float]) -> NDArray[np.float64]:
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

    def ends_with(self, drawn: int, positives: int) -> bool:
        """Is there an order of samples with which sampling ends here?"""
        return drawn == self.max_samples if self.is_fixed else (drawn, positives) in self._rates

    def unbiased_rate(self, drawn: int, positives: int) -> float:
        """The estimate of p without stopping bias in a final state, in [0, 1].

        Raises ValueError for a state in which this plan does not end.
        """
        if self.is_fixed and drawn == self.max_samples:
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


def _binomial(n: int, p: float) -> NDArray[np.float64]:
    """Probabilities of 0..n positives, shape (n + 1,)."""
    row = np.array([1.0])
    for _ in range(n):
        row = _convolve(row, np.array([1.0 - p, p]))
    return row


def _convolve(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.convolve(a, b).astype(np.float64)
