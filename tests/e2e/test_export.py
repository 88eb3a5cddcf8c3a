"""Exports give the same greedy answers in transformers, in vLLM, and in the engines that got them as updates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Toy, read_jsonl, run_script, toy_flags, train

from openrlhf_ada.platforms.cpu_dtype import DTYPE_VARIABLE

pytestmark = pytest.mark.e2e

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
from openrlhf_ada.platforms import cpu
cpu.activate()
os.environ |= cpu.worker_environment() | {"VLLM_LOGGING_LEVEL": "ERROR"}
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm import LLM, SamplingParams
from openrlhf_ada.platforms.cpu_engine import cpu_engine_arguments

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
    prompts, *paths = json.loads(sys.argv[1])
    print(json.dumps({path: [list(by(path, prompts)) for by in (by_transformers, by_vllm)] for path in paths}))
"""

ENDS: dict[str, Any] = {
    "ada_mode": "seq",
    "actor__adam__lr": 3e-3,
    "actor__lr_scheduler": "constant",
    "eval__steps": 2,
    "eval__temperature": 0,
    "eval__n_samples_per_prompt": 1,
    "ckpt__save_hf": True,
    "ckpt__disable_ds": True,
}
"""Two steps, then a greedy evaluation, of which the best checkpoint is exported."""


def answers_of(paths: list[Path], prompts: list[str], tmp_path: Path) -> dict[Path, tuple[list[str], list[str]]]:
    """By transformers and by vLLM."""
    found = run_script(SCRIPT, tmp_path, json.dumps([prompts, *map(str, paths)]))
    return {path: (found[str(path)][0], found[str(path)][1]) for path in paths}


@pytest.mark.parametrize(
    ("changes", "folder"),
    [
        ({"ds__lora__rank": 4, "ds__lora__alpha": 8}, "merged"),
        ({"train__enable_ema": True, "train__ema_beta": 0.5}, ""),
    ],
    ids=["adapters", "average"],
)
def test_exports_answer_alike_everywhere(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], folder: str
) -> None:
    monkeypatch.setenv(DTYPE_VARIABLE, "float32")
    run, log, rewards = tmp_path / "run", tmp_path / "answers.jsonl", tmp_path / "rewards.py"
    rewards.write_text(REWARDS.format(log=str(log)))
    train(toy_flags(toy, run, **ENDS, **changes, eval__dataset=toy.heldout, reward__remote_url=rewards))
    prompts = [row["input"] for row in read_jsonl(toy.heldout)]
    by_engine = dict(json.loads(line) for line in log.read_text().splitlines())
    (best,) = (run / "ckpt").glob("best_global_step*_hf")
    last, best = run / "model" / folder, best / folder
    found = answers_of([last, best], prompts, tmp_path)
    for transformers, vllm in found.values():
        assert vllm == transformers
    assert found[last] == found[best], "of the same step"
    if folder:
        # An engine that got the adapters as updates answers as one that loads the merged checkpoint.
        assert found[last][1] == [by_engine[prompt].removesuffix("<eos>") for prompt in prompts]
