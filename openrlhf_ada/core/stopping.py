"""When is a prompt done? Rules that read the index-ordered prefix of its pool.

A rule looks at metrics only, never at length, text or time of arrival: that is the condition of the effective-weight
identity, and the reason why short answers gain nothing by finishing first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openrlhf_ada.core.types import Sample


@dataclass(frozen=True, slots=True)
class ExitRule:
    """Done when at least `k_pos` positives and `k_neg` negatives are in the prefix.

    Ada-Seq `pos` is k_neg = 0, `balance` has both (Reinforce-Ada, Algorithm 2). A sample is positive iff its metric
    exceeds `threshold`.
    """

    k_pos: int
    k_neg: int
    threshold: float

    def is_positive(self, sample: Sample) -> bool:
        return sample.metric > self.threshold

    def is_met(self, prefix: Sequence[Sample]) -> bool:
        positives = sum(map(self.is_positive, prefix))
        return positives >= self.k_pos and len(prefix) - positives >= self.k_neg


def next_wave(drawn: int, *, wave: int, max_samples: int) -> int:
    """Size of the next wave: `wave`, cut at the cap; 0 when the cap is reached."""
    return min(wave, max_samples - drawn)
