"""Is a mathematical answer right? One door, `grade(response, label)`; nothing here knows of rollouts."""

from openrlhf_ada.reward.mathematics.answers import grade

__all__ = ["grade"]
