"""What the owner of GPUs will run, on a CPU: the measurements of tests/gpu/first_run.sh, and the runs with published
settings. Everything but the sizes is as there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from openrlhf_ada.cli.scenario import read_machine

pytestmark = [pytest.mark.e2e, pytest.mark.rehearsal, pytest.mark.long]

LIMIT_S = 2400


@pytest.fixture(autouse=True)
def alone(own_ray: None) -> None:
    """Each of their runs starts and ends a Ray, as on a user's machine."""


def called(*command: str | Path, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=limit_s, cwd=ROOT, env=environment,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    return done


def test_everything_is_measured_and_plan_reads_it(tmp_path: Path) -> None:
    out = tmp_path / "machine.json"
    done = called(ROOT / "tests" / "gpu" / "first_run.sh", "--rehearse", "--out", out)
    record = json.loads(out.read_text())
    assert {row["result"] for row in record["parts"].values()} == {"pass"}
    trainings = [row["figures"] for row in record["parts"].values() if "step_s" in row["figures"]]
    assert len(trainings) == 6
    for figures in trainings:
        assert figures["step_s"] > 0 and figures["update_s"] > 0 and figures["training_s"] > 0
        assert figures["peak_gib"][0] > 0
    assert record.keys() >= {"engine", "engines", "step", "model", "planned_s"}
    assert set(record["planned_s"]) == {"GRPO n = 4", "balance", "Ada-Est"}
    engine, engines, step = read_machine(out)
    assert engines == 1 and engine.step_seconds[0] > 0 and step.fixed >= 0
    assert "OpenRLHF itself" in done.stdout and "on a CPU" in done.stdout
    again = called(ROOT / "tests" / "gpu" / "first_run.sh", "--rehearse", "--out", out, limit_s=240)
    assert again.stdout == done.stdout, "nothing is measured twice"


def test_published_settings_are_compared_at_equal_seconds(tmp_path: Path) -> None:
    """The toy, two methods, one seed. The same call goes on, and starts nothing more."""
    arena = [sys.executable, "-m", "benchmarks.arena", "real", "--model", "math-toy", "--methods", "lambda-n1-e2"]
    argv = [*arena, "--seeds", "1", "--budget", "6", "--out", str(tmp_path / "out")]
    told = called(*argv).stdout
    summary = json.loads(told.splitlines()[-1])
    assert (summary["runs"], summary["planned"]) == (2, 2)
    assert summary["seeds"] == {"uniform-8": 1, "lambda-n1-e2": 1}
    for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines():
        result = json.loads(line)
        assert sum(result["by_step"]["seconds"]) >= 6
        assert {"accuracy", "pass", "length"} < result["evaluations"].keys()
    assert json.loads(called(*argv, limit_s=240).stdout.splitlines()[-1]) == summary
