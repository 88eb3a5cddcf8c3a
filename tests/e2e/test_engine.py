"""Our rollout actor on the real vLLM, without Ray: seeds, stops, failures and time limits, one engine for all."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Toy, run_script

pytestmark = pytest.mark.e2e

REWARDS = """
import time

def reward_func(queries, prompts, labels):
    if labels[0] == "raise":
        raise ValueError("no such label")
    if labels[0] == "sleep":
        time.sleep(3)
    return {"rewards": 1.0, "scores": 1.0}
"""

SCRIPT = """
import asyncio, json, os, sys, time
from openrlhf_ada.platforms import without_gpu
without_gpu.activate()
os.environ |= without_gpu.worker_environment() | {"VLLM_LOGGING_LEVEL": "ERROR", "RAY_ADDRESS": "none"}
from vllm import SamplingParams
from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.rollout.engine import AdaRolloutActor, Job, SamplingSetup
from openrlhf_ada.host.tokenizer import SharedTokenizer
import torch
import vllm.utils.cpu_triton_utils as cpu_kernels
from transformers import AutoModelForCausalLM

def expand(output, values, ends, replace_from, replace_to, **_):
    values = torch.where(values == replace_from, replace_to, values)
    output.copy_(values.repeat_interleave(torch.diff(ends, prepend=ends.new_zeros(1))))

# As a GPU's. vLLM's own fills a copy, so drafted tokens have any temperature (tests/contract/test_engine_options.py).
# Its core imports this file as well.
cpu_kernels.expand_kernel.func = expand

model, rewards = sys.argv[1:]
tokenizer = SharedTokenizer(model, use_fast=True).load()

def setup(max_tokens, timeout_s=60.0):
    params = SamplingParams(temperature=1.0, max_tokens=max_tokens, min_tokens=max_tokens)
    return SamplingSetup(params, 60, tokenizer, timeout_s)

def job(index, *, seed=7, label="", attempt=0, prompt="1+1="):
    return Job(Request(0, index, attempt), prompt, label, None, seed)

async def gather(engine, count):
    found = []
    while len(found) < count:
        found += await engine.answers()
    # Attempts of a rollout have the same index, and the same seed.
    return {a.request.index + 1000 * a.request.attempt: a for a in found}

def response(answer):
    plain = answer.result.response()
    for name in ("observation_tokens", "rollout_log_probs"):
        plain[name] = None if plain[name] is None else plain[name].tolist()
    return plain

def tokens(answer):
    return response(answer)["observation_tokens"]

async def ends_in(call, limit_s):
    try:
        await asyncio.wait_for(call, limit_s)
    except TimeoutError:
        return False
    except Exception as error:
        return repr(error)
    return True

async def start_engine(engine_args):
    engine = AdaRolloutActor.__new__(AdaRolloutActor)
    engine.engine_args = engine_args
    await engine.__init__(
        model=model, remote_rm_url=[rewards], num_gpus=1, enable_prefix_caching=True, max_model_len=64, seed=1,
        distributed_executor_backend="uni", worker_extension_cls="", tensor_parallel_size=1,
    )
    await engine.serve_from_disk()
    return engine

def off_the_policy(responses):
    # The largest difference of log-probabilities from those of the model itself.
    policy, gaps = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), []
    for found in responses:
        ids, ((begin, end),) = found["observation_tokens"], found["action_ranges"]
        with torch.no_grad():
            exact = policy(torch.tensor([ids])).logits[0].log_softmax(-1)
        gaps += [abs(exact[i - 1, ids[i]].item() - found["rollout_log_probs"][i]) for i in range(begin, end)]
    return max(gaps)

