"""vLLM engines in Ray actors as the scheduler sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from openrlhf_ada.core.fleet import Aborted, EngineDown, EngineUp, Failed, Finished
from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.core.types import PromptKey, Sample
from openrlhf_ada.reward.grade import NoScoreError
from openrlhf_ada.rollout.engine import Job, SamplingSetup
from openrlhf_ada.rollout.engine_connections import EngineConnections
from openrlhf_ada.rollout.messages import Answer, Result
from openrlhf_ada.rollout.prompts import PromptRequest

ScoreAnswers: TypeAlias = Callable[[Sequence[Sequence[int]]], Sequence[float]]
"""Tokens of prompt and response, by answer -> one score each."""


ToSample: TypeAlias = Callable[[Request, Result, tuple[int, int]], Sample]
"""Makes a sample of a rollout's result and the versions that sampled it; raises NoScoreError."""


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
        # By value. For an object in its store Ray keeps a call to the owner open, and where the owner leaves Ray, that
        # call can crash it a moment later.
        self._setup = setup
        self._seed = seed

    @property
    def num_engines(self) -> int:
        return len(self._connections.engines)

    def submit(self, engine: int, requests: Sequence[Request]) -> None:
        jobs = [Job(request, *self._prompt_of(request), self._seed) for request in requests]
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
        to_sample: ToSample,
        *,
        seed: int,
        score: ScoreAnswers | None = None,
    ) -> None:
        def prompt_of(request: Request) -> tuple[str, Any, Any]:
            prompt = requests[request.key]
            return prompt.prompt, prompt.label, prompt.image

        super().__init__(connections, prompt_of, setup, seed)
        self._requests, self._to_sample, self._score = requests, to_sample, score

    def wait(self) -> Sequence[Finished[Result] | Aborted | Failed | EngineDown | EngineUp]:
        events = self._scored(self._connections.wait())
        return [self._read(event) if isinstance(event, Answer) else event for event in events]

    def _scored(self, events: list[Answer | EngineDown | EngineUp]) -> list[Answer | EngineDown | EngineUp]:
        """The same, with a score and a reward in every response."""
        if self._score is None:
            return events
        results = [event.result for event in events if isinstance(event, Answer) and event.result is not None]
        if not results:
            return events
        # Single precision, which OpenRLHF makes of a number.
        given = self._score([result.response()["observation_tokens"] for result in results])
        scores: list[float] = np.asarray(given, dtype=np.float32).tolist()
        scored = iter([Result(score, score, *result[2:]) for score, result in zip(scores, results, strict=True)])
        return [
            Answer(*event[:4], next(scored)) if isinstance(event, Answer) and event.result is not None else event
            for event in events
        ]

    def _read(self, answer: Answer) -> Finished[Result] | Aborted | Failed:
        request, result = answer.request, answer.result
        if answer.error:
            return Failed(request, answer.num_tokens, answer.error)
        if result is None:
            return Aborted(request, answer.num_tokens)
        try:
            return Finished(request, self._to_sample(request, result, answer.versions), result)
        except NoScoreError as error:
            return Failed(request, answer.num_tokens, str(error))
        except ValueError as error:
            raise ValueError(f"Row {self._requests[request.key].row} of the training data: {error}") from error
