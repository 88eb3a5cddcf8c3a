"""Every mode once on GPUs, ZeRO-3 with exports, and mode off beside OpenRLHF itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, Toy, read_jsonl, steps_of, toy_flags
from gpu_runs import COLOCATED, GPU_LIMIT_S, ON_GPU, SEQ, check_run, gpu_train
from safetensors.torch import load_file

pytestmark = [pytest.mark.gpu, pytest.mark.e2e]

EST: dict[str, Any] = {"ada_mode": "est", "train__num_episodes": 2}
PPO: dict[str, Any] = {"algo__advantage__estimator": "gae", "critic__adam__lr": 1e-3}
PARTIAL: dict[str, Any] = {
    "train__async_enable": True,
    "train__partial_rollout_enable": True,
    "algo__advantage__is_correction_level": "token",
}
PARITY = ROOT / "tests" / "parity"


@pytest.mark.parametrize(
    "changes", [EST, SEQ | PPO, EST | {"ada_estimator": "critic", "ada_trust_steps": 1}], ids=["est", "PPO", "critic"]
)
def test_all_models_share_one_gpu(toy: Toy, tmp_path: Path, changes: dict[str, Any]) -> None:
    run = tmp_path / "run"
    gpu_train(toy, run, **COLOCATED, **changes)
    rows = steps_of(run)
    assert rows and all(row["ada/kept"] == 64 and row["ada/logprob_gap_mean"] < 0.05 for row in rows)
    if changes.get("ada_mode") == "est":
        assert [row["ada/drawn"] for row in rows] == [64] * 4, "the budget, exactly"
    if "critic__adam__lr" in changes or "ada_estimator" in changes:
        assert all(row["critic_loss"] >= 0 for row in rows)


@pytest.mark.gpu(2)
def test_weights_change_during_partial_rollouts(toy: Toy, tmp_path: Path) -> None:
    run = tmp_path / "run"
    gpu_train(toy, run, **ON_GPU, **SEQ, **PARTIAL, train__num_episodes=2)
    check_run(run, steps=4, synchronous=False)
    assert all(0 <= row["ada/staleness_mean"] <= 2 for row in steps_of(run))


@pytest.mark.parametrize("gpus", [1, pytest.param(2, marks=pytest.mark.gpu(2))])
def test_zero_3_trains_averages_and_exports(toy: Toy, tmp_path: Path, gpus: int) -> None:
    run = tmp_path / "run"
    gpu_train(
        toy, run, **COLOCATED, **SEQ, ds__zero_stage=3, actor__num_gpus_per_node=gpus, vllm__num_engines=gpus,
        rollout__micro_batch_size=32 // gpus, train__enable_ema=True, train__ema_beta=0.5,
    )  # fmt: skip
    check_run(run, steps=2)
    before, after = load_file(toy.model / "model.safetensors"), load_file(run / "model" / "model.safetensors")
    assert {name: t.shape for name, t in before.items()} == {name: t.shape for name, t in after.items()}
    moved = [float((after[name].float() - before[name].float()).abs().max()) for name in before]
    assert all(bool(torch.isfinite(t).all()) for t in after.values())
    assert 0 < max(moved) < 2 * SEQ["actor__adam__lr"] * 2, "two steps of Adam, at most"


def test_off_equals_host_as_far_as_gpu_is_deterministic(toy: Toy, tmp_path: Path) -> None:
    """Rollouts of the first step are the same. After it, atomic sums differ from run to run: losses and weights are
    compared within a tenth of what they have moved.
    """
    sides = {"host": "openrlhf.cli.train_ppo_ray", "ours": "openrlhf_ada.cli.train_ppo_ray"}
    ours_only = {"ada_logprob_steps": None, "ada_verify_sync": None}
    for side, module in sides.items():
        folder = tmp_path / side
        flags = toy_flags(
            toy, folder, **COLOCATED | ours_only, ada_run_dir=folder if side == "ours" else None,
            reward__remote_url=None, train__agent_func_path=PARITY / "serial_agent.py", data__max_samples=32,
        )  # fmt: skip
        environment = os.environ | {
            "SERIAL_AGENT_LOG": str(tmp_path / f"{side}.log"),
            "PYTHONPATH": f"{PARITY}:{ROOT / 'tests' / 'support'}:{ROOT}",
        }
        done = subprocess.run(
            [sys.executable, "-m", module, *flags],
            capture_output=True, text=True, timeout=GPU_LIMIT_S, cwd=ROOT, env=environment, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    first = {side: sorted((tmp_path / f"{side}.log").read_text().splitlines()[:64]) for side in sides}
    assert first["ours"] == first["host"]
    base = load_file(toy.model / "model.safetensors")
    host, ours = (load_file(tmp_path / side / "model" / "model.safetensors") for side in sides)
    moved = sum(float((host[name].float() - base[name].float()).abs().sum()) for name in base)
    apart = sum(float((host[name].float() - ours[name].float()).abs().sum()) for name in base)
    assert apart < 0.1 * moved, (apart, moved)
    assert [row["ada/kept"] for row in read_jsonl(tmp_path / "ours" / "metrics.jsonl")] == [64, 64]