async def with_drafts():
    engine, out = await start_engine('{"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, '
        '"prompt_lookup_min": 2, "prompt_lookup_max": 3}}'), {}
    chosen = setup(30)
    chosen.params.min_tokens, chosen.params.ignore_eos, chosen.params.logprobs = 0, True, 1

    async def sample(indices, between=None):
        await engine.submit([job(i, seed=i, prompt="12+12=12+12=12+") for i in indices], chosen)
        if between is not None:
            await between()
        return {i: response(a) for i, a in (await gather(engine, len(indices))).items()}

    async def under_way():
        states = engine.llm.output_processor.request_states
        while not any(s.detokenizer.num_output_tokens() > 2 for s in states.values()):
            await asyncio.sleep(0.001)

    async def paused():
        await under_way()
        await engine.pause_generation()
        await asyncio.sleep(0.2)
        await engine.resume_generation()

    crowd = await sample(range(16))
    tokens_of = lambda answers: {i: a["observation_tokens"] for i, a in answers.items()}
    out["beside_others"] = tokens_of(await sample([3, 5])).items() <= tokens_of(crowd).items()
    # The first step after a pause may have no drafts, and draws other numbers.
    out["gap"] = off_the_policy([*crowd.values(), *(await sample(range(16), paused)).values()])
    await engine.submit([job(i, seed=i, prompt="12+12=12+12=12+") for i in range(16)], chosen)
    await under_way()
    await engine.stop([Request(0, i) for i in range(8)])
    stopped = await gather(engine, 16)
    out["stopped"] = [(a.result is None, a.num_tokens) for i, a in stopped.items() if i < 8]
    out["others"] = [a.num_tokens for i, a in stopped.items() if i >= 8]
    engine._watch.cancel()
    engine.llm.shutdown()
    return tokens_of(crowd), out

