"""Sampling n answers per problem from vLLM engines: no policy, no training, every answer with its score."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import ray

from openrlhf_ada.core.fleet import ATTEMPTS, Dispatcher, Lost
from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.eval.answers import Asked, Sampled
from openrlhf_ada.reward.grade import NoScoreError
from openrlhf_ada.reward.returned import number_in
from openrlhf_ada.rollout.engine import SamplingSetup
from openrlhf_ada.rollout.engine_connections import SILENCE_S, EngineConnections
from openrlhf_ada.rollout.messages import Answer
from openrlhf_ada.rollout.ray_fleet import EngineFleet


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

    def sample(self, wanted: Sequence[Asked], on_answer: Callable[[Asked, Sampled], None]) -> None:
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
                sampled = self._read(event)
                if sampled.score is None and request.attempt + 1 < ATTEMPTS:
                    waiting.append(Request(request.key, request.index, request.attempt + 1))
                else:
                    on_answer(asked, sampled)

    def _read(self, answer: Answer) -> Sampled:
        result = answer.result
        if result is None:
            return Sampled("", answer.num_tokens, False, None, answer.error or "it was aborted")
        response = result.response()
        sequence = response["observation_tokens"].tolist()
        tokens = [token for start, end in response["action_ranges"] for token in sequence[start:end]]
        common = (self._tokenizer.decode(tokens, skip_special_tokens=True), len(tokens), bool(response["truncated"]))
        if result.no_score:
            return Sampled(*common, None, result.no_score)
        try:
            score = number_in(response["scores"])
        except NoScoreError as error:
            return Sampled(*common, None, str(error))
        # Only our graders give one; other reward functions give a score only.
        grade = result.grade
        return Sampled(
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
