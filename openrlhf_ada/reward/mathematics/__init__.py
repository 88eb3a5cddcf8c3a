"""Is a mathematical answer right? One door, `grade(response, label)`; nothing here knows of rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openrlhf_ada.reward.mathematics.answers import grade

__all__ = ["grade"]


def __getattr__(name: str) -> Any:
    """`grade` is imported when it is asked for: its parts are used alone, too."""
    if name == "grade":
        from openrlhf_ada.reward.mathematics.answers import grade

        return grade
    raise AttributeError(name)
