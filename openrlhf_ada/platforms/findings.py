"""What a look at this machine has found, and what to do about it: the lines of `openrlhf-ada doctor`."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARNING, ERROR = "ok", "warning", "error"
"""A run starts with warnings, and not with an error."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`check`: what was looked at. `level`: OK, WARNING or ERROR. `remedy`: what to do; empty where nothing is."""

    check: str
    level: str
    what: str
    remedy: str = ""
