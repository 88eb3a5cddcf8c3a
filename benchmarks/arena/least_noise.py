"""The factor of a predicted baseline at which the gradient has the least noise.

For one prompt (r - b) grad log pi(y) is unbiased for every b that y has no part in. With b = lambda p, and w the
squared norm of grad log pi(y), its noise is least at lambda = E[w r p] / E[w p^2] (after Greensmith et al., 2004).
Where right answers are certain lambda is near 0, which is training right answers only; where right answers are as
varied as wrong ones it is near 1, which is a baseline of p.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from benchmarks.arena.tasks import Floats

DECAY = 0.8
"""Of what earlier steps showed, by step."""


def score_norms(token_log_probs: Tensor) -> Floats:
    """w of each answer up to a factor: the sum of (1 - pi)^2 over its tokens, shape (N,); log-probabilities (N, T).

    At the logits a token's part is (1 - pi)^2 + the sum of the others' pi^2. The second term is left out, so the
    sampled tokens' probabilities are enough.
    """
    return ((1.0 - token_log_probs.double().exp()) ** 2).sum(dim=1).numpy()


@dataclass
class LeastNoiseFactor:
    """`value`: lambda, from the steps before; 1 before the first."""

    value: float = 1.0
    _product: float = 0.0
    _square: float = 0.0

    def observe(self, norms: Floats, rewards: Floats, baselines: Floats) -> None:
        """One step's answers, shapes (N,)."""
        self._product = DECAY * self._product + float((norms * rewards * baselines).sum())
        self._square = DECAY * self._square + float((norms * baselines**2).sum())
        if self._square > 0.0:
            self.value = float(np.clip(self._product / self._square, 0.0, 1.5))
