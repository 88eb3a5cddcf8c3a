"""How long one GRPO step of SmolLM2-135M takes on this CPU, and what our choices for CPUs do to it.

The step is 16 prompts x 4 answers x 16 tokens after a 45-token chat prompt, through the whole real stack with
--ada_mode off. Each variant is one run; the figure is the median over its steps, the first (warm-up) left out.

    python benchmarks/cpu_step.py [--quick]     last line: one JSON object; full results in benchmarks/results/
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from machine import machine

import openrlhf_ada.reward.arithmetic as reward_file
from openrlhf_ada.demo.model import build_smollm2

HERE = Path(__file__).parent
PROMPTS, GROUP, NEW_TOKENS = 16, 4, 16
PHASES = ("generation", "make_experience", "ppo_train", "broadcast", "step_total")

SWITCH = ""
# Environment and flags that differ from the default run; None leaves a flag out.
VARIANTS: dict[str, tuple[Mapping[str, str], Mapping[str, Any]]] = {
    "default": ({}, {}),
    "each row with its own prompt": ({"OPENRLHF_ADA_SHARE_PROMPTS": "0"}, {}),
    "no prefix caching": ({}, {"vllm.enable_prefix_caching": None}),
    "freed memory given back": ({"MALLOC_TRIM_THRESHOLD_": str(1 << 17), "MALLOC_MMAP_THRESHOLD_": str(1 << 25)}, {}),
    "one thread": ({"OPENRLHF_ADA_TORCH_THREADS": "1"}, {}),
    "micro-batch 16": ({}, {"train.micro_batch_size": 16, "rollout.micro_batch_size": 16}),
    "threads never spin": ({"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}, {}),
    "ZeRO stage 2": ({}, {"ds.zero_stage": 2}),
}
DTYPES = ("float32", "bfloat16")


def write_prompts(path: Path, count: int) -> None:
    """Chat prompts of about 45 tokens with the template."""
    with path.open("w") as file:
        for i in range(count):
            a, b = 1 + i % 17, 3 + i % 13
            row = {"input": f"What is {a}+{b}? Answer with the number only.", "label": str(a + b)}
            file.write(json.dumps(row) + "\n")


def run(folder: Path, model: Path, steps: int, environment: Mapping[str, str], changes: Mapping[str, Any]) -> dict:
    """Median seconds per phase of one run."""
    write_prompts(folder / "prompts.jsonl", PROMPTS * steps)
    flags: dict[str, Any] = {
        "ada_run_dir": folder / "run",
        "actor.model_name_or_path": model,
        "actor.num_gpus_per_node": 1,
        "vllm.num_engines": 1,
        "vllm.sync_backend": "gloo",
        "vllm.enable_prefix_caching": SWITCH,
        "ds.attn_implementation": "sdpa",
        "ds.zero_stage": 0,
        "algo.advantage.estimator": "group_norm",
        "algo.kl.init_coef": 0,
        "data.prompt_dataset": folder / "prompts.jsonl",
        "data.label_key": "label",
        "data.max_len": 96,
        "data.apply_chat_template": SWITCH,
        "reward.remote_url": reward_file.__file__,
        "rollout.batch_size": PROMPTS,
        "rollout.n_samples_per_prompt": GROUP,
        "rollout.micro_batch_size": PROMPTS * GROUP,
        "rollout.max_new_tokens": NEW_TOKENS,
        "train.batch_size": PROMPTS * GROUP,
        "train.micro_batch_size": PROMPTS * GROUP,
        "ckpt.output_dir": folder / "model",
    } | dict(changes)
    argv = [
        str(part)
        for name, value in flags.items()
        if value is not None
        for part in (f"--{name}", value)
        if part != SWITCH
    ]
    command = [sys.executable, "-m", "openrlhf_ada.cli.train_ppo_ray", *argv]
    subprocess.run(command, env=os.environ | dict(environment), check=True)
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()][1:]
    return {phase: statistics.median(row[f"timing/{phase}"] for row in rows) for phase in PHASES}


def forward_seconds(model: Path, dtype: str) -> float:
    """Seconds of one forward pass of the policy on 64 x 28 tokens, without gradient, best of two."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
    tokens = torch.randint(0, policy.config.vocab_size, (PROMPTS * GROUP, 28))
    times = []
    for _ in range(2):
        start = time.perf_counter()
        with torch.no_grad():
            policy(tokens, use_cache=False, logits_to_keep=6)
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the default variant only")
    parser.add_argument("--steps", type=int, default=3, help="steps per variant (2 or more), the first is warm-up")
    parser.add_argument("--variants", nargs="*", choices=list(VARIANTS), default=None)
    parser.add_argument("--cache-dir", type=Path, default=Path(".cache"))
    args = parser.parse_args()
    if args.steps < 2:
        parser.error(f"--steps is {args.steps}, expected at least 2")
    names = args.variants or (["default"] if args.quick else list(VARIANTS))
    model = build_smollm2(args.cache_dir / "smollm2-chat-model")
    results: dict[str, Any] = {}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            results[name] = run(Path(folder), model, args.steps, *VARIANTS[name])
        print(name, json.dumps(results[name]), flush=True)
    forward = {} if args.quick else {dtype: forward_seconds(model, dtype) for dtype in DTYPES}
    print("forward pass", json.dumps(forward), flush=True)
    record = {"machine": machine(), "steps": args.steps, "seconds": results, "forward_seconds": forward}
    out = HERE / "results" / ("cpu_step_quick.json" if args.quick else "cpu_step.json")
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps({"step_s": results[names[0]]["step_total"]}))


if __name__ == "__main__":
    main()
