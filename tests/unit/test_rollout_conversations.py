"""OpenRLHF's executor of several turns: length, limit and truncation mean sampled tokens, whatever is inserted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor, SingleTurnAgentExecutor
from vllm import SamplingParams

from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.host.generator import HostGenerator
from openrlhf_ada.rollout.conversations import count_sampled_tokens
from openrlhf_ada.rollout.engine import AdaRolloutActor, SamplingSetup
from openrlhf_ada.rollout.tracked_engine import Job, TrackedEngine

PROMPT, INSERTED, PER_TURN = "prompt", "x" * 9, 3


class Llm:
    """Samples PER_TURN tokens a turn, or as many as it may."""

    async def generate(self, prompt: Any, params: SamplingParams, request_id: str) -> AsyncIterator[Any]:
        await asyncio.sleep(0)
        count = min(PER_TURN, params.max_tokens or PER_TURN)
        reason = "stop" if count == PER_TURN else "length"
        yield SimpleNamespace(
            outputs=[SimpleNamespace(token_ids=[1] * count, text="a" * count, finish_reason=reason, logprobs=None)]
        )


def tokenize(text: str, **_: Any) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.tensor([[5] * len(text)], dtype=torch.long)}


def actor_with(turns: int, executor: Any = None) -> Any:
    """Its environment is done after so many turns; before that it inserts INSERTED."""

    class Agent(AgentInstanceBase):
        def __init__(self) -> None:
            self.turn = 0

        async def step(self, state_dict: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
            self.turn += 1
            done, value = self.turn == turns, torch.tensor(1.0)
            return {"rewards": value, "environment_feedback": "" if done else INSERTED, "done": done}

    actor: Any = AdaRolloutActor.__new__(AdaRolloutActor)
    actor.open_gate()
    actor._admit(1)
    actor.llm, actor._mm_pad_token_ids = TrackedEngine(Llm(), actor), None
    actor.executor = executor or MultiTurnAgentExecutor(Agent)
    actor._running, actor._ended = {}, asyncio.Queue()
    count_sampled_tokens(actor.executor)
    return actor


def sampled(turns: int, limit: int | None, max_length: int = 99) -> list[tuple[int, int, bool]]:
    """(trained tokens, response length, truncated) of two conversations in mode off, then of one in the others."""
    params = SamplingParams(max_tokens=limit)
    job = Job(Request(0, 0), PROMPT, "", None, 0)

    async def scenario() -> tuple[list[dict[str, Any]], Any]:
        actor = actor_with(turns)
        call = {"max_length": max_length, "hf_tokenizer": tokenize, "num_samples": 2}
        plain = await actor.generate_responses(prompt=PROMPT, label="", sampling_params=params, **call)
        await actor.submit([job], SamplingSetup(params, max_length, tokenize, 9.0))
        (answer,) = await actor.answers()
        return plain, answer

    plain, answer = asyncio.run(scenario())
    assert answer.error == ""
    read_by_host = object.__new__(HostGenerator)
    found = [read_by_host._process_response_into_experience(response, max_len=max_length) for response in plain]
    of_off = [(int(e.action_mask.sum()), e.response_length.item(), e.truncated.item()) for e in found]
    return [*of_off, (answer.result.num_tokens, answer.num_tokens, answer.result.truncated)]


@pytest.mark.parametrize(
    ("turns", "limit", "max_length", "tokens", "truncated"),
    [
        (2, 20, 99, 6, False),  # 15 tokens from the first to the last, of which 9 are the environment's
        (2, 6, 99, 6, False),  # done with the last token that it may sample
        (3, 6, 99, 6, True),  # would go on
        (3, 7, 99, 7, True),  # its third answer is cut off
        (3, None, 99, 9, False),
        (3, None, 27, 6, True),  # --data.max_len ends it before its third turn
    ],
)
def test_conversations_count_sampled_tokens(
    turns: int, limit: int | None, max_length: int, tokens: int, truncated: bool
) -> None:
    assert sampled(turns, limit, max_length) == [(tokens, tokens, truncated)] * 3


def test_other_executors_are_left_alone() -> None:
    executor = SingleTurnAgentExecutor()
    before = dict(vars(executor))
    count_sampled_tokens(executor)
    assert vars(executor) == before
