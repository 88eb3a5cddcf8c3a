"""vLLM's prefix cache across weight updates, as one engine sees them whose rollouts and conversations go on.

Prefill tokens are counted by vLLM: it says of each answer how many tokens of its prompt it found in the cache.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import Toy, run_script

pytestmark = pytest.mark.e2e

BLOCK = 32
PROMPT = [(7 * i) % 50 + 4 for i in range(2 * BLOCK + 6)]

SCRIPT = """
import asyncio, json, os, sys
from openrlhf_ada.platforms import without_gpu
without_gpu.activate()
os.environ |= without_gpu.worker_environment() | {"VLLM_LOGGING_LEVEL": "ERROR", "RAY_ADDRESS": "none"}
import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor
from vllm import SamplingParams
from openrlhf_ada.host.tokenizer import SharedTokenizer
from openrlhf_ada.rollout.engine import AdaRolloutActor

first, second, block, prompt = *sys.argv[1:3], int(sys.argv[3]), json.loads(sys.argv[4])
tokenizer = SharedTokenizer(first, use_fast=True).load()

def asks(count, *, reads=True, seed=None):
    return SamplingParams(
        temperature=0.0 if seed is None else 1.0, seed=seed, max_tokens=count, min_tokens=count, logprobs=0,
        skip_reading_prefix_cache=not reads,
    )

async def sample(engine, tokens, count, **how):
    output = await engine.generate(tokens, asks(count, **how))
    answer = output.outputs[0]
    logprobs = [found[token].logprob for token, found in zip(answer.token_ids, answer.logprobs)]
    return {"tokens": list(answer.token_ids), "logprobs": logprobs, "cached": output.num_cached_tokens}

class Talk(AgentInstanceBase):
    def __init__(self):
        self.turns = 0

    async def step(self, states):
        self.turns += 1
        reward = torch.tensor(1.0)
        feedback = "1+1=" * 8
        return {"rewards": reward, "scores": reward, "environment_feedback": feedback, "done": self.turns == 3,
                "sampling_params": asks(20, reads=self.reads)}

class Listener:
    # What the executor asks for, and what was found in the cache.
    def __init__(self, engine, at_turn=None):
        self.engine, self.at_turn, self.asked, self.cached = engine, at_turn, [], []

    async def generate(self, tokens, params, multi_modal_data=None):
        if self.at_turn and len(self.asked) == 2:
            await self.at_turn()
        params.max_tokens = 20
        output = await self.engine.generate(tokens, params)
        self.asked.append(len(tokens))
        self.cached.append(output.num_cached_tokens)
        return output

async def talk(engine, *, reads, at_turn=None):
    listener = Listener(engine, at_turn)
    executor = MultiTurnAgentExecutor(type("Talk", (Talk,), {"reads": reads}))
    said = await executor.execute(tokenizer.decode(prompt), "", asks(20, reads=reads), 250, tokenizer, listener)
    return {"tokens": said["observation_tokens"], "asked": listener.asked, "cached": listener.cached}

def sampled(engine):
    return [s.detokenizer.num_output_tokens() for s in engine.llm.output_processor.request_states.values()]

async def update(engine, path, version, **how):
    # As with partial rollouts, with weights from disk in place of the policy's.
    await engine.llm.pause_generation(mode="keep", **how)
    at = sampled(engine)
    engine._admitted.clear()
    await engine.llm.collective_rpc("reload_weights", kwargs={"weights_path": path})
    await engine._empty_cache()
    engine._admit(version)
    await engine.resume_generation()
    return at

async def begun(engine, count):
    while min(sampled(engine), default=0) < count:
        await asyncio.sleep(0.001)

