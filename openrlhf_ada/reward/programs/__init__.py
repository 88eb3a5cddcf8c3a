"""Does a program in Python pass its tests? One door, `grade(response, label)`; nothing here knows of rollouts."""

from openrlhf_ada.reward.programs.answers import grade

__all__ = ["grade"]
