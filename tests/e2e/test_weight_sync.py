"""Weights on the real stack: what arrives wrongly ends the run. What arrives rightly: test_export.py.

The pieces: tests/unit/test_weights_sender.py, test_weights_engine_side.py, test_weights_policy_side.py.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import LIMIT_S, ROOT, Toy, forked_python, own_fork_server, steps_of, toy_flags

pytestmark = [pytest.mark.e2e, pytest.mark.rehearsal]

SEQ = {"ada_mode": "seq", "ada_wave": 4, "ada_max_samples": 16, "actor__adam__lr": 3e-3, "data__max_samples": 48}


@pytest.fixture(scope="module", autouse=True)
def spoiled() -> Iterator[None]:
    with own_fork_server(ROOT / "tests" / "spoil", ROOT):
        yield


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
def test_wrong_weights_end_the_run_before_training(
    toy: Toy, tmp_path: Path, fault: str, changes: dict[str, Any], told: str
) -> None:
    """In the third update, after the second step: checksums see what arrives, log-probabilities what is loaded."""
    run = tmp_path / "run"
    program, environment = forked_python()
    command = [program, "-m", "openrlhf_ada.cli.train_ppo_ray", *toy_flags(toy, run, **SEQ, **changes)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT, check=False,
        env=environment | {"SPOIL": fault},
    )  # fmt: skip
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr[-4000:]
    assert told in done.stderr
    # The second step's weights do not arrive, so it never ends; they are loaded wrongly, so the third never begins.
    assert [row["step"] for row in steps_of(run)] == ([1, 2] if fault == "loads" else [1])
