"""vLLM engines in Ray actors as the scheduler sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

import ray
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_ada.core.fleet import Aborted, EngineDown, EngineUp, Failed, Finished
from openrlhf_ada.core.scheduling import Request, rollout_seed
from openrlhf_ada.core.types import PromptKey, Sample
from openrlhf_ada.reward.grade import NoScoreError
from openrlhf_ada.rollout.engine import Answer, Job, SamplingSetup
from openrlhf_ada.rollout.engine_connections import EngineConnections
from openrlhf_ada.rollout.prompts import PromptRequest

ScoreAnswers: TypeAlias = Callable[[Sequence[Sequence[int]]], Sequence[float]]
"""Tokens of prompt and response, by answer -> one score each."""


class Convert(Protocol):
    """Makes a sample and an experience of a response; raises NoScoreError."""

    def __call__(
        self, request: Request, response: dict[str, Any], versions: tuple[int, int]
    ) -> tuple[Sample, Experience]: ...


class EngineFleet:
    """vLLM engines as a dispatcher sees them; their answers come as they are.

    `prompt_of`: prompt, label and image of a request's rollout. `seed`: the run's. A rollout's own seed depends on it
    and on the rollout's identity, not on the engine, the order or the number of engines.
    """

    def __init__(
        self,
        connections: EngineConnections,
        prompt_of: Callable[[Request], tuple[str, Any, Any]],
        setup: SamplingSetup,
        seed: int,
    ) -> None:
        self._connections = connections
        self._prompt_of = prompt_of
        self._setup = ray.put(setup)
        self._seed = seed

    @property
    def num_engines(self) -> int:
        return len(self._connections.engines)

    def submit(self, engine: int, requests: Sequence[Request]) -> None:
        jobs = [Job(request, *self._prompt_of(request), rollout_seed(self._seed, request)) for request in requests]
        self._connections.submit(engine, jobs, self._setup)

    def abort(self, engine: int, requests: Sequence[Request]) -> None:
        self._connections.stop(engine, requests)

    def wait(self) -> Sequence[Any]:
        """Answers, EngineDown and EngineUp."""
        return self._connections.wait()


class RayFleet(EngineFleet):
    """The engines for one step's prompts, `requests`; answers become samples.

    `score`: gives the answers of engines without a reward function their scores.
    """

    def __init__(
        self,
        connections: EngineConnections,
        requests: Mapping[PromptKey, PromptRequest],
        setup: SamplingSetup,
        convert: Convert,
        *,
        seed: int,
        score: ScoreAnswers | None = None,
    ) -> None:
        def prompt_of(request: Request) -> tuple[str, Any, Any]:
            prompt = requests[request.key]
            return prompt.prompt, prompt.label, prompt.image

        super().__init__(connections, prompt_of, setup, seed)
        self._convert = convert
        self._score = score

    def wait(self) -> Sequence[Finished[Experience] | Aborted | Failed | EngineDown | EngineUp]:
        events = self._scored(self._connections.wait())
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
