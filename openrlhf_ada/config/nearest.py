"""The name that was meant, of those that are known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

ELSEWHERE = {"grpo": "group_norm", "ppo": "gae", "reinforce++": "reinforce", "reinforce_plus_plus": "reinforce"}
"""Names that other trainers have for what OpenRLHF calls otherwise."""


def nearest(name: str, known: Iterable[str]) -> str:
    """ "" if none is near. Case does not count, nor do the marks between words."""
    by_words = {_words(other): other for other in known}
    if (elsewhere := ELSEWHERE.get(name.lower())) in by_words.values():
        return elsewhere or ""
    return by_words[near[0]] if (near := difflib.get_close_matches(_words(name), by_words, n=1)) else ""


def _words(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence that follows another one; empty if none is near."""
    near = nearest(name, known)
    return f" Did you mean {near}?" if near else ""
