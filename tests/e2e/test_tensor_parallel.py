"""An engine of two workers (vLLM's gloo on a CPU): weights, restart, and log-probabilities as the policy's.

Over NCCL's stand-in, and what happens when one worker fails alone: tests/contract/test_nccl_transfer.py.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LIMIT_S, ROOT, Toy, check_ledger, forked_python, own_fork_server, read_jsonl, steps_of, toy_flags

from openrlhf_ada.platforms.without_gpu import DTYPE_VARIABLE

pytestmark = [pytest.mark.e2e, pytest.mark.rehearsal]

CLOSE = 0.002
"""Nats per token, in single precision. One worker with another part of a layer is off by more than 0.1."""


@pytest.fixture(scope="module", autouse=True)
def spoiled() -> Iterator[None]:
    with own_fork_server(ROOT / "tests" / "spoil", ROOT):
        yield


def test_two_workers_sample_as_the_policy_and_are_restarted_together(toy: Toy, tmp_path: Path) -> None:
    """Checksums of both are compared in every update; most tensors are cut. Worker 1 dies as the second one begins."""
    run, mark = tmp_path / "run", tmp_path / "killed"
    flags = toy_flags(
        toy, run, ada_mode="seq", ada_wave=4, ada_max_samples=16, actor__adam__lr=1e-3, vllm__tensor_parallel_size=2,
        ada_verify_sync="always", ada_logprob_steps=1,
    )  # fmt: skip
    program, environment = forked_python()
    changes = {"SPOIL": "leaves", "SPOIL_MARK": str(mark), DTYPE_VARIABLE: "float32"}
    done = subprocess.run(
        [program, "-m", "openrlhf_ada.cli.train_ppo_ray", *flags], capture_output=True, text=True, timeout=LIMIT_S,
        cwd=ROOT, check=False, env=environment | changes,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    assert mark.exists() and mark.with_suffix(".0").exists() and mark.with_suffix(".1").exists()
    check_ledger(run, batch_size=16, group_size=4, cap=16)
    rows = steps_of(run)
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["ada/logprob_gap_mean"] < CLOSE for row in rows), rows
    versions = {(row["step"], row["version"]) for row in read_jsonl(run / "samples.jsonl")}
    assert versions == {(1, 0), (2, 1)}, "the restarted engine has the weights after the first step"
