"""Exports give the same greedy answers in transformers, in vLLM, and in the engines that got them as updates.

Here of adapters. Of averaged weights: test_experts.py, and tests/unit/test_weights_average.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Toy, check_ledger, read_jsonl, run_script, steps_of, toy_flags, train
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from openrlhf_ada.platforms.without_gpu import DTYPE_VARIABLE

pytestmark = [pytest.mark.e2e, pytest.mark.rehearsal]

REWARDS = """
import json
from openrlhf_ada.reward import arithmetic

def reward_func(queries, prompts, labels):
    with open({log!r}, "a") as file:
        file.writelines(json.dumps([prompt, query[len(prompt):]]) + "\\n" for prompt, query in zip(prompts, queries))
    return arithmetic.reward_func(queries, prompts, labels)
"""

SCRIPT = """
import json, os, sys
from openrlhf_ada.platforms import without_gpu
without_gpu.activate()
os.environ |= without_gpu.worker_environment() | {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm import LLM, SamplingParams
from openrlhf_ada.platforms.without_gpu.engine import cpu_engine_arguments

TOKENS = 4

def by_transformers(path, prompts):
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModelForCausalLM.from_pretrained(path)
    for prompt in prompts:
        inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        answer = model.generate(**inputs, max_new_tokens=TOKENS, do_sample=False)[0, inputs["input_ids"].shape[1]:]
        yield tokenizer.decode(answer, skip_special_tokens=True)

def by_vllm(path, prompts):
    llm = LLM(path, max_model_len=64, **cpu_engine_arguments({}))
    tokenizer = llm.get_tokenizer()
    inputs = [{"prompt_token_ids": tokenizer(prompt, add_special_tokens=False)["input_ids"]} for prompt in prompts]
    found = llm.generate(inputs, SamplingParams(temperature=0, max_tokens=TOKENS), use_tqdm=False)
    llm.llm_engine.engine_core.shutdown()
    return [answer.outputs[0].text for answer in found]

if __name__ == "__main__":
    prompts, path = json.loads(sys.argv[1])
    print(json.dumps({by.__name__: list(by(path, prompts)) for by in (by_transformers, by_vllm)}))
"""

SEQ: dict[str, Any] = {
    "ada_mode": "seq",
    "ada_wave": 4,
    "ada_max_samples": 16,
    "actor__adam__lr": 3e-3,
    "actor__lr_scheduler": "constant",
    "data__max_samples": 32,
    "eval__steps": 2,
    "eval__temperature": 0,
    "eval__n_samples_per_prompt": 1,
    "ckpt__save_hf": True,
    "ckpt__disable_ds": True,
}
"""Two steps, then a greedy evaluation, of which the best checkpoint is exported."""

ADAPTERS = {
    "ds__lora__rank": 4,
    "ds__lora__alpha": 8,
    "ada_verify_sync": "always",
    "ada_logprob_steps": 1,
}

CLOSE = 0.002
"""Mean distance of log-probabilities, in nats and single precision; the engine's attention computes in half of it."""


@dataclass(frozen=True)
class Run:
    """`by_engine`: the greedy answers of the last evaluation, by prompt. The others: of the exported model."""

    folder: Path
    by_engine: dict[str, str]
    by_transformers: list[str]
    by_vllm: list[str]


@pytest.fixture(scope="module")
def run(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("export")
    log, rewards = folder / "answers.jsonl", folder / "rewards.py"
    rewards.write_text(REWARDS.format(log=str(log)))
    prompts = [row["input"] for row in read_jsonl(toy.heldout)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DTYPE_VARIABLE, "float32")
        flags = {**SEQ, **ADAPTERS, "eval__dataset": toy.heldout, "reward__remote_url": rewards}
        train(toy_flags(toy, folder / "run", **flags))
        found = run_script(SCRIPT, folder, json.dumps([prompts, str(folder / "run" / "model" / "merged")]))
    return Run(folder / "run", dict(json.loads(line) for line in log.read_text().splitlines()), **found)


def test_exports_answer_alike_everywhere(toy: Toy, run: Run) -> None:
    """An engine that got the adapters as updates answers as one that loads the merged checkpoint."""
    prompts = [row["input"] for row in read_jsonl(toy.heldout)]
    assert run.by_vllm == run.by_transformers
    assert run.by_vllm == [run.by_engine[prompt].removesuffix("<eos>") for prompt in prompts]
    (best,) = (run.folder / "ckpt").glob("best_global_step*_hf")
    at_best, exported = weights(best / "merged"), weights(run.folder / "model" / "merged")
    assert at_best.keys() == exported.keys()
    assert all(torch.equal(tensor, at_best[name]) for name, tensor in exported.items())


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_adapters_reach_the_engines_and_are_exported(toy: Toy, run: Run) -> None:
    """Log-probabilities agree in every step, so the engines have the adapters; base weights stay as they were."""
    check_ledger(run.folder, batch_size=16, group_size=4, cap=16)
    steps = steps_of(run.folder)
    assert [row["step"] for row in steps] == [1, 2]
    gaps = [row["ada/logprob_gap_mean"] for row in steps]
    assert max(gaps) < CLOSE, gaps
    base = AutoModelForCausalLM.from_pretrained(toy.model, dtype=torch.float32)
    before = {name: p.clone() for name, p in base.named_parameters()}
    adapted = PeftModel.from_pretrained(base, run.folder / "model")
    merged: Any = adapted.merge_and_unload()
    moved = [float((p - before[name]).detach().abs().max()) for name, p in merged.named_parameters()]
    assert max(moved) > 1e-3, "the adapters have learnt something"
