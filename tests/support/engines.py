"""Engines that answer at once and in this process; dispatch, sampling parameters and experiences are OpenRLHF's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import ray

from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.rollout.engine import Job, SamplingSetup
from openrlhf_ada.rollout.messages import Answer, result_of

Reward = Callable[[int, int], float | None]
"""(number that is the prompt, index of the answer within its request) -> reward and score; None: it failed."""


def answer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call's result stands for its reference; of several, the first that was asked for comes first."""
    monkeypatch.setattr(ray, "get", lambda refs: refs)
    monkeypatch.setattr(ray, "wait", lambda refs, num_returns=1, **_: (refs[:num_returns], refs[num_returns:]))


class Remote:
    """`engine.method.remote(...)` without Ray."""

    def __init__(self, function: Any) -> None:
        self.remote = function

    def options(self, **_: Any) -> Remote:
        return self


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


class Told:
    """The reference of a call that has been carried out, or has gone wrong."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error


class Poll:
    """The reference that `answers.remote()` gives: ready once a rollout of its engine has ended."""

    def __init__(self, engine: RolloutEngine) -> None:
        self.engine = engine


class RolloutEngine(Engine):
    """An engine of an adaptive run, without Ray or vLLM: sample k has k + 1 tokens and ends at once."""

    def __init__(self, reward: Reward) -> None:
        super().__init__(reward)
        self.jobs: list[Job] = []
        self.setups: list[SamplingSetup] = []
        self.ended: list[Answer] = []
        self.versions = (0, 0)
        self.capacity = Remote(lambda: (64, 0))
        self.ready = Remote(lambda: "the first")
        self.submit = Remote(self._submit)
        self.stop = Remote(lambda requests: Told())
        self.answers = Remote(self._answers)

    def _answers(self, stops: Sequence[Request] = (), jobs: Sequence[Job] = (), setup: Any = None) -> Poll:
        if jobs:
            self._submit(jobs, setup)
        return Poll(self)

    @property
    def drawn(self) -> int:
        return len(self.jobs)

    def _submit(self, jobs: Sequence[Job], setup: SamplingSetup) -> Told:
        self.setups.append(setup)
        for job in jobs:
            self.jobs.append(job)
            call = {"prompt": job.prompt, "label": job.label, "images": job.image}
            index = job.request.index
            response = self._answer(call, int(job.prompt), index)
            options = {"max_length": 10**6, "logprobs": response["rollout_log_probs"] is not None}
            result = result_of(response, **options)
            self.ended.append(Answer(job.request, index + 1, self.versions, "", result))
        return Told()


def end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several polls, the first whose engine has something to say comes first."""

    def wait(polls: Sequence[Any], num_returns: int, timeout: float | None = None) -> tuple[list[Any], list[Any]]:
        ready = [poll for poll in polls if not isinstance(poll, Poll) or poll.engine.ended][:num_returns]
        assert ready or timeout == 0, "waited for nothing"
        return ready, [poll for poll in polls if poll not in ready]

    def get(ref: Any, timeout: float | None = None) -> Any:
        if isinstance(ref, Told) and ref.error is not None:
            raise ref.error
        if not isinstance(ref, Poll):
            return ref
        ended, ref.engine.ended = ref.engine.ended, []
        return ended

    monkeypatch.setattr(ray, "put", lambda value: value)
    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", get)
