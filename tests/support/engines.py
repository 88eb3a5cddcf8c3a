"""Engines that answer at once and in this process; dispatch, sampling parameters and experiences are the host's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import ray

Reward = Callable[[int, int], float | None]
"""(number that is the prompt, index of the answer within its request) -> reward and score; None: it failed."""


def answer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call's result stands for its reference; of several, the first that was asked for comes first."""
    monkeypatch.setattr(ray, "get", lambda refs: refs)
    monkeypatch.setattr(ray, "wait", lambda refs, **options: (refs[:1], refs[1:]))


class Remote:
    """`engine.method.remote(...)` without Ray."""

    def __init__(self, function: Any) -> None:
        self.remote = function


class Engine:
    """Answers with one token, two tokens and so on. Remembers the calls, and when it was woken and sent to sleep."""

    def __init__(self, reward: Reward) -> None:
        self.reward = reward
        self.calls: list[dict[str, Any]] = []
        self.power: list[str] = []
        self.get_num_unfinished_requests = Remote(lambda: 0)
        self.generate_responses = Remote(self._generate)
        self.wake_up = Remote(lambda: self.power.append("wake_up"))
        self.sleep = Remote(lambda: self.power.append("sleep"))

    @property
    def drawn(self) -> int:
        return sum(call["num_samples"] for call in self.calls)

    def _generate(self, **call: Any) -> list[dict[str, Any]]:
        self.calls.append(call)
        return [self._answer(call, int(call["prompt"]), k) for k in range(call["num_samples"])]

    def _answer(self, call: dict[str, Any], number: int, k: int) -> dict[str, Any]:
        return {
            "prompt": call["prompt"],
            "label": call["label"],
            "images": call["images"],
            "observation_tokens": [number, *[9] * (k + 1)],
            "action_ranges": [(1, k + 2)],
            "rollout_log_probs": None,
            "truncated": False,
            "reward": self.reward(number, k),
            "scores": self.reward(number, k),
        }
