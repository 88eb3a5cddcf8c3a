"""Answers of a step and where those of each prompt are among them, and what is trained together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.arena.learner import Answers, Learner, joined
from openrlhf_ada.core.types import PromptKey, PromptPool, TrainingGroup


class Drawn:
    """Answers that are trained together. `places`: of each prompt's answers among them, in index order."""

    def __init__(self) -> None:
        self._parts: list[Answers] = []
        self._log_probs: list[Tensor] = []
        self.places: dict[PromptKey, list[int]] = {}
        self.size = 0

    def add(self, answers: Answers, log_probs: Tensor | None = None) -> None:
        """`log_probs`: of the tokens when they were sampled, shape (N, T), where they are to be kept."""
        self._parts.append(answers)
        self._log_probs += [] if log_probs is None else [log_probs]
        self.size += len(answers.right)

    def answers(self) -> Answers:
        if len(self._parts) > 1:
            self._parts = [joined(self._parts)]
        return self._parts[0]

    @property
    def log_probs(self) -> Tensor | None:
        """Of the tokens when they were sampled, shape (N, T); None where they are not kept."""
        return torch.cat(self._log_probs) if self._log_probs else None

    def only(self, keys: Sequence[PromptKey]) -> Drawn:
        """The answers of these prompts."""
        kept = Drawn()
        for key in keys:
            kept.places[key] = [kept.size + at for at in range(len(self.places[key]))]
            kept.size += len(self.places[key])
        if keys:
            index = [place for key in keys for place in self.places[key]]
            kept._parts.append(self.answers().at(index))
            kept._log_probs += [] if self.log_probs is None else [self.log_probs[index]]
        return kept


@dataclass(frozen=True, slots=True)
class Batch:
    """What is trained together. `pools`: all that were sampled. `trained`: those of `groups`, in order."""

    learner: Learner
    drawn: Drawn
    pools: Sequence[PromptPool]
    trained: Sequence[PromptPool]
    groups: Sequence[TrainingGroup]

    @property
    def index(self) -> list[int]:
        """Places of the groups' samples among what was drawn."""
        return [self.drawn.places[group.key][i] for group in self.groups for i in group.indices]
