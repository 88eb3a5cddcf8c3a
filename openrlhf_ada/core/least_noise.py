"""The factor of a predicted baseline at which the gradient has the least noise.

(r - lambda b) grad log pi(y) is unbiased for every lambda and b that y has no part in. With w the squared norm of
grad log pi(y), its noise is least at lambda = E[w r b] / E[w b^2] (after Greensmith, Bartlett and Baxter, 2004). Where
right answers are certain that is near 0, which trains right answers only; where they vary as wrong ones do, near 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from openrlhf_ada.core.types import Floats

DECAY = 0.8
"""Of what earlier steps showed, by step."""

LARGEST = 1.5
"""A step of few right answers may show more by chance."""


def score_norm(log_probs: Floats) -> float:
    """w of a rollout up to a common factor: the sum of (1 - pi)^2 over its sampled tokens; log-probabilities (T,).

    At the logits a token's part is (1 - pi)^2 + the sum of the others' pi^2. The second term is left out, so the
    sampled tokens' probabilities are enough.
    """
    return float(((1.0 - np.exp(log_probs)) ** 2).sum())


@dataclass
class LeastNoiseFactor:
    """Sums over the steps so far, in which a step counts DECAY times as much as the one after it."""

    _product: float = 0.0
    _square: float = 0.0

    @property
    def value(self) -> float:
        """lambda, from the steps so far; 1 before the first."""
        if self._square <= 0.0:
            return 1.0
        return min(max(self._product / self._square, 0.0), LARGEST)

    def observe(self, norms: Floats, rewards: Floats, baselines: Floats) -> None:
        """One step's trained rollouts, shapes (N,). Rewards and baselines come times the weight of the rollout."""
        self._product = DECAY * self._product + float((norms * rewards * baselines).sum())
        self._square = DECAY * self._square + float((norms * baselines**2).sum())

    def state_dict(self) -> dict[str, float]:
        return {"product": self._product, "square": self._square}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self._product, self._square = state["product"], state["square"]
