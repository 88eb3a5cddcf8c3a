"""vLLM engines in Ray actors as the scheduler sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import ray
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_ada.core.fleet import Aborted, Failed, Finished
from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.core.types import PromptKey, Sample
from openrlhf_ada.rollout.engine import Answer, Job, SamplingSetup
from openrlhf_ada.rollout.prompts import PromptRequest


class Convert(Protocol):
    """Makes a sample and an experience of a response; None where the response has no verdict."""

    def __call__(
        self, request: Request, response: dict[str, Any], version: int
    ) -> tuple[Sample, Experience] | None: ...


class EngineLines:
    """One open question per engine: which rollouts have ended? It stays open from step to step.

    Errors of the engines are raised here, by `wait`: nothing is told to an engine without asking how it went.
    """

    def __init__(self, engines: Sequence[Any]) -> None:
        self.engines = list(engines)
        self._engine_of: dict[Any, int] = {}
        self._told: list[Any] = []

    def submit(self, engine: int, jobs: Sequence[Job], setup: Any) -> None:
        self._told.append(self.engines[engine].submit.remote(jobs, setup))

    def stop(self, engine: int, requests: Sequence[Request]) -> None:
        self._told.append(self.engines[engine].stop.remote(list(requests)))

    def wait(self) -> list[Answer]:
        """Block until a rollout has ended somewhere; all that have, engine by engine."""
        asked = set(self._engine_of.values())
        for index, engine in enumerate(self.engines):
            if index not in asked:
                self._engine_of[engine.answers.remote()] = index
        answers: list[Answer] = []
        while not answers:
            refs = [*self._engine_of, *self._told]
            first, rest = ray.wait(refs, num_returns=1)
            more, _ = ray.wait(rest, num_returns=len(rest), timeout=0) if rest else ([], [])
            for ref in [*first, *more]:
                if ref in self._engine_of:
                    del self._engine_of[ref]
                    answers += ray.get(ref)
                else:
                    self._told.remove(ref)
                    ray.get(ref)
        return answers


class RayFleet:
    """The engines for one step's prompts, `requests`.

    `version`: weight updates that the engines have had so far. `seed` is the run's: a rollout's own depends on it and
    on the rollout's identity, not on the engine, the order or the number of engines.
    """

    def __init__(
        self,
        lines: EngineLines,
        requests: Mapping[PromptKey, PromptRequest],
        setup: SamplingSetup,
        convert: Convert,
        *,
        seed: int,
        version: Callable[[], int],
    ) -> None:
        self._lines = lines
        self._requests = requests
        self._convert = convert
        self._seed = seed
        self._version = version
        self._versions: dict[Request, int] = {}
        self._setup = ray.put(setup)

    @property
    def num_engines(self) -> int:
        return len(self._lines.engines)

    def submit(self, engine: int, requests: Sequence[Request]) -> None:
        version = self._version()
        jobs: list[Job] = []
        for request in requests:
            prompt = self._requests[request.key]
            self._versions[request] = version
            jobs.append(Job(request, prompt.prompt, prompt.label, prompt.image, rollout_seed(self._seed, request)))
        self._lines.submit(engine, jobs, self._setup)

    def abort(self, engine: int, requests: Sequence[Request]) -> None:
        self._lines.stop(engine, requests)

    def wait(self) -> Sequence[Finished[Experience] | Aborted | Failed]:
        return [self._read(answer) for answer in self._lines.wait()]

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
    """A seed of 63 bits from the identity of a rollout: the same on any number of engines, in any order."""
    identity = [run_seed, request.key, request.index, request.attempt]
    return int(np.random.SeedSequence(identity).generate_state(1, np.uint64)[0] >> np.uint64(1))
