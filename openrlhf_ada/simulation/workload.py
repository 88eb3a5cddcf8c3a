"""Made-up rollouts for engines in virtual time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.core.types import Sample


@dataclass(frozen=True, kw_only=True)
class SyntheticRollouts:
    """Pass rates Beta(`alpha`, `beta`), or those of `rates`; lengths lognormal with this median, spread and longest,
    in tokens.

    `shared`: share of the variance of log-length that a prompt's rollouts have in common. Metric and reward are 1 or
    0. A rollout depends only on its identity.
    """

    alpha: float
    beta: float
    median: float
    spread: float
    longest: int
    shared: float = 0.0
    rates: tuple[float, ...] = ()
    seed: int = 0

    def __call__(self, request: Request) -> Sample:
        return self.visit(request, request.key)

    def visit(self, request: Request, row: int) -> Sample:
        """A rollout of prompt `row`, which may be visited more than once."""
        rate, common = _synthetic_prompt(self, row)
        rng = np.random.default_rng([self.seed, request.key, request.index])
        score = float(rng.random() < rate)
        own = math.sqrt(1.0 - self.shared) * float(rng.standard_normal())
        length = self.median * math.exp(common + self.spread * own)
        tokens = min(max(int(length), 1), self.longest)
        return Sample(request.key, request.index, score, score, tokens)


SYNTHETIC = SyntheticRollouts(alpha=1.5, beta=1.5, median=500.0, spread=0.9, longest=4096)
"""Pass rates of all sizes, and long answers: 730 tokens on average."""


@lru_cache(maxsize=1 << 20)
def _synthetic_prompt(of: SyntheticRollouts, row: int) -> tuple[float, float]:
    """(pass rate, the part of log-length that the prompt's rollouts share)."""
    # Shorter seeds are filled up with zeros: without the 1, this would be the stream of the first rollout.
    rng = np.random.default_rng([of.seed, row, 0, 1])
    rate = of.rates[int(rng.integers(len(of.rates)))] if of.rates else float(rng.beta(of.alpha, of.beta))
    return rate, of.spread * math.sqrt(of.shared) * float(rng.standard_normal())
