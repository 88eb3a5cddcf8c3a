"""vLLM engines in Ray actors as the scheduler sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

import numpy as np
import ray
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_ada.core.fleet import Aborted, EngineDown, EngineUp, Failed, Finished
from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.core.types import PromptKey, Sample
from openrlhf_ada.reward.grade import NoScoreError
from openrlhf_ada.rollout.engine import Answer, Job, SamplingSetup
from openrlhf_ada.rollout.engine_lines import EngineLines
from openrlhf_ada.rollout.prompts import PromptRequest

ScoreAnswers: TypeAlias = Callable[[Sequence[Sequence[int]]], Sequence[float]]
"""Tokens of prompt and response, by answer -> one score each."""


class Convert(Protocol):
    """Makes a sample and an experience of a response; raises NoScoreError."""

    def __call__(
        self, request: Request, response: dict[str, Any], versions: tuple[int, int]
    ) -> tuple[Sample, Experience]: ...


class RayFleet:
    """The engines for one step's prompts, `requests`.

    `seed` is the run's: a rollout's own depends on it and on the rollout's identity, not on the engine, the order or
    the number of engines. `score`: gives the answers of engines without a reward function their scores.
    """

    def __init__(
        self,
        lines: EngineLines,
        requests: Mapping[PromptKey, PromptRequest],
        setup: SamplingSetup,
        convert: Convert,
        *,
        seed: int,
        score: ScoreAnswers | None = None,
    ) -> None:
        self._lines = lines
        self._requests = requests
        self._convert = convert
        self._seed = seed
        self._score = score
        self._setup = ray.put(setup)

    @property
    def num_engines(self) -> int:
        return len(self._lines.engines)

    def submit(self, engine: int, requests: Sequence[Request]) -> None:
        jobs: list[Job] = []
        for request in requests:
            prompt = self._requests[request.key]
            jobs.append(Job(request, prompt.prompt, prompt.label, prompt.image, rollout_seed(self._seed, request)))
        self._lines.submit(engine, jobs, self._setup)

    def abort(self, engine: int, requests: Sequence[Request]) -> None:
        self._lines.stop(engine, requests)

    def wait(self) -> Sequence[Finished[Experience] | Aborted | Failed | EngineDown | EngineUp]:
        events = self._scored(self._lines.wait())
        return [self._read(event) if isinstance(event, Answer) else event for event in events]

    def _scored(self, events: list[Answer | EngineDown | EngineUp]) -> list[Answer | EngineDown | EngineUp]:
        """The same, with a score and a reward in every response."""
        if self._score is None:
            return events
        responses = {i: e.response for i, e in enumerate(events) if isinstance(e, Answer) and e.response is not None}
        if not responses:
            return events
        scores = self._score([response["observation_tokens"] for response in responses.values()])
        for (i, response), score in zip(responses.items(), scores, strict=True):
            event = events[i]
            assert isinstance(event, Answer)
            events[i] = replace(event, response=response | {"reward": score, "scores": score})
        return events

    def _read(self, answer: Answer) -> Finished[Experience] | Aborted | Failed:
        request = answer.request
        if answer.error:
            return Failed(request, answer.num_tokens, answer.error)
        if answer.response is None:
            return Aborted(request, answer.num_tokens)
        try:
            return Finished(request, *self._convert(request, answer.response, answer.versions))
        except NoScoreError as error:
            return Failed(request, answer.num_tokens, str(error))


def rollout_seed(run_seed: int, request: Request) -> int:
    """A seed of 63 bits from the identity of a rollout: the same on any number of engines, in any order.

    And at every attempt: were others sampled until one has a score, those that tend to have none, such as long ones
    before a time limit, would be rarer than the policy makes them.
    """
    identity = [run_seed, request.key, request.index]
    return int(np.random.SeedSequence(identity).generate_state(1, np.uint64)[0] >> np.uint64(1))
