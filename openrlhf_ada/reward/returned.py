"""What a reward function or a server returned for one answer: is it what OpenRLHF reads?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def score_of(returned: Any) -> tuple[float | None, str]:
    """(the score, "") or (None, why training could not use it). Without 'scores' the score is the reward."""
    if not isinstance(returned, Mapping):
        return None, f"it returned {_kind(returned)}, expected a dict with 'rewards'"
    if returned.get("rewards") is None:
        return None, f"it returned no 'rewards', but {', '.join(map(repr, returned)) or 'an empty dict'}"
    logs = returned.get("extra_logs") or {}
    if not isinstance(logs, Mapping):
        return None, f"it returned {_kind(logs)} as 'extra_logs', expected a dict of numbers"
    found = {f"'{name}'": returned[name] for name in ("rewards", "scores") if returned.get(name) is not None}
    numbers = {name: score_in(value, name) for name, value in found.items()}
    of_logs = [score_in(_first(value), f"extra_logs {name!r}") for name, value in logs.items()]
    wrong = next((cause for _, cause in (*numbers.values(), *of_logs) if cause), "")
    return (None, wrong) if wrong else (list(numbers.values())[-1][0], "")


def score_in(value: Any, name: str = "score") -> tuple[float | None, str]:
    """(the number, "") or (None, why there is none): a number, or a list, an array or a tensor with one."""
    if value is None:
        return None, f"the reward function returned no {name}"
    # A tensor may be on a GPU, of half precision, or part of a graph.
    plain = value.tolist() if hasattr(value, "tolist") else value
    try:
        array = np.asarray(plain)
    except ValueError:
        array = np.asarray([None])
    if array.dtype.kind not in "biuf":
        return None, f"the reward function returned {_kind(plain)} as {name}, expected one number"
    if array.size != 1:
        return None, f"the reward function returned {array.size} numbers as {name} of one answer"
    number = float(array.item())
    return (number, "") if math.isfinite(number) else (None, f"the reward function returned the {name} {number}")


def _first(value: Any) -> Any:
    """OpenRLHF logs a tensor's first number."""
    return value.flatten()[:1] if hasattr(value, "flatten") else value


def _kind(value: Any) -> str:
    inner = f" of {type(value[0]).__name__}" if isinstance(value, list | tuple) and value else ""
    return f"a {type(value).__name__}{inner}"
