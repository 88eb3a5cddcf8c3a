"""Reward for problems of several kinds: each label names its grader (`--reward.remote_url mixed`).

Rows name it in a column of theirs; `label_of` puts it into the label, the one thing of a row that a reward gets.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from openrlhf_ada.reward.grade import Grade, Grader, UnusableLabelError
from openrlhf_ada.reward.reward_function import GRADERS, file_and_function, grader_of
from openrlhf_ada.reward.worker import load_grader

_BEGINS = '{"reward": "'


def label_of(reward: str, label: Any) -> str:
    """The label for `grade`: a name of GRADERS or FILE.py:NAME, and that grader's own label."""
    return json.dumps({"reward": reward, "label": label})


def named_label(label: Any) -> tuple[str, Any] | None:
    """(reward, its own label) of what `label_of` made; None for any other label."""
    if not (isinstance(label, str) and label.startswith(_BEGINS)):
        return None
    try:
        named = json.loads(label)
    except ValueError:
        return None
    return (named["reward"], named["label"]) if named.keys() == {"reward", "label"} else None


def grade(response: str, label: Any, prompt: str = "") -> Grade:
    """Raises UnusableLabelError for a label that `label_of` did not make, and what the grader raises."""
    named = named_label(label)
    if named is None:
        raise UnusableLabelError(
            f"{str(label)[:80]!r} names no grader: with `mixed` each row names one in the column 'reward'"
        )
    return _grader(named[0])(response, named[1], prompt)


@lru_cache
def _grader(name: str) -> Grader:
    if name not in GRADERS and not file_and_function(name):
        raise UnusableLabelError(f"there is no grader {name!r}: expected {', '.join(GRADERS)} or FILE.py:NAME")
    return load_grader(grader_of(name))