async def main():
    engine = AdaRolloutActor.__new__(AdaRolloutActor)
    await engine.__init__(
        model=first, num_gpus=1, enable_prefix_caching=True, max_model_len=256, block_size=block, seed=1,
        distributed_executor_backend="uni", worker_extension_cls="", tensor_parallel_size=1,
    )
    engine.llm._tokens_only = False
    await engine.serve_from_disk()
    out = {"warm": await sample(engine, prompt, 40, reads=False)}

    for name, reads in (("anew", False), ("reused", True)):
        wave = [sample(engine, prompt, 30, reads=reads, seed=seed) for seed in range(6)]
        out[name] = await asyncio.gather(*wave)
        assert await engine.llm.reset_prefix_cache()
        out["talk_" + name] = await talk(engine, reads=reads)

    # Two rollouts are on their way, then a conversation, and find the weights changed.
    asked = [prompt + [5, last] for last in (6, 7)]
    long = [asyncio.create_task(sample(engine, tokens, 150)) for tokens in asked]
    await begun(engine, 40)
    out["paused_at"] = await update(engine, second, 1)
    out["went_on"] = await asyncio.gather(*long)
    out["later"] = [await sample(engine, prompt, 40, reads=reads) for reads in (True, False, True)]
    rest = zip(asked, out["went_on"], out["paused_at"])
    rest = [sample(engine, t + seen["tokens"][:at], 150 - at, reads=False) for t, seen, at in rest]
    out["anew_from_there"] = await asyncio.gather(*rest)
    out["talk_over_update"] = await talk(engine, reads=True, at_turn=lambda: update(engine, first, 2))

    # The salt alone: the cache stays as it is.
    out["salted"] = [await sample(engine, prompt, 40)]
    for version in (3, 2):
        engine._admit(version)
        out["salted"].append(await sample(engine, prompt, 40))
    text = tokenizer.decode(prompt)
    for given in (text, prompt, {"prompt_token_ids": prompt, "cache_salt": "a user's"}):
        found = [o.num_cached_tokens async for o in engine.llm.generate(given, asks(1), request_id=str(id(given)))]
        out.setdefault("other_prompts", []).append(found[0])

    # As if vLLM's pause left the memory of what runs.
    running = asyncio.create_task(sample(engine, prompt + [9], 150))
    await begun(engine, 20)
    try:
        await update(engine, second, 4, clear_cache=False)
    except RuntimeError as error:
        out["kept"] = str(error)
    running.cancel()
    engine._watch.cancel()
    engine.llm.shutdown()
    print(json.dumps(out))

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture(scope="module")
def seen(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one engine did, by name."""
    folder = tmp_path_factory.mktemp("prefix")
    first, second = (
        _with_weights(toy.model, folder / name, scale) for name, scale in (("first", 1.0), ("second", 0.7))
    )
    return run_script(SCRIPT, folder, str(first), str(second), str(BLOCK), json.dumps(PROMPT))


def _with_weights(model: Path, folder: Path, scale: float) -> Path:
    """The toy model with longer answers, its weights scaled."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 256}))
    weights = {name: weight * scale for name, weight in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def said(answers: list[dict[str, Any]]) -> list[tuple[list[int], list[float]]]:
    return [(answer["tokens"], pytest.approx(answer["logprobs"], abs=1e-3)) for answer in answers]


def cached(answers: list[dict[str, Any]]) -> list[int]:
    return [answer["cached"] for answer in answers]


def test_rollouts_of_a_prompt_share_its_prefill(seen: dict[str, Any]) -> None:
    """Two whole blocks of the prompt's 70 tokens; what is sampled stays the same."""
    assert [(answer["tokens"], answer["logprobs"]) for answer in seen["reused"]] == said(seen["anew"])
    assert len({tuple(answer["tokens"]) for answer in seen["anew"]}) > 1
    assert cached(seen["anew"]) == [0] * 6
    assert cached(seen["reused"]) == [2 * BLOCK] * 6


def test_an_agents_turns_reuse_their_conversation(seen: dict[str, Any]) -> None:
    """All whole blocks of what was said before."""
    anew, reused = seen["talk_anew"], seen["talk_reused"]
    assert reused["tokens"] == anew["tokens"] and reused["asked"] == anew["asked"]
    assert anew["cached"] == [0, 0, 0]
    before = [asked + 20 for asked in reused["asked"][:-1]]
    # A turn's last token is not computed before the next one.
    assert reused["cached"] == [0, *((count - 1) // BLOCK * BLOCK for count in before)]


def test_after_an_update_nothing_is_computed_on_what_older_weights_left(seen: dict[str, Any]) -> None:
    """vLLM's pause gives up the memory of what runs: the new weights compute it anew, and the cache can be emptied."""
    assert min(seen["paused_at"]) >= 40
    rest = [
        (answer["tokens"][at:], answer["logprobs"][at:])
        for answer, at in zip(seen["went_on"], seen["paused_at"], strict=True)
    ]
    assert rest == said(seen["anew_from_there"])
    assert cached(seen["later"]) == [0, 0, 2 * BLOCK]
    first, *others = seen["later"]
    assert [(answer["tokens"], answer["logprobs"]) for answer in others] == said([first, first])
    assert seen["talk_over_update"]["cached"][2] == 0, "a conversation's next turn"
    assert "could not empty its prefix cache" in seen["kept"], (
        "where a pause leaves the memory, the update ends the run"
    )


def test_a_prompt_meets_blocks_of_its_own_version_alone(seen: dict[str, Any]) -> None:
    """Though the cache was not emptied. A salt of the user's own counts as well."""
    assert cached(seen["salted"]) == [2 * BLOCK, 0, 2 * BLOCK]
    assert seen["other_prompts"] == [2 * BLOCK, 2 * BLOCK, 0]
