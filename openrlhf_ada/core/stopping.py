"""When is a prompt done? Rules that read the index-ordered prefix of its pool.

A rule looks at metrics only, never at length, text or time of arrival: that is the condition of the effective-weight
identity, and the reason why short answers gain nothing by finishing first.
"""

from __future__ import annotations

from dataclasses import dataclass

from openrlhf_ada.core.types import PromptPool

ROUNDING = 1e-9
"""Metrics are sums of float fractions; a spread of 0.1 + 0.2 must meet a demand of 0.3."""


@dataclass(frozen=True, slots=True)
class ExitRule:
    """Done when at least `k_pos` positives and `k_neg` negatives are in the prefix.

    Ada-Seq `pos` is k_neg = 0, `balance` has both (Reinforce-Ada, Algorithm 2). A sample is positive iff its metric
    exceeds `threshold`. With neither count (0, 0) no evidence ends sampling: exactly N_max rollouts are drawn
    (`fixed`).

    `spread` is `balance` for verdicts with partial credit: the k_pos best must exceed the k_neg worst by that much.
    For metrics of 0 and 1 the two say the same.
    """

    k_pos: int
    k_neg: int
    threshold: float
    spread: float | None = None

    @property
    def is_fixed(self) -> bool:
        """Does no evidence end sampling?"""
        return self.k_pos == self.k_neg == 0

    def is_met(self, prefix: PromptPool) -> bool:
        """Is the prompt done, with what is in the pool now?"""
        if self.is_fixed:
            return False
        if self.spread is not None:
            ordered = sorted(prefix.metrics)
            enough = len(ordered) >= self.k_pos + self.k_neg
            return enough and ordered[-self.k_pos] - ordered[self.k_neg - 1] >= self.spread - ROUNDING
        positives = prefix.count_positives(self.threshold)
        return positives >= self.k_pos and len(prefix) - positives >= self.k_neg


def first_look(group_size: int, *, wave: int, max_samples: int) -> int:
    """Rollouts at which a rule is read first: whole waves, at least the group's n, at most the cap."""
    return min(-(-group_size // wave) * wave, max_samples)


def next_wave(drawn: int, *, wave: int, max_samples: int) -> int:
    """Size of the next wave: `wave`, cut at the cap; 0 when the cap is reached."""
    return min(wave, max_samples - drawn)
