"""How weights reach the engines on GPUs: NCCL, CUDA IPC with sleep, a tensor-parallel engine, adapters.

Buckets, checksums and versions are the same code as on a CPU: tests/e2e/test_weight_sync.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from conftest import Toy
from gpu_runs import CLOSE_SMOLLM2, COLOCATED, ON_GPU, SEQ, check_run, gpu_train
from safetensors.torch import load_file

pytestmark = [pytest.mark.gpu, pytest.mark.e2e]

LORA = {"ds__lora__rank": 4, "ds__lora__alpha": 8, "actor__adam__lr": 3e-3}


@pytest.mark.gpu(2)
@pytest.mark.parametrize("eager", [True, None], ids=["eager", "graphs"])
def test_weights_arrive_by_nccl(toy: Toy, tmp_path: Path, eager: bool | None) -> None:
    """Checksums of every update agree, or the run would end. CUDA graphs must see the new weights too."""
    run = tmp_path / "run"
    gpu_train(toy, run, **ON_GPU | SEQ | {"vllm__enforce_eager": eager})
    check_run(run, steps=2)


@pytest.mark.gpu(2)
def test_a_model_of_many_buckets_arrives_by_nccl(smollm2: Toy, tmp_path: Path) -> None:
    run = tmp_path / "run"
    gpu_train(smollm2, run, **ON_GPU | SEQ | {"actor__adam__lr": 1e-5})
    check_run(run, steps=2, close=CLOSE_SMOLLM2)


@pytest.mark.gpu(3)
def test_a_tensor_parallel_engine_gets_whole_tensors(toy: Toy, tmp_path: Path) -> None:
    """Each of its two workers sums up what arrives, and keeps its part."""
    run = tmp_path / "run"
    gpu_train(toy, run, **ON_GPU, **SEQ, vllm__tensor_parallel_size=2)
    check_run(run, steps=2)


@pytest.mark.gpu(2)
def test_tensor_parallel_engine_shares_gpus_with_policy(toy: Toy, tmp_path: Path) -> None:
    run = tmp_path / "run"
    gpu_train(
        toy, run, **COLOCATED, **SEQ, vllm__tensor_parallel_size=2, actor__num_gpus_per_node=2,
        rollout__micro_batch_size=8,
    )  # fmt: skip
    check_run(run, steps=2)


def test_policy_and_engine_take_turns_on_one_gpu(toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine gives its memory back while the policy trains, and wakes up with the policy's weights."""
    run = tmp_path / "run"
    # Ray would show lines that are alike once.
    monkeypatch.setenv("RAY_DEDUP_LOGS", "0")
    printed = gpu_train(
        toy, run, **COLOCATED, **SEQ, verbose=True, eval__dataset=toy.heldout, eval__steps=1, ada_eval_ends=True
    )
    check_run(run, steps=2)
    freed = [float(gib) for gib in re.findall(r"Sleep mode freed ([\d.]+) GiB", printed)]
    total = torch.cuda.get_device_properties(0).total_memory / 2**30
    # After the start, after each step's sampling, after each evaluation: one before, and one after each step.
    assert len(freed) >= 1 + 2 + 3, printed[-4000:]
    assert min(freed) > 0.5 * COLOCATED["vllm__gpu_memory_utilization"] * total, freed


def test_weights_survive_sleep_with_prefix_cache(toy: Toy, tmp_path: Path) -> None:
    """Refilling samples again within a step, without a nap; the cache of the adaptive modes is on."""
    run = tmp_path / "run"
    gpu_train(toy, run, **COLOCATED, **SEQ, ada_unresolved="refill", data__max_samples=48)
    rows = check_run(run, steps=2, refills=True)
    assert sum(row["ada/replaced"] for row in rows) > 0, "else nothing is shown"


@pytest.mark.parametrize("stage", [2, 3])
def test_adapters_go_merged_through_shared_memory(toy: Toy, tmp_path: Path, stage: int) -> None:
    run = tmp_path / "run"
    gpu_train(toy, run, **COLOCATED | SEQ | LORA, ds__zero_stage=stage, actor__lr_scheduler="constant")
    check_run(run, steps=2)
    base, merged = load_file(toy.model / "model.safetensors"), load_file(run / "model/merged/model.safetensors")
    moved = {name: float((merged[name].float() - base[name].float()).abs().max()) for name in base}
    assert max(moved.values()) > 1e-3, "the adapters have learnt something"


@pytest.mark.gpu(2)
def test_adapters_go_merged_by_nccl(toy: Toy, tmp_path: Path) -> None:
    run = tmp_path / "run"
    gpu_train(toy, run, **ON_GPU | SEQ | LORA)
    check_run(run, steps=2)
