"""Scripts of examples/scripts, called as a user does: `DEVICE=cpu STEPS=2 <script>`, with the toy model."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
from conftest import LIMIT_S, ROOT, Toy, read_jsonl, steps_of

SCRIPTS = ROOT / "examples" / "scripts"
BATCH, GROUP, STEPS = 16, 4, 2
TOY_SIZES = {"REWARD": "arithmetic", "CHAT": "0", "BATCH": str(BATCH), "MAX_LEN": "48", "MAX_NEW_TOKENS": "4"}
TOY_RATES = ("--actor.adam.lr", "3e-4", "--critic.adam.lr", "1e-3")
"""The tests' toy is a model of their own to the scripts, which give such a model no toy settings."""


def run_example(script: str, toy: Toy, run: Path, *arguments: str, **environment: str) -> str:
    """Its output; fails with it where the script does."""
    known = {
        "DEVICE": "cpu",
        "STEPS": str(STEPS),
        "EPISODES": "1",
        "MODEL": str(toy.model),
        "DATA": str(toy.train),
        "EVAL_DATA": str(toy.heldout),
        "RUN_DIR": str(run),
    } | TOY_SIZES
    done = subprocess.run(
        [str(SCRIPTS / script), *TOY_RATES, *arguments],
        cwd=run.parent,
        env=os.environ | known | environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout + done.stderr


def check_example(run: Path, mode: str, eval_steps: int = STEPS) -> None:
    steps = steps_of(run)
    assert [row["step"] for row in steps] == list(range(1, STEPS + 1))
    for row in steps:
        assert np.isfinite(row["policy_loss"])
        assert row["ada/kept"] == BATCH * GROUP
        assert row["ada/drawn"] == row["ada/kept"] + row["ada/unused"] + row["ada/aborted"]
        if mode == "off":
            assert row["ada/drawn"] == BATCH * GROUP
        if mode == "est":
            assert row["ada/drawn"] == BATCH * 8, "the budget, exactly"
    evaluations = [row for row in read_jsonl(run / "metrics.jsonl") if "eval/accuracy" in row]
    assert [row["step"] for row in evaluations] == list(range(0, STEPS + 1, eval_steps))
    assert (run / "report.html").exists() and (run / "summary.json").exists()
    assert any((run / "model").iterdir())
