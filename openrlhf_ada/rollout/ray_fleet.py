"""vLLM engines in Ray actors as the scheduler sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import ray
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_ada.core.fleet import Aborted, EngineDown, EngineUp, Failed, Finished
from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.core.types import PromptKey, Sample
from openrlhf_ada.rollout.engine import Answer, Job, SamplingSetup
from openrlhf_ada.rollout.engine_lines import EngineLines
from openrlhf_ada.rollout.prompts import PromptRequest


class Convert(Protocol):
    """Makes a sample and an experience of a response; None where the response has no verdict."""

    def __call__(
        self, request: Request, response: dict[str, Any], version: int
    ) -> tuple[Sample, Experience] | None: ...


class RayFleet:
    """The engines for one step's prompts, `requests`.

    `seed` is the run's: a rollout's own depends on it and on the rollout's identity, not on the engine, the order or
    the number of engines.
    """

    def __init__(
        self,
        lines: EngineLines,
        requests: Mapping[PromptKey, PromptRequest],
        setup: SamplingSetup,
        convert: Convert,
        *,
        seed: int,
    ) -> None:
        self._lines = lines
        self._requests = requests
        self._convert = convert
        self._seed = seed
        self._versions: dict[Request, int] = {}
        self._setup = ray.put(setup)

    @property
    def num_engines(self) -> int:
        return len(self._lines.engines)

    def submit(self, engine: int, requests: Sequence[Request]) -> None:
        version = self._lines.version_of(engine)
        jobs: list[Job] = []
        for request in requests:
            prompt = self._requests[request.key]
            self._versions[request] = version
            jobs.append(Job(request, prompt.prompt, prompt.label, prompt.image, rollout_seed(self._seed, request)))
        self._lines.submit(engine, jobs, self._setup)

    def abort(self, engine: int, requests: Sequence[Request]) -> None:
        self._lines.stop(engine, requests)

    def wait(self) -> Sequence[Finished[Experience] | Aborted | Failed | EngineDown | EngineUp]:
        return [self._read(event) if isinstance(event, Answer) else event for event in self._lines.wait()]

    def _read(self, answer: Answer) -> Finished[Experience] | Aborted | Failed:
        request = answer.request
        version = self._versions.pop(request)
        if answer.error:
            return Failed(request, answer.num_tokens, answer.error)
        if answer.response is None:
            return Aborted(request, answer.num_tokens)
        converted = self._convert(request, answer.response, version)
        if converted is None:
            return Failed(request, answer.num_tokens, "the reward function returned no reward")
        return Finished(request, *converted)


def rollout_seed(run_seed: int, request: Request) -> int:
    """A seed of 63 bits from the identity of a rollout: the same on any number of engines, in any order.

    And at every attempt: were others sampled until one has a verdict, those that tend to have none, such as long ones
    before a time limit, would be rarer than the policy makes them.
    """
    identity = [run_seed, request.key, request.index]
    return int(np.random.SeedSequence(identity).generate_state(1, np.uint64)[0] >> np.uint64(1))
