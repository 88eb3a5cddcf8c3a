"""What counts as a right answer: one with full marks. A grader may give partial credit, which is not a right answer.

In reasoning-gym's game_of_life, for example, a board with one wrong cell of a hundred has the score 0.99.
"""

from __future__ import annotations

from openrlhf_ada.config.run_flags import FULL_MARKS
from openrlhf_ada.reward.reward_function import MIXED, NAMED


def default_threshold(reward: str) -> float | None:
    """A training sample is positive if its score is greater; None for rewards that are not ours, whose scale is not
    known here. `reward`: the first one of --reward.remote_url."""
    return FULL_MARKS if reward in (*NAMED, MIXED) else None
