"""What rollout/tracked_engine.py asks vLLM for: nobody reads what is not made, and the rest stays the same."""

from __future__ import annotations

import ast
import asyncio
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from openrlhf.utils.agent import AgentExecutorBase, AgentInstanceBase, MultiTurnAgentExecutor, SingleTurnAgentExecutor
from vllm import SamplingParams
from vllm.logprobs import FlatLogprobs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.metrics.stats import IterationStats
from vllm.v1.outputs import LogprobsLists

from openrlhf_ada.demo import toy
from openrlhf_ada.host.experiences import experience_of
from openrlhf_ada.rollout.messages import result_of
from openrlhf_ada.rollout.tracked_engine import ask_for_tokens_only, reads_tokens_only

AGENT = "utils/agent.py"


def read_of(host_source: Any, executor: str, *names: str) -> set[str]:
    """Attributes that an executor's method reads of these variables."""
    method = host_source.find(AGENT, f"{executor}.execute")
    return {
        node.attr for node in ast.walk(method) if isinstance(node, ast.Attribute) and ast.unparse(node.value) in names
    }


def test_single_turn_executor_reads_tokens_alone(host_source: Any) -> None:
    """Rewards get text that OpenRLHF makes of the token ids; of a log-probability it wants the sampled token's."""
    assert read_of(host_source, "SingleTurnAgentExecutor", "request_output") == {"outputs"}
    of_answer = read_of(host_source, "SingleTurnAgentExecutor", "generation_output")
    assert of_answer == {"token_ids", "finish_reason", "logprobs"}
    text = host_source.text(AGENT, "SingleTurnAgentExecutor.execute")
    assert "query = hf_tokenizer.decode(output['observation_tokens'], skip_special_tokens=False)" in text
    assert "for token_id, logprob_dict in zip(action_token_ids, generation_output.logprobs)" in text
    assert read_of(host_source, "SingleTurnAgentExecutor", "logprob_dict") == {"get"}
    assert read_of(host_source, "SingleTurnAgentExecutor", "token_logprob") == {"logprob"}


def test_agents_get_what_they_ask_for(host_source: Any) -> None:
    """OpenRLHF's reads text, and a user's may read anything."""
    assert "action_text = request_output.outputs[0].text" in host_source.text(AGENT, "MultiTurnAgentExecutor.execute")

    class Own(SingleTurnAgentExecutor):
        pass

    class Agent(AgentExecutorBase):
        async def execute(self, *_: Any, **__: Any) -> None: ...

    assert reads_tokens_only(SingleTurnAgentExecutor())
    assert not any(map(reads_tokens_only, (Own(), Agent(), MultiTurnAgentExecutor(AgentInstanceBase))))


# -- vLLM's output processor ------------------------------------------------------------------------------------------

ANSWER = "12+34=46"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return toy._build_tokenizer()


def answer_of(
    tokenizer: Any,
    params: SamplingParams,
    tokens: Sequence[int],
    *,
    statistics: bool,
    aborted: bool = False,
    last: FinishReason | None = FinishReason.LENGTH,
) -> tuple[Any, list[str]]:
    """vLLM's answer when its core samples these tokens, one a step, and the requests that it tells the core to end.

    `statistics`: are they made? `aborted`: before the last token comes. `last`: what the core says with it.
    """
    params.output_kind = RequestOutputKind.FINAL_ONLY
    processor = OutputProcessor(tokenizer, log_stats=statistics)
    request = EngineCoreRequest(
        request_id="inside",
        external_req_id="r",
        prompt_token_ids=[1, 2],
        mm_features=None,
        sampling_params=params,
        pooling_params=None,
        arrival_time=time.time(),
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )
    answers: list[Any] = []

    class Queue:
        def put(self, output: Any) -> None:
            answers.append(output)

    processor.add_request(request, None, queue=Queue())  # type: ignore[arg-type]
    ended: list[str] = []
    for place, token in enumerate(tokens):
        is_last = place == len(tokens) - 1
        if is_last and aborted:
            processor.abort_requests(["r"], internal=False)
            break
        output = EngineCoreOutput(
            "inside",
            [token],
            new_logprobs=sampled_logprobs(token, place, params.logprobs),
            finish_reason=last if is_last else None,
        )
        step = IterationStats() if statistics else None
        ended += processor.process_outputs([output], time.monotonic(), step).reqs_to_abort
        if answers:
            break
    (answer,) = answers
    return answer.outputs[0], ended


