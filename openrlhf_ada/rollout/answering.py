"""Sampling n answers per problem from vLLM engines: no policy, no training, every answer with its score."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
import torch

from openrlhf_ada.core.fleet import Dispatcher, EngineDown, EngineUp
from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.eval.answers import AnswerRow
from openrlhf_ada.reward.grade import NoScoreError
from openrlhf_ada.rollout.engine import Answer, Job, SamplingSetup
from openrlhf_ada.rollout.engine_lines import SILENCE_S, EngineLines
from openrlhf_ada.rollout.ray_fleet import rollout_seed
from openrlhf_ada.rollout.responses import check_log_probs

ATTEMPTS = 2
"""How often an answer without a score is asked for, with the same seed: a reward server may have been away."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One answer to sample: the `index`-th to `problem`, whose `prompt` the model gets. `run`: the set of problems
    that it is for; another set may have the same problem."""

    run: str
    problem: str
    index: int
    prompt: str
    label: Any

    @property
    def request(self) -> Request:
        identity = hashlib.sha256(f"{self.run}/{self.problem}".encode()).digest()
        return Request(int.from_bytes(identity[:8], "big"), self.index)


class AnswerSampler:
    """Samples on engines that serve the model from disk. One that dies is started again and asked once more;
    seeds belong to (seed, set and problem, index), so that nothing changes.

    Args:
        tokenizer: decodes responses; the engines get `setup.tokenizer`.
        on_note: gets what a user should read.
    """

    def __init__(
        self, engines: Sequence[Any], setup: SamplingSetup, tokenizer: Any, seed: int, on_note: Callable[[str], None]
    ) -> None:
        self._lines = EngineLines(
            engines,
            lambda engine: [engines[engine].serve_from_disk.remote()],
            on_note,
            patience_s=setup.timeout_s + SILENCE_S,
        )
        self._setup = ray.put(setup)
        self._asks_logprobs = setup.params.logprobs is not None
        self._tokenizer = tokenizer
        self._seed = seed
        self._slots, _ = ray.get(engines[0].capacity.remote())

    def sample(self, wanted: Sequence[Asked], on_answer: Callable[[Asked, AnswerRow], None]) -> None:
        """Sample all, each once; `on_answer` gets each as soon as it is there, in no particular order."""
        self._lines.settle()
        dispatcher = Dispatcher(len(self._lines.engines), self._slots)
        by_request = {asked.request: asked for asked in wanted}
        if len(by_request) < len(wanted):
            raise ValueError(f"{len(wanted) - len(by_request)} answers are asked for twice")
        waiting = deque((asked.request, 1) for asked in wanted)
        attempts: dict[Request, int] = {}
        while waiting or attempts:
            self._send(dispatcher, waiting, attempts, by_request)
            for event in self._lines.wait():
                if isinstance(event, EngineUp):
                    dispatcher.reopen(event.engine)
                elif isinstance(event, EngineDown):
                    waiting.extendleft((request, attempts.pop(request)) for request in dispatcher.close(event.engine))
                else:
                    dispatcher.release(event.request)
                    attempt, row = attempts.pop(event.request), self._read(event, by_request[event.request])
                    if row.score is None and attempt < ATTEMPTS:
                        waiting.append((event.request, attempt + 1))
                    else:
                        on_answer(by_request[event.request], row)

    def _send(
        self,
        dispatcher: Dispatcher,
        waiting: deque[tuple[Request, int]],
        attempts: dict[Request, int],
        by_request: dict[Request, Asked],
    ) -> None:
        batches: dict[int, list[Job]] = {}
        for _ in range(min(dispatcher.room(self._slots), len(waiting))):
            request, attempt = waiting.popleft()
            attempts[request] = attempt
            asked = by_request[request]
            job = Job(request, asked.prompt, asked.label, None, rollout_seed(self._seed, request))
            batches.setdefault(dispatcher.place(request), []).append(job)
        for engine, jobs in batches.items():
            self._lines.submit(engine, jobs, self._setup)

    def _read(self, answer: Answer, asked: Asked) -> AnswerRow:
        response, problem, index = answer.response, asked.problem, asked.index
        if response is None:
            return AnswerRow(problem, index, "", answer.num_tokens, False, None, answer.error or "it was aborted")
        tokens = [
            token for start, end in response["action_ranges"] for token in response["observation_tokens"][start:end]
        ]
        text = self._tokenizer.decode(tokens, skip_special_tokens=True)
        common = (problem, index, text, len(tokens), bool(response["truncated"]))
        try:
            check_log_probs(response, asked=self._asks_logprobs)
        except NoScoreError as error:
            return AnswerRow(*common, None, str(error))
        if response["scores"] is None:
            return AnswerRow(*common, None, "the reward function returned no score")
        # A tensor from a reward file, a list from a server; of one answer either has one number.
        score = torch.as_tensor(response["scores"], dtype=torch.float64).item()
        if not math.isfinite(score):
            return AnswerRow(*common, None, f"the reward function returned the score {score}")
        # Of a grader of ours; other reward functions say no more than their score.
        grade = response.get("grade")
        return AnswerRow(
            *common,
            score,
            "" if grade is None else grade.cause,
            None if grade is None else round(grade.seconds, 6),
            _surprise(response),
        )


def _surprise(response: dict[str, Any]) -> float | None:
    """Mean negative log-probability of the sampled tokens, nats."""
    values = response["rollout_log_probs"]
    if values is None:
        return None
    sampled = [value for start, end in response["action_ranges"] for value in values[start:end]]
    return -sum(sampled) / len(sampled) if sampled else 0.0
