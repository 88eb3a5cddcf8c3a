"""Command lines for the tests on GPUs, and what holds after every one of their runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from conftest import Toy, check_ledger, read_jsonl, steps_of, toy_flags, train

BATCH, N, CAP = 16, 4, 16

ON_GPU: dict[str, Any] = {
    "vllm__sync_backend": "nccl",
    "ds__attn_implementation": "flash_attention_2",
    "vllm__gpu_memory_utilization": 0.3,
    "vllm__enforce_eager": True,
    "ada_logprob_steps": 1,
    "ada_verify_sync": "always",
}
"""Policy and engine on a GPU each; log-probabilities compared in every step, checksums in every update."""

COLOCATED: dict[str, Any] = ON_GPU | {
    "train__colocate_all": True,
    "vllm__enable_sleep": True,
    "ds__enable_sleep": True,
}
"""Policy and engine on one GPU, which they have in turns; weights go through its memory (CUDA IPC)."""

SEQ: dict[str, Any] = {"ada_mode": "seq", "ada_wave": 4, "ada_max_samples": CAP, "actor__adam__lr": 1e-3}

GPU_LIMIT_S = 1500
"""A first run also compiles DeepSpeed's optimizer and vLLM's graphs."""

CLOSE = 0.05
"""Mean distance of log-probabilities in nats, both sides in bfloat16. With weights of another step it is larger."""

CLOSE_SMOLLM2 = 0.1
"""Its logits lie above 16, where bfloat16's steps are 0.125: 0.047 and 0.048 on an H200, 0.035 to 0.051 on a CPU."""


def gpu_train(toy: Toy, run: Path, **changes: Any) -> str:
    """Run to the end; what it printed."""
    done = train(toy_flags(toy, run, **changes), limit_s=GPU_LIMIT_S)
    return done.stdout + done.stderr


def check_run(
    run: Path, *, steps: int, synchronous: bool = True, refills: bool = False, close: float = CLOSE
) -> list[dict[str, Any]]:
    """Books are exact, the policy was trained, and the engines had its weights; the steps' figures."""
    rows = steps_of(run)
    if refills:
        assert all(row["ada/kept"] == BATCH * N for row in rows)
    else:
        check_ledger(run, batch_size=BATCH, group_size=N, cap=CAP)
    assert [row["step"] for row in rows] == list(range(1, steps + 1))
    assert all(np.isfinite(row["policy_loss"]) for row in rows)
    assert any(row["actor_grad_norm"] > 0 for row in rows)
    for row in rows:
        assert row["ada/logprob_gap_mean"] < (close if synchronous else 1.0), rows
    if synchronous:
        versions = {row["step"]: set() for row in rows}
        for sample in read_jsonl(run / "samples.jsonl"):
            versions[sample["step"]] |= {sample["version"], sample.get("last_version", sample["version"])}
        assert versions == {step: {step - 1} for step in versions}, "each step sampled with the weights of the last"
    return rows
