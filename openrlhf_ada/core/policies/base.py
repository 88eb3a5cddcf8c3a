"""The policy interface: a policy decides how much to draw and what to train; the plumbing carries it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

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


@runtime_checkable
class Policy(Protocol):
    """Decide, build, observe, and a state. A policy sees scalars only, so a run can be replayed from its record."""

    @property
    def reads_critic(self) -> bool:
        """Must a critic's value of every prompt be in its pool (`critic_value`) before the first `decide`?"""
        ...

    def decide(self, pools: Sequence[PromptPool]) -> Sequence[Action]:
        """One action per pool, in order. Called with all that was asked for of these prompts in their pools.

        The first call has all prompts of a step. After that an action depends on its own pool alone; `TwoStage`, which
        decides about all of them twice, needs the scheduler `rounds`.
        """
        ...

    def chance_of_need(self, pool: PromptPool, ahead: Sequence[Sample], sent: int) -> float:
        """Probability that the rollout of index `sent` will be drawn, where those below are sent. Decides nothing.

        `ahead`: samples of this prompt that are back and not in its pool yet, in any order.
        """
        ...

    def build(self, pool: PromptPool, rng: np.random.Generator) -> TrainingGroup:
        """The trained group of a closed pool."""
        ...

    def load_prior_counts(self, draws: ArrayLike, positives: ArrayLike) -> None:
        """Outcomes counted before the first step, by dataset row, shapes (R,). A policy may have no use for them."""
        ...

    def observe(self, pools: Sequence[PromptPool]) -> dict[str, float]:
        """Learn from one training step's closed pools, once per step and after `build`; returns what to log."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart: plain numbers, strings and lists."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict`; raises ValueError on a state of another policy."""
        ...
