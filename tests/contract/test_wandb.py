"""The host's Weights & Biases logger, offline, in processes of their own: a resumed run goes on with its page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from openrlhf_ada.reporting.wandb_run import run_environment

SCRIPT = """
import json, os, sys
from types import SimpleNamespace
from openrlhf_ada.platforms import cpu
cpu.activate()
from openrlhf.utils.logging_utils import WandbLogger
from openrlhf_ada.reporting.wandb_run import use_step_axis
names = dict(key="k", org=None, project="p", group=None, run_name="n")

def log_at(step):
    logger = WandbLogger(SimpleNamespace(logger=SimpleNamespace(wandb=SimpleNamespace(**names))))
    use_step_axis(logger.handle)
    logger.log_train(step, {"reward": 0.5})
    logger.log_eval(step, {"accuracy": 0.25})
    run = logger.handle.run
    summary = {name: run.summary[name] for name in ("train/global_step", "eval/global_step", "eval/accuracy")}
    logger.close()
    print(json.dumps({"id": run.id, "summary": summary}), flush=True)

for step, environment in json.loads(sys.argv[1]):
    # One import for all.
    child = os.fork()
    if not child:
        os.environ |= environment
        log_at(step)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def log_at(*steps: tuple[int, dict[str, str]], folder: Path) -> list[dict[str, object]]:
    """Of each step, logged with these variables: the run's id and its summary."""
    offline = {"WANDB_MODE": "offline", "WANDB_API_KEY": "0" * 40, "WANDB_DIR": str(folder), "WANDB_SILENT": "true"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(steps)],
        env=os.environ | offline,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.slow
def test_a_resumed_run_keeps_its_page_and_its_steps(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    begins = run_environment(run_dir, resumes=False)
    first, again = log_at((3, begins), (5, run_environment(run_dir, resumes=True)), folder=tmp_path)
    assert first["id"] == again["id"] == (run_dir / "wandb_run_id").read_text()
    assert again["summary"] == {"train/global_step": 5, "eval/global_step": 5, "eval/accuracy": 0.25}


def test_new_run_in_same_directory_gets_own_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_environment(tmp_path / "run", resumes=False)
    assert run_environment(tmp_path / "run", resumes=True) == first
    assert run_environment(tmp_path / "run", resumes=False) != first
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    assert run_environment(tmp_path / "run", resumes=False) == {"WANDB_RUN_ID": "mine", "WANDB_RESUME": "allow"}
