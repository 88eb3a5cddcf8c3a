"""Reward for problems of several kinds: each label names its grader. `eval` and `prepare-data` use it."""

from __future__ import annotations

import json
import pkgutil
from functools import lru_cache
from typing import Any

from openrlhf_ada.reward.grade import Grade, Grader, UnusableLabelError
from openrlhf_ada.reward.reward_function import GRADERS, pooled


def label_of(reward: str, label: Any) -> str:
    """The label for `grade`: a name of GRADERS, and that grader's own label."""
    return json.dumps({"reward": reward, "label": label})


def grade(response: str, label: Any) -> Grade:
    """Raises UnusableLabelError for a label that `label_of` did not make, and what the grader raises."""
    try:
        named = json.loads(label)
        grader, own_label = _grader(named["reward"]), named["label"]
    except (ValueError, TypeError, KeyError) as error:
        raise UnusableLabelError(f"{str(label)[:80]!r} names no grader: {error!r}") from error
    return grader(response, own_label)


@lru_cache
def _grader(name: str) -> Grader:
    return pkgutil.resolve_name(GRADERS[name])


reward_func = pooled("openrlhf_ada.reward.mixed:grade")
