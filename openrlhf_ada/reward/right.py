"""What counts as a right answer, by task. A grader may give partial credit, which is not a right answer.

In reasoning-gym's game_of_life, for example, a board with one wrong cell of a hundred has the score 0.99.
"""

from __future__ import annotations

from typing import Any

from openrlhf_ada.reward.grade import UnusableLabelError
from openrlhf_ada.reward.reasoning_answers import task_of

FULL_MARKS = 0.999999
"""An answer with full marks scores more: 1, up to rounding."""

BY_TASK = {
    # It wants four decimals, and exp(-10 * error) is its score: 0.999 for an answer that is cut off there.
    "polynomial_equations": 0.998,
}
"""Tasks of reasoning-gym of which a right answer may score less than 1."""


def right_above(reward: str, label: Any) -> float:
    """An answer to this problem is right if its score is greater. `reward`: a name of NAMED, a file or a URL."""
    if reward != "reasoning_gym":
        return FULL_MARKS
    try:
        return BY_TASK.get(task_of(label), FULL_MARKS)
    except UnusableLabelError:
        # Its answers have no score.
        return FULL_MARKS