def sampled_logprobs(token: int, place: int, asked: int | None) -> LogprobsLists | None:
    """As a core sends them: of the sampled token, and then of the `asked` most probable ones."""
    if asked is None:
        return None
    ids = [token, 0, 1, 2][: 1 + asked]
    values = [-0.1 * (place + 1) - 2.0 * k for k in range(len(ids))]
    return LogprobsLists(np.array([ids], np.int32), np.array([values], np.float32), np.array([2], np.int32))


def as_the_host_reads(completion: Any) -> list[float]:
    return [
        of_position[token].logprob
        for token, of_position in zip(completion.token_ids, completion.logprobs, strict=True)
    ]


@pytest.mark.parametrize("logprobs", [None, 1])
@pytest.mark.parametrize("aborted", [False, True])
def test_answers_stay_the_same(tokenizer: Any, logprobs: int | None, aborted: bool) -> None:
    tokens = tokenizer.encode(ANSWER, add_special_tokens=False)
    plain, lean = SamplingParams(logprobs=logprobs), SamplingParams(logprobs=logprobs)
    ask_for_tokens_only(lean)
    before, _ = answer_of(tokenizer, plain, tokens, statistics=True, aborted=aborted)
    after, _ = answer_of(tokenizer, lean, tokens, statistics=False, aborted=aborted)
    assert before.text and not after.text
    assert list(after.token_ids) == list(before.token_ids) == tokens[: len(tokens) - aborted]
    assert (after.finish_reason, after.stop_reason) == (before.finish_reason, before.stop_reason)
    if logprobs is None:
        assert after.logprobs is None
    else:
        assert isinstance(after.logprobs, FlatLogprobs)
        assert as_the_host_reads(after) == as_the_host_reads(before)


def test_stop_strings_still_end_an_answer(tokenizer: Any) -> None:
    tokens = tokenizer.encode(ANSWER, add_special_tokens=False)
    lean = SamplingParams(stop=["="], logprobs=1)
    ask_for_tokens_only(lean)
    answer, ended = answer_of(tokenizer, lean, tokens, statistics=False)
    assert (answer.finish_reason, answer.stop_reason, answer.text) == ("stop", "=", "12+34")
    assert list(answer.token_ids) == tokens[: ANSWER.index("=") + 1]
    assert ended == ["inside"], "vLLM's core is told to end it"
    assert len(as_the_host_reads(answer)) == len(answer.token_ids)


@pytest.mark.parametrize(
    ("ends", "core", "reason"),
    [
        ({"stop": ["4="]}, None, "stop"),
        ({"stop": ["4="], "include_stop_str_in_output": True}, None, "stop"),
        # vLLM's core looks for these itself.
        ({"stop_token_ids": [5]}, FinishReason.STOP, "stop"),
        ({"stop": ["no such"]}, FinishReason.LENGTH, "length"),
    ],
)
def test_all_that_was_sampled_is_trained_and_nothing_else(
    tokenizer: Any, ends: dict[str, Any], core: FinishReason | None, reason: str
) -> None:
    """Nobody adds an end token that the policy has not sampled; rewards read the stop string, as it is trained."""
    sampled = tokenizer.encode("12+34=", add_special_tokens=False)
    lean = SamplingParams(logprobs=1, **ends)
    ask_for_tokens_only(lean)
    answer, _ = answer_of(tokenizer, lean, sampled + ([7, 7] if core is None else []), statistics=False, last=core)
    assert answer.finish_reason == reason
    asked: list[Any] = []

    class Engine:
        async def generate(self, prompt: Any, params: SamplingParams, multi_modal_data: Any) -> Any:
            return SimpleNamespace(outputs=[answer])

    executor = SingleTurnAgentExecutor()
    executor.reward_endpoints = ["here"]
    executor.reward_func = lambda *given: asked.append(given) or {"rewards": torch.ones(1)}
    call = executor.execute("7=", "", SamplingParams(logprobs=1, max_tokens=20, **ends), 40, tokenizer, Engine())
    response = asyncio.run(call)
    assert response["truncated"] is (reason == "length")
    assert asked == [(["7=12+34="], ["7="], [""])]
    compact = result_of(response, max_length=40, logprobs=True).response()
    trained = experience_of(compact, 40, rewards=torch.ones(1), scores=torch.ones(1), info={})
    assert trained.sequences[0, 1:][trained.action_mask[0].bool()].tolist() == sampled
    assert int(trained.response_length[0]) == len(sampled) and len(trained.sequences[0]) == 2 + len(sampled)


def test_parameters_stay_valid() -> None:
    """They are changed after vLLM has checked them."""
    for given in ({}, {"stop": ["="]}, {"logprobs": 5}, {"logprobs": 0}):
        params = SamplingParams(**given)
        ask_for_tokens_only(params)
        params._verify_args()
        assert params.num_logprobs == (0 if "logprobs" in given else None)
