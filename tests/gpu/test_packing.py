"""Samples of very different lengths, packed by flash-attn into micro-batches by tokens.

Who trains what, and with which weight, is shown on a CPU as well: tests/contract/test_dynamic_batches.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Toy, read_jsonl, run_script
from gpu_runs import CLOSE_SMOLLM2, COLOCATED, ON_GPU, SEQ, check_run, gpu_train

pytestmark = [pytest.mark.gpu, pytest.mark.e2e]

DYNAMIC: dict[str, Any] = {
    "ds__packing_samples": True,
    "train__dynamic_batch_enable": True,
    "train__max_tokens_per_gpu": 512,
    "rollout__max_tokens_per_gpu": 1024,
}
LONG: dict[str, Any] = {"rollout__max_new_tokens": 96, "data__max_len": 128, "actor__adam__lr": 1e-5}

SCRIPT = """
import json, sys, torch
from openrlhf.models import Actor

actors = [Actor(sys.argv[1], attn_implementation="flash_attention_2", packing_samples=p).cuda() for p in (False, True)]
torch.manual_seed(0)
lengths = [3, 4, 9, 33, 128, 500]
sequences = torch.randint(100, 40000, (len(lengths), max(lengths))).cuda()
attention = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long().cuda()
actions = attention[:, 1:].clone()
actions[:, 0] = 0
with torch.no_grad():
    padded, packed = (actor(sequences, actions, attention) for actor in actors)
shown = actions.bool()
print(json.dumps({
    "gap": float((padded - packed).abs()[shown].mean()),
    "size": float(padded.abs()[shown].mean()),
    "outside": float(packed[~shown].abs().max()),
}))
"""


def test_packed_samples_do_not_see_each_other(smollm2: Toy, tmp_path: Path) -> None:
    """Log-probabilities are those of padded ones, to bfloat16's rounding."""
    found = run_script(SCRIPT, tmp_path, str(smollm2.model))
    assert found["gap"] < 0.01 * found["size"]
    assert found["outside"] == 0.0


def test_pools_of_any_length_are_trained_on_one_gpu(smollm2: Toy, tmp_path: Path) -> None:
    run = tmp_path / "run"
    gpu_train(smollm2, run, **COLOCATED | SEQ | LONG | DYNAMIC)
    check_run(run, steps=2, close=CLOSE_SMOLLM2)
    lengths = [s["tokens"] for s in read_jsonl(run / "samples.jsonl") if s["kept"]]
    assert max(lengths) > 4 * min(lengths), "else nothing is shown"


@pytest.mark.gpu(3)
@pytest.mark.parametrize("stage", [2, 3])
def test_two_processes_share_pools_of_any_length(smollm2: Toy, tmp_path: Path, stage: int) -> None:
    """With unequal numbers of micro-batches one would wait for the other."""
    run = tmp_path / "run"
    gpu_train(
        smollm2, run, **ON_GPU | SEQ | LONG | DYNAMIC, actor__num_gpus_per_node=2, ds__zero_stage=stage,
        rollout__micro_batch_size=8,
    )  # fmt: skip
    check_run(run, steps=2, close=CLOSE_SMOLLM2)


@pytest.mark.gpu(2)
def test_micro_batches_by_tokens_keep_sample_weights(tmp_path: Path) -> None:
    """As on a CPU, with flash-attn, NCCL and bfloat16: every process's share, and the step that comes of it."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / "dynamic_training.py"), str(tmp_path)],
        capture_output=True, text=True, timeout=600, check=False, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, list[dict[str, Any]]] = json.loads(done.stdout.strip().splitlines()[-1])
    for name, (first, second) in found.items():
        kind, _, rest = name.partition(", ")
        if kind in ("dynamic", "packed"):
            assert len(first["seen"]) == len(second["seen"])
            assert first["grad_norm"] == pytest.approx(found[f"fixed, {rest}"][0]["grad_norm"], rel=0.05), name
