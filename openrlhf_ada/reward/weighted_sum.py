"""Several rewards of one answer: the first is the score, and the reward is their weighted sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from openrlhf_ada.reward.grade import NoScoreError
from openrlhf_ada.reward.mixed import named_label
from openrlhf_ada.reward.returned import reward_and_score
from openrlhf_ada.reward.reward_function import (
    MIXED,
    Grading,
    PooledReward,
    Shaping,
    file_and_function,
    grader_of,
    grades_labels,
    in_openrlhf_form,
    response_of,
    strip_end_tokens,
)
from openrlhf_ada.reward.worker import load_file

LOGGED_AS = "reward_"
"""Beginning of the names under which OpenRLHF logs each of several rewards, as means over the trained samples."""

Part = Callable[[Sequence[str], Sequence[str], Sequence[Any]], dict[str, Any]]


class CombinedReward:
    """Called as OpenRLHF calls a reward function, for one answer at a time; `configure` comes first.

    Returns "scores" (of the first reward), "rewards" (the weighted sum of all, plus shaping), each a float tensor of
    shape (1,); "extra_logs" with each reward by its name; and the first one's "grades". Raises NoScoreError where one
    of them has none.
    """

    def __init__(self) -> None:
        self._names: Sequence[str] = ()
        self._weights: Sequence[float] = ()
        self.parts: list[Part] = []
        self._shaping = Shaping()

    def configure(self, names: Sequence[str], grading: Grading) -> None:
        """Load the rewards and start their processes. Raises ValueError for weights that do not fit."""
        self._names = names
        self._weights = grading.weights or [1.0] * len(names)
        if len(self._weights) != len(names):
            raise ValueError(f"{len(names)} rewards have {len(self._weights)} weights")
        self._shaping = grading.shaping
        # Shaping is added once, to the sum.
        self.parts = [load_reward(name, replace(grading, shaping=Shaping())) for name in names]

    def __call__(
        self, queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any], **kwargs: Any
    ) -> dict[str, Any]:
        import torch

        # Only `mixed` reads which grader a label names.
        own = [named[1] if (named := named_label(label)) else label for label in labels]
        results = [
            part(queries, prompts, labels if name == MIXED or MIXED not in self._names else own)
            for part, name in zip(self.parts, self._names, strict=True)
        ]
        pairs = [_reward_and_score(result, name) for result, name in zip(results, self._names, strict=True)]
        numbers, score = [reward for reward, _ in pairs], pairs[0][1]
        reward = sum(weight * number for weight, number in zip(self._weights, numbers, strict=True))
        reward += self._shaping(strip_end_tokens(response_of(queries[0], prompts[0])))
        logs = {
            f"{LOGGED_AS}{short_name(name)}": torch.tensor([n]) for name, n in zip(self._names, numbers, strict=True)
        }
        return {
            "rewards": torch.tensor([reward], dtype=torch.float32),
            "scores": torch.tensor([score], dtype=torch.float32),
            "extra_logs": logs if len(self._names) > 1 else {},
            "grades": results[0].get("grades", ()),
        }


def load_reward(name: str, grading: Grading) -> Part:
    """A reward by its name, FILE.py:NAME or file, ready to be called. Raises what the file raises."""
    part: Any = PooledReward(grader_of(name)) if grades_labels(name) else in_openrlhf_form(load_file(name).reward_func)
    if isinstance(part, PooledReward):
        part.configure(grading)
        part.start()
    return part


def short_name(name: str) -> str:
    """For the name of a figure: without folders and endings."""
    named = file_and_function(name)
    return Path(name).stem if named is None else f"{Path(named[0]).stem}_{named[1]}"


def _reward_and_score(result: dict[str, Any], name: str) -> tuple[float, float]:
    try:
        return reward_and_score(result)
    except NoScoreError as error:
        raise NoScoreError(f"the reward {name}: {error}") from error
