"""What a grader says of an answer, and what is known when it says nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SECONDS_VARIABLE = "OPENRLHF_ADA_VERDICT_S"
"""Set in grading processes: seconds that a verdict may take there."""


def verdict_seconds() -> float:
    """Seconds that a verdict may take in this process; 10, the default, in others."""
    return float(os.environ.get(SECONDS_VARIABLE, "10"))


class UnusableLabelError(ValueError):
    """No answer can be graded by this label: nobody could tell a right one."""


@dataclass(frozen=True, slots=True)
class Grade:
    """`score`: in [0, 1]. `cause`: why it is not 1, in a few words; the same words for the same kind of cause."""

    score: float
    cause: str = ""


Grader = Callable[[str, Any], Grade]
"""(response, label) -> Grade. What it raises means that there is no verdict, which is not a wrong answer."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A grade with its time in seconds; or, where `score` is None, the cause why there is none (R2: never a zero)."""

    score: float | None
    cause: str
    seconds: float
