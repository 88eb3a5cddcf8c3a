"""Weights on the real stack, over vLLM's gloo: an engine of two workers has the policy's, dies and gets them again;
what arrives wrongly ends the run. What arrives rightly otherwise: test_export.py.

The pieces: tests/unit/test_weights_sender.py, test_weights_engine_side.py, test_weights_policy_side.py. Over NCCL's
stand-in, and what happens when one worker fails alone: tests/contract/test_nccl_transfer.py.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import LIMIT_S, ROOT, Toy, check_ledger, forked_python, own_fork_server, read_jsonl, steps_of, toy_flags

from openrlhf_ada.platforms.without_gpu import DTYPE_VARIABLE

pytestmark = [pytest.mark.e2e, pytest.mark.rehearsal]

SEQ = {"ada_mode": "seq", "ada_wave": 4, "ada_max_samples": 16}
CHECKED = {"ada_verify_sync": "always", "ada_logprob_steps": 1}

CLOSE = 0.002
"""Nats per token, in single precision. One worker with another part of a layer is off by more than 0.1."""


@pytest.fixture(scope="module", autouse=True)
def spoiled() -> Iterator[None]:
    with own_fork_server(ROOT / "tests" / "spoil", ROOT):
        yield


def train_spoiled(flags: list[str], told: str, **variables: str) -> None:
    """`variables`: see tests/spoil. `told`: how the run ends."""
    program, environment = forked_python()
    done = subprocess.run(
        [program, "-m", "openrlhf_ada.cli.train_ppo_ray", *flags], capture_output=True, text=True, timeout=LIMIT_S,
        cwd=ROOT, check=False, env=environment | variables,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout[-4000:] + done.stderr[-8000:]
    assert told in done.stderr


def test_two_workers_have_the_policys_weights_or_the_run_ends(toy: Toy, tmp_path: Path) -> None:
    """Checksums of both are compared in every update; most tensors are cut. Worker 1 dies as the second update begins.
    The engine that is restarted gets one wrong tensor after the third step, which so never ends.
    """
    run, mark = tmp_path / "run", tmp_path / "killed"
    changes: dict[str, Any] = {"actor__adam__lr": 1e-3, "vllm__tensor_parallel_size": 2, "data__max_samples": 64}
    told = "tensors arrived with other values than were sent, the first: model.layers.0.mlp.down_proj.weight"
    variables = {"SPOIL": "leaves,arrives", "SPOIL_MARK": str(mark), DTYPE_VARIABLE: "float32"}
    train_spoiled(toy_flags(toy, run, **SEQ, **CHECKED, **changes), told, **variables)
    assert mark.exists() and mark.with_suffix(".0").exists() and mark.with_suffix(".1").exists()
    check_ledger(run, batch_size=16, group_size=4, cap=16)
    rows = steps_of(run)
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["ada/logprob_gap_mean"] < CLOSE for row in rows), rows
    versions = {(row["step"], row["version"]) for row in read_jsonl(run / "samples.jsonl") if row["step"] <= 2}
    assert versions == {(1, 0), (2, 1)}, "the restarted engine has the weights after the first step"


@pytest.mark.long
def test_weights_that_are_loaded_wrongly_end_the_run(toy: Toy, tmp_path: Path) -> None:
    """In the third update, after the second step. No checksum sees it; log-probabilities do."""
    run = tmp_path / "run"
    changes: dict[str, Any] = {"actor__adam__lr": 3e-3, "data__max_samples": 48}
    train_spoiled(toy_flags(toy, run, **SEQ, **CHECKED, **changes), "--ada_logprob_stop is 1", SPOIL="loads")
    assert [row["step"] for row in steps_of(run)] == [1, 2], "the third never begins"
