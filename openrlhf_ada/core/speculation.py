"""Which rollouts to sample before it is known whether they are needed."""

from __future__ import annotations

import heapq
from functools import lru_cache
from math import exp, lgamma

from openrlhf_ada.core.types import PromptKey

LEAST_CHANCE = 0.2
"""Samples with a smaller probability of being needed are not sent ahead. In virtual time they save nothing and are
most of the waste (benchmarks/scheduler.py)."""

CPU_SPECULATION = 16
"""Rollouts on a CPU's engine up to which some are sent ahead. With a measured engine in virtual time, a step then
takes 5 % less than with 32 to 3 % more, at half the waste or less."""

GPU_SPECULATION = 256
"""The same on a GPU, whatever its slots. In virtual time, a step takes at most 5 % more than with the best number, but
up to 18 % more if an engine of 1,024 slots is filled (benchmarks/speculation.py)."""

PRIOR_STRENGTH = 2.0
"""Rollouts that the prior pass rate counts for: as many as in a uniform prior."""


@lru_cache(maxsize=1 << 16)
def chance_of_count(least: int, most: int, positives: int, negatives: int, unknown: int, prior: float) -> float:
    """Probability of `least` to `most` positives once `unknown` samples are in.

    Beta-binomial, with a Beta prior of mean `prior` worth two samples, after `positives` and `negatives`.
    """
    alpha = PRIOR_STRENGTH * prior + positives
    beta = PRIOR_STRENGTH * (1.0 - prior) + negatives
    counts = range(max(least - positives, 0), min(most - positives, unknown) + 1)
    return sum(_beta_binomial(x, unknown, alpha, beta) for x in counts)


def _beta_binomial(x: int, n: int, alpha: float, beta: float) -> float:
    return exp(
        lgamma(n + 1) - lgamma(x + 1) - lgamma(n - x + 1)
        + _log_beta(x + alpha, n - x + beta) - _log_beta(alpha, beta)
    )  # fmt: skip


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)


class SpeculationQueue:
    """Prompts by the chance that their next sample will be needed; the latest offer of a prompt counts."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, PromptKey]] = []
        self._latest: dict[PromptKey, int] = {}
        self._num_offers = 0

    def offer(self, key: PromptKey, chance: float) -> None:
        self._num_offers += 1
        self._latest[key] = self._num_offers
        heapq.heappush(self._heap, (-chance, self._num_offers, key))

    def withdraw(self, key: PromptKey) -> None:
        self._latest.pop(key, None)

    def take(self) -> PromptKey | None:
        """Remove and return the prompt with the largest chance; None if there is none."""
        while self._heap:
            _, offer, key = heapq.heappop(self._heap)
            if self._latest.get(key) == offer:
                del self._latest[key]
                return key
        return None
