"""The policy interface: a policy decides how much to draw and what to train; the plumbing carries it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from openrlhf_ada.core.types import PromptKey, PromptPool, Sample, TrainingGroup


@dataclass(frozen=True, slots=True)
class Draw:
    """Sample `count` more rollouts of prompt `key`."""

    key: PromptKey
    count: int


@dataclass(frozen=True, slots=True)
class Close:
    """Prompt `key` is done; its pool goes to training."""

    key: PromptKey


Action = Draw | Close


@dataclass(frozen=True, slots=True)
class PromptView:
    """What a policy may know of an open prompt: the samples it has so far, in index order."""

    key: PromptKey
    samples: Sequence[Sample]


class Policy(Protocol):
    """Three verbs and a state. A policy sees scalars only, so a run can be replayed from its record."""

    def decide(self, views: Sequence[PromptView]) -> Sequence[Action]:
        """One action per view, in order. Called with all outstanding samples of these prompts back."""
        ...

    def build(self, pool: PromptPool, rng: np.random.Generator) -> TrainingGroup:
        """The trained group of a closed pool."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict`; raises ValueError on a state of another policy."""
        ...
