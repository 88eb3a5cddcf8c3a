"""Weights & Biases and TensorBoard through what OpenRLHF opens, read back from what they write.

Each has every figure of metrics.jsonl, and a resumed run goes on with its page.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tracked import EVALUATION, STEPS, numbers, wandb_history

from openrlhf_ada.reporting.wandb_run import run_environment

SCRIPT = """
import json, os, sys
from pathlib import Path
from types import SimpleNamespace
sys.path.insert(0, os.environ["SUPPORT"])
from openrlhf_ada.platforms import without_gpu
without_gpu.activate()
from openrlhf.trainer import ppo_trainer
from openrlhf_ada.host.trainer import shown_in_wandb
from openrlhf_ada.reporting.redaction import plain, redact
from openrlhf_ada.reporting.tracking import Trackers
from openrlhf_ada.trainer.recorder import TOTALS
from tracked import EVALUATION, STEPS

folder = Path(sys.argv[1])
names = dict(key=os.environ["WANDB_API_KEY"], org=None, project="p", group=None, run_name="n")
args = SimpleNamespace(logger=SimpleNamespace(wandb=SimpleNamespace(**names), tensorboard_dir=str(folder / "tb")))

def log(steps, resumed_after):
    with shown_in_wandb(lambda args: redact(plain(args))):
        wandb, tensorboard = ppo_trainer.WandbLogger(args), ppo_trainer.TensorboardLogger(args)
    trackers = Trackers(wandb, tensorboard)
    trackers.open(resumed_after)
    if not resumed_after:
        trackers.evaluation(0, EVALUATION | dict.fromkeys(TOTALS, 0))
    for step in steps:
        trackers.log_train(step, STEPS[step] | {"generated_samples": ["2", 1.0]})
        trackers.log_eval(step, {"eval_sums_pass1": 0.5})
    trackers.close()
    trackers.evaluation(step, EVALUATION | {name: STEPS[step][name] for name in TOTALS})
    trackers.finish()

for steps, resumed_after, environment in json.loads(sys.argv[2]):
    # One import for all.
    child = os.fork()
    if not child:
        os.environ |= environment
        log(steps, resumed_after)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
"""Starts of one run, one after the other: which steps each logs, and after which it resumes."""

KEY = "0123456789" * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that logs steps 1 and 2, is killed, and goes on after step 1."""
    folder = tmp_path_factory.mktemp("run")
    begins = run_environment(folder, resumes=False)
    starts = [([1, 2], None, begins), ([2, 3], 1, run_environment(folder, resumes=True))]
    offline = {"WANDB_MODE": "offline", "WANDB_API_KEY": KEY, "WANDB_DIR": str(folder), "WANDB_SILENT": "true"}
    support = {"SUPPORT": str(Path(__file__).parents[1] / "support")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), json.dumps(starts)],
        env=os.environ | offline | support,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


# -- Weights & Biases -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_wandb_has_every_figure_of_every_step(folder: Path) -> None:
    rows, _ = wandb_history(folder, (folder / "wandb_run_id").read_text())
    trained = [row for row in rows if "train/policy_loss" in row]
    assert [row["train/global_step"] for row in trained] == [1, 2, 2, 3], "step 2 was done again"
    for row in trained:
        step = row["train/global_step"]
        expected = numbers("train/", STEPS[step])
        assert {name: row[name] for name in expected} == expected


@pytest.mark.slow
def test_wandb_has_evaluations_at_both_ends_and_between(folder: Path) -> None:
    rows, _ = wandb_history(folder, (folder / "wandb_run_id").read_text())
    ours = [row for row in rows if "eval/accuracy" in row]
    assert [row["eval/global_step"] for row in ours] == [0, 2, 3]
    assert all(row[name] == value for row in ours for name, value in numbers("", EVALUATION).items())
    assert [row["eval/ada/total_drawn"] for row in ours] == [0, 12, 18], "an x axis for them"
    assert {row["eval/eval_sums_pass1"] for row in rows if "eval/eval_sums_pass1" in row} == {0.5}, "OpenRLHF's own"


@pytest.mark.slow
def test_wandb_gets_flags_without_secrets(folder: Path) -> None:
    _, config = wandb_history(folder, (folder / "wandb_run_id").read_text())
    assert config["logger"]["wandb"] == {
        "key": "<removed>",
        "org": None,
        "project": "p",
        "group": None,
        "run_name": "n",
    }
    files = [path for path in (folder / "wandb").rglob("*") if path.is_file()]
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


def test_new_run_in_same_directory_gets_own_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_environment(tmp_path / "run", resumes=False)
    assert run_environment(tmp_path / "run", resumes=True) == first
    assert run_environment(tmp_path / "run", resumes=False) != first
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    assert run_environment(tmp_path / "run", resumes=False) == {"WANDB_RUN_ID": "mine", "WANDB_RESUME": "allow"}


# -- TensorBoard ------------------------------------------------------------------------------------------------------


def events(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0})
    accumulator.Reload()
    return accumulator


def points(accumulator: Any, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in accumulator.Scalars(tag)]


@pytest.mark.slow
def test_tensorboard_has_every_figure_once_although_a_step_was_repeated(folder: Path) -> None:
    read = events(folder / "tb" / "n")
    for name in numbers("train/", STEPS[1]):
        # All of them are exact in half the precision.
        assert points(read, name) == [(step, numbers("train/", STEPS[step])[name]) for step in (1, 2, 3)]
    # The evaluation after step 2 was of the start that was killed.
    for name, value in numbers("", EVALUATION).items():
        assert points(read, name) == [(0, value), (3, value)]
    assert points(read, "eval/eval_sums_pass1") == [(1, 0.5), (2, 0.5), (3, 0.5)]
