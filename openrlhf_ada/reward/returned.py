"""What a reward function or a server returned for one answer: is it what OpenRLHF reads?"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from openrlhf_ada.reward.grade import NoScoreError

_REWARDS, _SCORES = ("rewards", "reward", "score", "scores"), ("scores", "acc", "score")
"""Keys, also of verl: its 'acc' says whether an answer is right, and its 'score' is trained."""


def as_rewards(returned: Any) -> Mapping[str, Any]:
    """As OpenRLHF reads it, with 'rewards'. Raises NoScoreError for what is neither one number nor a dict with one."""
    if not isinstance(returned, Mapping):
        return {"rewards": number_in(returned, "reward")}
    reward, score = (next((k for k in keys if returned.get(k) is not None), None) for keys in (_REWARDS, _SCORES))
    if reward is None:
        raise NoScoreError(f"it returned no 'rewards', but {', '.join(map(repr, returned)) or 'an empty dict'}")
    return returned if reward == "rewards" else {"rewards": returned[reward], "scores": returned[score or reward]}


def reward_and_score(returned: Any) -> tuple[float, float]:
    """Without 'scores' the score is the reward. Raises NoScoreError: why training could not use it."""
    found = as_rewards(returned)
    logs = found.get("extra_logs") or {}
    if not isinstance(logs, Mapping):
        raise NoScoreError(f"it returned {_kind(logs)} as 'extra_logs', expected a dict of numbers")
    for name, value in logs.items():
        number_in(_first(value), f"extra_logs {name!r}")
    reward = number_in(found["rewards"], "'rewards'")
    return reward, reward if found.get("scores") is None else number_in(found["scores"], "'scores'")


def within(text: Any) -> Any:
    """The list or object that a text holds, as JSON or as Python writes it; anything else as it is."""
    if isinstance(text, str) and text.lstrip().startswith(("[", "{")):
        for read in (json.loads, ast.literal_eval):
            with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
                return read(text.strip())
    return text


def number_in(value: Any, name: str = "score") -> float:
    """A number, or the one of a list, an array or a tensor; raises NoScoreError."""
    if value is None:
        raise NoScoreError(f"the reward function returned no {name}")
    # A tensor may be on a GPU, of half precision, or part of a graph.
    plain = value.tolist() if hasattr(value, "tolist") else value
    try:
        array = np.asarray(plain)
    except ValueError:
        array = np.asarray([None])
    if array.dtype.kind not in "biuf":
        raise NoScoreError(f"the reward function returned {_kind(plain)} as {name}, expected one number")
    if array.size != 1:
        raise NoScoreError(f"the reward function returned {array.size} numbers as {name} of one answer")
    if not math.isfinite(array.item()):
        raise NoScoreError(f"the reward function returned the {name} {float(array.item())}")
    return float(array.item())


def _first(value: Any) -> Any:
    """OpenRLHF logs a tensor's first number."""
    return value.flatten()[:1] if hasattr(value, "flatten") else value


def _kind(value: Any) -> str:
    inner = f" of {type(value[0]).__name__}" if isinstance(value, list | tuple) and value else ""
    return f"a {type(value).__name__}{inner}"
