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

from openrlhf_ada.core.fleet import Dispatcher, Lost
from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.eval.answers import AnswerRow
from openrlhf_ada.rollout.engine import SamplingSetup
from openrlhf_ada.rollout.engine_connections import SILENCE_S, EngineConnections
from openrlhf_ada.rollout.messages import Answer
from openrlhf_ada.rollout.ray_fleet import EngineFleet

ATTEMPTS = 2
"""How often an answer is sampled until it has a score, with the same seed: a reward server may have been away."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One answer to sample: the `index`-th to `problem`, whose `prompt` the model gets. `problem_set`: the set that
    the problem is from; another set may have the same problem."""

    problem_set: str
    problem: str
    index: int
    prompt: str
    label: Any

    @property
    def request(self) -> Request:
        identity = hashlib.sha256(f"{self.problem_set}/{self.problem}".encode()).digest()
        return Request(int.from_bytes(identity[:8], "big"), self.index)


class AnswerSampler:
    """Samples on engines that serve the model from disk. An engine that dies is restarted, and its answers are sampled
    again. Their seeds depend on (seed, set, problem, index) only, so they are the same answers.

    Args:
        tokenizer: decodes responses; the engines get `setup.tokenizer`.
        on_note: gets what a user should read.
    """

    def __init__(
        self, engines: Sequence[Any], setup: SamplingSetup, tokenizer: Any, seed: int, on_note: Callable[[str], None]
    ) -> None:
        self._connections = EngineConnections(
            engines,
            lambda engine: [engines[engine].serve_from_disk.remote()],
            on_note,
            patience_s=setup.timeout_s + SILENCE_S,
        )
        self._setup = setup
        self._tokenizer = tokenizer
        self._seed = seed
        self._slots, _ = ray.get(engines[0].capacity.remote())

    def sample(self, wanted: Sequence[Asked], on_answer: Callable[[Asked, AnswerRow], None]) -> None:
        """Sample all, each once; `on_answer` gets each as soon as it is there, in no particular order."""
        self._connections.wait_until_ready()
        asked_of = {(asked.request.key, asked.index): asked for asked in wanted}
        if len(asked_of) < len(wanted):
            raise ValueError(f"{len(wanted) - len(asked_of)} answers are asked for twice")

        def prompt_of(request: Request) -> tuple[str, Any, Any]:
            asked = asked_of[request.key, request.index]
            return asked.prompt, asked.label, None

        dispatcher = Dispatcher[Answer](
            EngineFleet(self._connections, prompt_of, self._setup, self._seed), self._slots
        )
        waiting = deque(asked.request for asked in wanted)
        while waiting or dispatcher.num_outstanding:
            dispatcher.send((lambda: waiting.popleft() if waiting else None, self._slots))
            for event in dispatcher.wait():
                if isinstance(event, Lost):
                    waiting.appendleft(event.request)
                    continue
                request, asked = event.request, asked_of[event.request.key, event.request.index]
                row = self._read(event, asked)
                if row.score is None and request.attempt + 1 < ATTEMPTS:
                    waiting.append(Request(request.key, request.index, request.attempt + 1))
                else:
                    on_answer(asked, row)

    def _read(self, answer: Answer, asked: Asked) -> AnswerRow:
        result, problem, index = answer.result, asked.problem, asked.index
        if result is None:
            return AnswerRow(problem, index, "", answer.num_tokens, False, None, answer.error or "it was aborted")
        response = result.response()
        sampled = response["observation_tokens"].tolist()
        tokens = [token for start, end in response["action_ranges"] for token in sampled[start:end]]
        text = self._tokenizer.decode(tokens, skip_special_tokens=True)
        common = (problem, index, text, len(tokens), bool(response["truncated"]))
        if result.no_score:
            return AnswerRow(*common, None, result.no_score)
        if response["scores"] is None:
            return AnswerRow(*common, None, "the reward function returned no score")
        # A tensor from a reward file, or a list from a server; both hold the one number of this answer.
        score = torch.as_tensor(response["scores"], dtype=torch.float64).item()
        if not math.isfinite(score):
            return AnswerRow(*common, None, f"the reward function returned the score {score}")
        # Only our graders give one; other reward functions give a score only.
        grade = result.grade
        return AnswerRow(
            *common,
            score,
            "" if grade is None else grade.cause,
            None if grade is None else round(grade.seconds, 6),
            _mean_surprise(response),
        )


def _mean_surprise(response: dict[str, Any]) -> float | None:
    """Mean negative log-probability of the sampled tokens, nats."""
    values = response["rollout_log_probs"]
    if values is None:
        return None
    sampled = [value for start, end in response["action_ranges"] for value in values[start:end].tolist()]
    return -sum(sampled) / len(sampled) if sampled else 0.0
