"""A policy that has collapsed is told of at once: prompts that scored before score nothing, or no token is uncertain.

Training goes on, since a hard batch may look like it. Numbers that are not finite end it (`trainer/finite.py`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

CHANCE = 1e-6
"""Zeros are told of from where they would be so improbable with the mean score of before."""

CERTAIN = 1e-4
"""Nats per token. A policy below it gives its most probable token 99.999 % and more."""

IN_TRAINING = "this step"

_ZEROS = (
    "all answers of {where} scored 0, and {before:.0%} of the score was reached before: the policy may have "
    "collapsed. Look at its answers in the report. The usual remedy: the last checkpoint and a lower --actor.adam.lr"
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
        self._zeros: defaultdict[str, int] = defaultdict(int)
        self._told: set[str] = set()

    def scores(self, where: str, mean: float, prompts: int) -> None:
        """`mean`: of the prompts' mean scores, in [0, 1], on the prompts that `where` names: a step or a held-out set.
        Steps without a score add up, since each may be small."""
        if mean > 0:
            # As if two more had scored nothing: a few prompts that all score do not make others sure to.
            self._before[where] = mean * prompts / (prompts + 2)
            self._zeros[where] = 0
            self._told.discard(where)
            return
        self._zeros[where] += prompts
        before = self._before.get(where, 0.0)
        # Each prompt's answer scores nothing with probability 1 - before at most, for scores up to 1.
        if (1.0 - before) ** self._zeros[where] < CHANCE:
            self._tell(where, _ZEROS.format(where=where, before=before))

    def surprisal(self, nats: float) -> None:
        """Of a step's trained tokens, see `surprisal`."""
        if nats < CERTAIN:
            self._tell("", _CERTAIN.format(surprisal=nats))
        else:
            self._told.discard("")

    def _tell(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._note(text)


def surprisal(experiences: Sequence[Any]) -> float:
    """Mean of -log π over the sampled tokens of micro-batches with `action_log_probs` and `action_mask`, shape (B, A)
    each: an estimate of the policy's entropy per token. NaN where nothing was sampled."""
    sums = [float(-(e.action_log_probs.float() * e.action_mask).sum()) for e in experiences]
    tokens = sum(int(e.action_mask.sum()) for e in experiences)
    return sum(sums) / tokens if tokens else math.nan
