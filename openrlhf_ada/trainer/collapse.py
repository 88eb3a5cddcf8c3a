"""A policy that has collapsed is told of at once: prompts hardly score any more, or no token is uncertain.

Training goes on, since a hard batch may look like it. Numbers that are not finite end it (`trainer/finite.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from openrlhf_ada.trainer.skipped_rollouts import computed_actions

FALLEN = 0.1
"""A score below this share of what it was before may be a collapse."""

CHANCE = 1e-6
"""It is told of from where it would be so improbable with the mean of before."""

FOLLOWS = 0.25
"""Weight of the newest step in the mean of before, which follows a policy that gets better or slowly worse."""

CERTAIN = 1e-4
"""Nats per token. A policy below it gives its most probable token 99.999 % and more."""

IN_TRAINING = "this step"

_FALLEN = (
    "the answers of {where} have {now:.1%} of the score, and {before:.0%} before: the policy may have collapsed. Look "
    "at its answers in the report. The usual remedy: the last checkpoint and a lower --actor.adam.lr"
)

_CERTAIN = (
    "the policy is certain of every token ({surprisal:.1g} nats per token): all answers to a prompt are the same, and "
    "there is nothing to learn from them"
)


class CollapseWatch:
    """Reads each step's figures and each evaluation's scores. `note` gets what a user should read, once a collapse."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._before: dict[str, float] = {}
        self._low: dict[str, tuple[float, int]] = {}
        self._noted: dict[str, str] = {}

    def scores(self, where: str, mean: float, prompts: int) -> None:
        """`mean`: of the prompts' mean scores, in [0, 1], on the prompts that `where` names: a step or a held-out set.
        Low steps add up, since each may be small."""
        # As if two more had scored nothing: a few prompts that all score do not make others sure to.
        cautious = mean * prompts / (prompts + 2)
        before = self._before.setdefault(where, cautious)
        if mean >= before * FALLEN:
            self._before[where] += FOLLOWS * (cautious - before)
            self._low.pop(where, None)
            self._noted.pop(where, None)
            return
        total, count = self._low.get(where, (0.0, 0))
        total, count = total + mean * prompts, count + prompts
        self._low[where] = total, count
        if chance_of_fall(total / count, before, count) < CHANCE:
            self._note_once(where, _FALLEN.format(where=where, now=total / count, before=before))

    def surprisal(self, nats: float) -> None:
        """Of a step's trained tokens, see `surprisal`."""
        if nats < CERTAIN:
            self._note_once("", _CERTAIN.format(surprisal=nats))
        else:
            self._noted.pop("", None)

    def _note_once(self, what: str, text: str) -> None:
        if what not in self._noted:
            self._noted[what] = text
            self._note(text)

    def standing(self) -> list[str]:
        """What was told and still holds."""
        return list(self._noted.values())


def chance_of_fall(mean: float, before: float, prompts: int) -> float:
    """At most so probable is a mean score this low over independent prompts whose scores, in [0, 1], have the mean
    `before`: Chernoff's bound exp(-n KL), and (1 - before)^n for a mean of 0. Less than 1 below `before` only."""
    if mean >= before:
        return 1.0
    divergence = (1.0 - mean) * math.log((1.0 - mean) / (1.0 - before))
    if mean > 0:
        divergence += mean * math.log(mean / before)
    return math.exp(-prompts * divergence)


def surprisal(experiences: Sequence[Any]) -> float | None:
    """Mean of -log π over the sampled tokens of micro-batches with `action_log_probs` and `action_mask`, shape (B, A)
    each: an estimate of the policy's entropy per token. None where nothing was sampled, or all is hidden.
    """
    computed = [computed_actions(e) for e in experiences]
    sums = [float(-(e.action_log_probs.float() * of).sum()) for e, of in zip(experiences, computed, strict=True)]
    tokens = sum(int(of.sum()) for of in computed)
    return sum(sums) / tokens if tokens else None
