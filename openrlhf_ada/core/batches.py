"""Which numbers of prompts can be trained without losing a rollout: pure arithmetic on OpenRLHF's batch rules.

OpenRLHF's replay buffer drops what does not fill a training batch. And it deals micro-batches out to the processes of
a model in slices: a process with fewer samples leaves the others waiting in the gradient's all-reduce.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from openrlhf_ada.core.types import TrainingGroup


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Sizes: `prompts` per step, `group_size` rollouts per prompt, `train_batch` rollouts per optimiser step,
    `micro_batch` rollouts per forward pass, `processes` among which these are dealt out (with several models, the
    least common multiple of their numbers of processes).

    `varies`: all rollouts of a prompt are trained, `group_size` or more. A step trains as many multiples of `unit` as
    it can fill (`thinned`), and what is said here of numbers of prompts holds for the fewest rollouts they can give.
    """

    prompts: int
    group_size: int
    train_batch: int
    micro_batch: int
    processes: int
    varies: bool = False

    @property
    def unit(self) -> int:
        """The least number of rollouts of which none is lost, and every process gets equally many."""
        return math.lcm(self.train_batch, 1 if self.processes == 1 else self.micro_batch * self.processes)

    def is_even(self, prompts: int) -> bool:
        """Does every process get the same number of rollouts from this many prompts? No micro-batch may be short."""
        dealt = self.micro_batch * self.processes
        return self.processes == 1 or self.varies or prompts * self.group_size % dealt == 0

    def fills_batches(self, prompts: int) -> bool:
        if self.varies:
            return prompts * self.group_size >= self.unit
        return prompts * self.group_size % self.train_batch == 0

    def trainable(self, available: int) -> int:
        """The largest number of prompts, at most `available`, of which no rollout would be lost."""
        return next((n for n in range(available, 0, -1) if self.fills_batches(n) and self.is_even(n)), 0)

    def steps(self, available: int) -> int:
        """Rollout batches that this many prompts give: full ones, then what is trainable of the rest."""
        full, rest = divmod(available, self.prompts)
        return full + (self.trainable(rest) > 0)

    def optimizer_steps(self, available: int) -> int:
        """Optimiser steps of one pass over these batches."""
        full, rest = divmod(available, self.prompts)
        return (full * self.prompts + self.trainable(rest)) * self.group_size // self.train_batch


def thinned(groups: Sequence[TrainingGroup], unit: int, rng: np.random.Generator) -> list[TrainingGroup]:
    """Leave out as few samples as it takes for their number to be a multiple of `unit`, all with the same chance.

    So the mean over what is left is, in expectation, the mean over all. Raises ValueError for fewer than `unit`.
    """
    total = sum(len(group.indices) for group in groups)
    if total < unit:
        raise ValueError(f"{total} rollouts cannot be trained in batches of {unit}")
    is_kept = np.ones(total, bool)
    is_kept[rng.choice(total, total % unit, replace=False)] = False
    ends = np.cumsum([len(group.indices) for group in groups])[:-1]
    return [group.only(part.tolist()) for group, part in zip(groups, np.split(is_kept, ends), strict=True)]
