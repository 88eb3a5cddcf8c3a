"""Labels, read by their own graders before a run starts: which cannot be read?

Every answer to a prompt whose label cannot be read would stay without a score. Such rows are left out; `prepare-data`
does so too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from openrlhf_ada.reward.mixed import named_label
from openrlhf_ada.reward.pool import GraderPool, GradingLimits
from openrlhf_ada.reward.reward_function import GRADERS, MIXED, grader_of


def read_labels(labels: Sequence[Any], reward: str, limits: GradingLimits) -> dict[int, str]:
    """Let `reward` read the labels. Returns the positions of those that it cannot read, each with the cause.

    `reward`: one of GRADERS, or MIXED for labels that name theirs. Each different label is read once, in processes of
    their own. Functions of users are not asked: what they take for an answer is not known here.
    """
    positions: dict[str, list[int]] = {}
    for position, label in enumerate(labels):
        if reward != MIXED or _is_ours(label):
            positions.setdefault(json.dumps(label), []).append(position)
    if not positions:
        return {}
    with GraderPool(grader_of(reward), limits) as pool, ThreadPoolExecutor(2 * pool.num_workers) as threads:
        # An empty response is a wrong answer to every label that can be read.
        grades = list(threads.map(lambda label: pool.grade("", json.loads(label)), positions))
    found = zip(grades, positions.values(), strict=True)
    return {position: grade.cause for grade, same in found if grade.score is None for position in same}


def _is_ours(label: Any) -> bool:
    named = named_label(label)
    return named is None or named[0] in GRADERS
