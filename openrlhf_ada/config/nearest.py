"""The name that was meant, of those that are known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

ELSEWHERE = {"grpo": "group_norm", "ppo": "gae", "reinforce++": "reinforce", "reinforce_plus_plus": "reinforce"}
"""Names that other trainers have for what OpenRLHF calls otherwise."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Empty if none is near. Where none is as it is spelt, neither case counts nor the marks between words."""
    by_name = {other: other for other in known}
    elsewhere = ELSEWHERE.get(name.lower(), "")
    if elsewhere in by_name:
        return elsewhere
    for spelt, names in ((name, by_name), (_words(name), {_words(other): other for other in by_name})):
        if near := difflib.get_close_matches(spelt, names, n=1):
            return names[near[0]]
    return ""


def _words(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence that follows another one; empty if none is near."""
    near = nearest(name, known)
    return f" Did you mean {near}?" if near else ""
