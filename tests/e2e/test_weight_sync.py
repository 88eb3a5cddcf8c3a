"""Weights on the real stack: what arrives wrongly ends the run, adapters reach the engines and are exported.

The pieces: tests/unit/test_weights_sender.py, test_weights_engine_side.py, test_weights_policy_side.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import LIMIT_S, ROOT, Toy, check_ledger, steps_of, toy_flags, train
from peft import PeftModel
from transformers import AutoModelForCausalLM

from openrlhf_ada.platforms.cpu_dtype import DTYPE_VARIABLE

pytestmark = pytest.mark.e2e

SEQ = {"ada_mode": "seq", "ada_wave": 4, "ada_max_samples": 16, "actor__adam__lr": 3e-3, "data__max_samples": 48}
CLOSE = 0.002
"""Mean distance of log-probabilities, in nats and single precision; the engine's attention computes in half of it."""


@pytest.mark.parametrize(
    ("fault", "changes", "told"),
    [
        (
            "arrives",
            {"ada_verify_sync": "always"},
            "tensors arrived with other values than were sent, the first: model.layers.0.mlp.down_proj.weight",
        ),
        ("dies", {}, "vLLM engine 0 failed while receiving weights"),
        ("loads", {"ada_verify_sync": "always", "ada_logprob_steps": 1}, "--ada_logprob_stop is 1"),
    ],
)
def test_weights_that_go_wrong_end_the_run_before_anything_is_trained_on_them(
    toy: Toy, tmp_path: Path, fault: str, changes: dict[str, Any], told: str
) -> None:
    """In the third update, after the second step: checksums see what arrives, log-probabilities what is loaded."""
    run = tmp_path / "run"
    environment = os.environ | {"SPOIL": fault, "PYTHONPATH": f"{ROOT / 'tests' / 'spoil'}:{ROOT}"}
    command = [sys.executable, "-m", "openrlhf_ada.cli.train_ppo_ray", *toy_flags(toy, run, **SEQ, **changes)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT, env=environment, check=False
    )
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr[-4000:]
    assert told in done.stderr
    # The second step's weights do not arrive, so it never ends; they are loaded wrongly, so the third never begins.
    assert [row["step"] for row in steps_of(run)] == ([1, 2] if fault == "loads" else [1])


def test_adapters_reach_the_engines_and_the_export_is_what_was_trained(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log-probabilities agree in every step, so the engines have the adapters; base weights stay as they were."""
    run = tmp_path / "run"
    monkeypatch.setenv(DTYPE_VARIABLE, "float32")
    train(
        toy_flags(
            toy, run, **SEQ, ds__lora__rank=4, ds__lora__alpha=8, ada_verify_sync="always", ada_logprob_steps=1,
            actor__lr_scheduler="constant",
        )
    )  # fmt: skip
    check_ledger(run, batch_size=16, group_size=4, cap=16)
    steps = steps_of(run)
    assert [row["step"] for row in steps] == [1, 2, 3]
    gaps = [row["ada/logprob_gap_mean"] for row in steps]
    assert max(gaps) < CLOSE, gaps
    ratios = [row["ada/logprob_ratio_mean"] for row in steps]
    assert max(abs(ratio - 1) for ratio in ratios) < 1e-3, ratios
    base = AutoModelForCausalLM.from_pretrained(toy.model, dtype=torch.float32)
    before = {name: p.clone() for name, p in base.named_parameters()}
    adapted = PeftModel.from_pretrained(base, run / "model")
    merged: Any = adapted.merge_and_unload()
    moved = [float((p - before[name]).detach().abs().max()) for name, p in merged.named_parameters()]
    assert max(moved) > 1e-3, "the adapters have learnt something"
