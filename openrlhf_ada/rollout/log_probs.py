"""The log-probabilities that came with a response: are they what was asked for?"""

from __future__ import annotations

import math
from typing import Any

from openrlhf_ada.reward.grade import NoScoreError


def check_log_probs(response: dict[str, Any], *, asked: bool) -> None:
    """One number per token, finite and at most 0 where a token was sampled; raises NoScoreError."""
    values, tokens = response["rollout_log_probs"], len(response["observation_tokens"])
    if values is None:
        if asked:
            raise NoScoreError("it came without the log-probabilities that were asked for")
        return
    if len(values) != tokens:
        raise NoScoreError(f"{tokens} tokens have {len(values)} log-probabilities")
    for start, end in response["action_ranges"]:
        if not 0 <= start <= end <= tokens:
            raise NoScoreError(f"of {tokens} tokens those from {start} to {end} are said to have been sampled")
        wrong = [value for value in values[start:end] if not is_log_probability(value)]
        if wrong:
            raise NoScoreError(f"a sampled token has the log-probability {wrong[0]!r}")


def is_log_probability(value: Any) -> bool:
    """A finite number of at most 0."""
    return isinstance(value, float | int) and -math.inf < value <= 0.0