async def main():
    drafted, drafts = await with_drafts()
    engine = await start_engine('{"max_num_seqs": 96}')
    out = {"capacity": await engine.capacity(), "drafts": drafts}
    chosen = setup(30)
    chosen.params.min_tokens, chosen.params.ignore_eos, chosen.params.logprobs = 0, True, 1
    await engine.submit([job(i, seed=i, prompt="12+12=12+12=12+") for i in range(16)], chosen)
    plain = {i: response(a) for i, a in (await gather(engine, 16)).items()}
    out["drafts"] |= {"gap_without": off_the_policy(plain.values())}
    out["drafts"] |= {"same_draws": sum(drafted[i] == a["observation_tokens"] for i, a in plain.items())}

    # Few tokens in the engine's first step: on a processor with AMX, vLLM's core would die of it.
    await engine.submit([job(0, prompt="1+1=")], setup(1))
    out["first"] = [a.num_tokens for a in (await gather(engine, 1)).values()]

    # More than the engine computes in a step, several times over.
    await engine.submit([job(i, seed=i, prompt=f"{i:03}+{i:03}=" * 6) for i in range(128)], setup(4))
    crowd = await gather(engine, 128)
    budget = engine.llm.vllm_config.scheduler_config.max_num_batched_tokens
    out["crowd"] = [a.num_tokens for a in crowd.values()]
    out["crowd_by_budget"] = sum(len(tokens(a)) - 4 for a in crowd.values()) / budget

    await engine.submit([job(0), job(0, attempt=1), job(2, seed=8), job(3, seed=9)], setup(8))
    first = await gather(engine, 4)
    assert not any(a.error for a in first.values()), first
    out["counts"] = [a.num_tokens for a in first.values()]
    out["rewards"] = [response(a)["reward"] for a in first.values()]
    out["same_seed"] = tokens(first[0]) == tokens(first[1000])
    others = [job(4 + seed, seed=seed) for seed in range(16)]
    await engine.submit(others, setup(8))
    out["other_seeds"] = len({tuple(tokens(a)) for a in (await gather(engine, 16)).values()})
    await engine.submit([job(2, seed=8)], setup(8))
    out["again_alone"] = tokens((await gather(engine, 1))[2]) == tokens(first[2])

    # The same with all that vLLM makes unless it is told not to.
    out["tokens_only"] = engine.llm._tokens_only
    for logprobs in (None, 1):
        seeds = [job(i, seed=20 + i) for i in range(6)]
        answers = []
        for engine.llm._tokens_only in (True, False):
            chosen = setup(2)
            chosen.params.max_tokens, chosen.params.logprobs = 12, logprobs
            await engine.submit(seeds, chosen)
            answers.append([response(a) for _, a in sorted((await gather(engine, 6)).items())])
        out[f"alike_{logprobs}"] = answers[0] == answers[1]
        out[f"log_probs_{logprobs}"] = answers[0][0]["rollout_log_probs"]
    engine.llm._tokens_only = True
    out["has_text"] = []
    params = SamplingParams(max_tokens=4, min_tokens=4)
    async for output in engine.llm.generate({"prompt_token_ids": [5, 6]}, params, request_id="text"):
        out["has_text"].append(output.outputs[0].text)

    # Stop strings are looked for in the text, stop tokens by vLLM's core.
    two, eos = tokenizer.convert_tokens_to_ids(["2", tokenizer.eos_token])
    for name, ends in (("string", {"stop": ["2"]}), ("token", {"stop_token_ids": [two]})):
        params = SamplingParams(temperature=1.0, max_tokens=3, logprobs=1, **ends)
        await engine.submit([job(i, seed=i) for i in range(40)], SamplingSetup(params, 60, tokenizer, 60.0))
        found = sorted((await gather(engine, 40)).items())
        out[f"until_stop_{name}"] = []
        for _, a in found:
            r = response(a)
            text, count = tokenizer.decode(r["observation_tokens"][4:]), len(r["rollout_log_probs"]) - 4
            out[f"until_stop_{name}"].append((text, count, r["truncated"], a.num_tokens))

    await engine.submit([job(i, seed=i) for i in range(40)], setup(50))
    states = engine.llm.output_processor.request_states
    while sum(s.detokenizer.num_output_tokens() > 2 for s in states.values()) < 20:
        await asyncio.sleep(0.001)
    await engine.stop([Request(0, i) for i in range(20)] + [Request(5, 5)])
    stopped = await gather(engine, 40)
    out["stopped"] = [a.result is None and not a.error for i, a in stopped.items() if i < 20]
    out["stopped_tokens"] = [a.num_tokens for i, a in stopped.items() if i < 20]
    out["others"] = [a.num_tokens for i, a in stopped.items() if i >= 20]

    await engine.submit([job(0)], setup(8))
    await engine.stop([Request(0, 0)])
    early = (await gather(engine, 1))[0]
    out["stopped_early"] = [early.result is None, early.error, early.num_tokens]

    await engine.submit([job(0, label="raise")], setup(8))
    failed = await gather(engine, 1)
    await engine.submit([job(1, label="sleep")], setup(8, timeout_s=1.0))
    failed |= await gather(engine, 1)
    out["errors"] = [failed[0].error, failed[1].error]
    out["failed_tokens"] = [failed[0].num_tokens, failed[1].num_tokens]

    await engine.submit([job(0, label="sleep")], setup(8))
    await asyncio.sleep(1.0)
    await engine.stop([Request(0, 0)])
    start = time.monotonic()
    in_reward = (await gather(engine, 1))[0]
    out["stopped_in_reward"] = [in_reward.result is None, in_reward.num_tokens, time.monotonic() - start < 1]
    out["left"] = [engine.get_num_unfinished_requests(), len(engine._running), engine._ended.qsize()]

    # Without the watch, which would end this process.
    engine._watch.cancel()
    for process in engine.llm.engine_core.resources.engine_manager.processes:
        process.kill()
    while not engine.llm.errored:
        await asyncio.sleep(0.01)
    calls = {name: getattr(engine, name) for name in ("pause_generation", "resume_generation", "sleep", "wake_up")}
    calls |= {"begin_update": engine.begin_update, "reset_prefix_cache": engine.reset_prefix_cache}
    answered = dict(zip(calls, await asyncio.gather(*(ends_in(call(), 0.5) for call in calls.values()))))
    out["answered_when_dead"] = [name for name, ended in answered.items() if ended]
    # On a busy machine vLLM prints that it did not end in time; the last line is ours.
    engine.llm.shutdown()
    print(json.dumps(out))

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture(scope="module")
def seen(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one engine did, by name."""
    folder = tmp_path_factory.mktemp("engine")
    rewards = folder / "rewards.py"
    rewards.write_text(REWARDS)
    return run_script(SCRIPT, folder, str(toy.model), str(rewards))


def test_sample_depends_on_its_seed_alone(seen: dict[str, Any]) -> None:
    """Alone or beside others; other seeds give other answers."""
    assert seen["same_seed"] and seen["again_alone"]
    assert seen["other_seeds"] > 1
    assert seen["counts"] == [8] * 4
    assert seen["rewards"] == [1.0] * 4
    slots, speculation = seen["capacity"]
    assert slots == 96 > speculation > 0, "--ada_engine_args"


def test_drafted_tokens_are_the_policys(seen: dict[str, Any]) -> None:
    """n-gram speculative decoding: log-probabilities are the policy's, also after a pause. A seed gives the same
    answer beside any others, but not the one that it gives without drafts."""
    drafts = seen["drafts"]
    assert drafts["beside_others"]
    assert drafts["same_draws"] < 16, "drafts are checked with random numbers of their own"
    assert drafts["gap"] < max(0.2, 3 * drafts["gap_without"])
    assert all(nothing and tokens < 30 for nothing, tokens in drafts["stopped"])
    assert drafts["others"] == [30] * 8


def test_an_engine_may_begin_with_few_tokens(seen: dict[str, Any]) -> None:
    assert seen["first"] == [1]


def test_prompts_beyond_a_steps_token_budget_wait(seen: dict[str, Any]) -> None:
    """vLLM's core would die of a prompt that it computes in parts for a request with a seed, on a CPU."""
    assert seen["crowd"] == [4] * 128
    assert seen["crowd_by_budget"] > 1.5


def test_answers_are_the_same_without_what_nobody_reads(seen: dict[str, Any]) -> None:
    """Tokens, log-probabilities, scores and all else of OpenRLHF's response."""
    assert seen["tokens_only"] is True
    assert seen["alike_None"] and seen["alike_1"]
    assert seen["log_probs_None"] is None and len(seen["log_probs_1"]) > 4
    assert min(seen["log_probs_1"]) < 0.0
    assert seen["has_text"] == [""]


def test_stop_strings_and_tokens_end_answers(seen: dict[str, Any]) -> None:
    """1+1= is 2, often; the end token would come after it, and nobody adds one. Both ways give the same answers."""
    answers = seen["until_stop_string"]
    ended = [text for text, *_ in answers if "2" in text]
    assert len(ended) > 3 and all(text.index("2") == len(text) - 1 for text in ended)
    assert any(text.endswith("<eos>") for text, *_ in answers)
    for text, log_probs, truncated, num_tokens in answers:
        tokens = len(text.replace("<eos>", "$"))
        assert (log_probs, num_tokens) == (tokens, tokens)
        assert truncated is (not text.endswith(("2", "<eos>")))
    assert seen["until_stop_token"] == answers


def test_stopped_samples_report_their_tokens(seen: dict[str, Any]) -> None:
    assert seen["stopped"] == [True] * 20
    assert all(0 <= n < 50 for n in seen["stopped_tokens"])
    assert max(seen["stopped_tokens"]) > 0
    assert seen["others"] == [50] * 20
    assert seen["stopped_early"] == [True, "", 0], "before its first token"


def test_failures_carry_their_reason_and_cost(seen: dict[str, Any]) -> None:
    assert seen["errors"] == ["ValueError: no such label", "no answer and score within 1 s"]
    assert seen["failed_tokens"] == [8, 8]


def test_sample_waiting_for_reward_is_stopped_at_once(seen: dict[str, Any]) -> None:
    assert seen["stopped_in_reward"] == [True, 8, True]
    assert seen["left"] == [0, 0, 0]


def test_nothing_is_answered_once_vllms_core_is_dead(seen: dict[str, Any]) -> None:
    """Its process ends in a moment. Whoever asked then learns from Ray that the engine is gone, and waits for it."""
    assert seen["answered_when_dead"] == []
