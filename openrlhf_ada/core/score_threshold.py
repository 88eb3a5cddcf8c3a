"""Raw scores, such as a reward model's: which of them are positive.

A step's threshold is fixed before the step samples anything. It depends on earlier steps only. So stopping and
selection work as with a verifier, and the effective-weight identity holds given the past. A threshold from this step's
own samples would let every sample decide which of the others are positive.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import chain
from typing import Any


class ScoreThreshold:
    """The threshold of the present step, and how it follows the policy's scores.

    Args:
        start: threshold of the first step; with `quantile` None of every step. Any finite number, in score units.
        quantile: Q in (0, 1): from the second step on the threshold is the Q-quantile of recent scores.
        window: how many of the latest steps are recent.
    """

    def __init__(self, start: float, quantile: float | None = None, window: int = 10) -> None:
        self.start = start
        self.value = start
        self._quantile = quantile
        self._recent: deque[list[float]] = deque(maxlen=window)

    def outcome(self, score: float) -> float:
        """1 for a score above the threshold, else 0: what policies see as the score."""
        return float(score > self.value)

    def observe(self, scores: Sequence[float]) -> dict[str, float]:
        """End a step and set the threshold of the next one; returns the metrics of the step that has ended.

        `scores`: equally many of every prompt, drawn before any outcome of the prompt was known; at least one.
        """
        if not scores:
            raise ValueError("the step has no scores to take a threshold from")
        figures = {"ada/score_threshold": self.value, "ada/raw_score_mean": math.fsum(scores) / len(scores)}
        if self._quantile is not None:
            self._recent.append(sorted(scores))
            self._update(self._quantile)
        return figures

    def _update(self, share: float) -> None:
        self.value = quantile_below_top(sorted(chain.from_iterable(self._recent)), share)

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart; empty where nothing is learned."""
        return {} if self._quantile is None else {"recent": [list(step) for step in self._recent]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict`; raises ValueError on the state of a run with other flags."""
        if ("recent" in state) != (self._quantile is not None):
            raise ValueError(
                f"the checkpoint {'holds' if state else 'lacks'} the recent scores of --ada_positive_quantile; resume "
                f"with the --ada_... flags that it was written with"
            )
        self._recent.extend(state.get("recent", []))
        if self._recent and self._quantile is not None:
            self._update(self._quantile)


def quantile_below_top(ordered: Sequence[float], share: float) -> float:
    """The least value with at least `share` of the values at or below it, so that at most 1 - share exceed it.

    Of ties at the top: the value below them, or nothing would exceed it. Where all are equal: that value. `ordered`:
    ascending, at least one.
    """
    # A product such as 0.7 x 10 may come out just above the whole number that it is.
    rank = max(math.ceil(share * len(ordered) - 1e-9), 1)
    value = ordered[rank - 1]
    if value < ordered[-1]:
        return value
    return ordered[max(bisect_left(ordered, ordered[-1]) - 1, 0)]
