"""Weights & Biases, TensorBoard and MLflow through what OpenRLHF opens, read back from what they write.

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

from openrlhf_ada.reporting.track_wandb import run_environment

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
from openrlhf_ada.reporting.tracking import SAMPLES, Axes, axes_of
from openrlhf_ada.trainer.run_trackers import RunTrackers
from tracked import EVALUATION, SAMPLE_ROWS, STEPS

folder = Path(sys.argv[1])
names = dict(key=os.environ["WANDB_API_KEY"], org=None, project="p", group=None, run_name="n")
args = SimpleNamespace(logger=SimpleNamespace(wandb=SimpleNamespace(**names), tensorboard_dir=str(folder / "tb")))

def log(steps, resumed_after):
    with shown_in_wandb(lambda args: redact(plain(args))):
        wandb, tensorboard = ppo_trainer.WandbLogger(args), ppo_trainer.TensorboardLogger(args)
    trackers = RunTrackers(wandb, tensorboard)
    after = (resumed_after, axes_of(STEPS[resumed_after])) if resumed_after else None
    trackers.open(os.environ.get("MLFLOW"), folder, after, print)
    if not after:
        trackers.evaluation(0, EVALUATION, Axes())
    for step in steps:
        trackers.log_train(step, STEPS[step] | {SAMPLES: SAMPLE_ROWS, "generated_samples": ["2", 1.0]})
        trackers.log_eval(step, {"eval_sums_pass1": 0.5})
    trackers.close()
    trackers.evaluation(step, EVALUATION, axes_of(STEPS[step]))
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
    log_starts(folder, starts)
    return folder


def log_starts(folder: Path, starts: list[Any], **environment: str) -> str:
    offline = {"WANDB_MODE": "offline", "WANDB_API_KEY": KEY, "WANDB_DIR": str(folder), "WANDB_SILENT": "true"}
    support = {"SUPPORT": str(Path(__file__).parents[1] / "support")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), json.dumps(starts)],
        env=os.environ | offline | support | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


# -- Weights & Biases -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_wandb_has_every_figure_of_every_step(folder: Path) -> None:
    rows, _ = wandb_history(folder, (folder / "wandb_run_id").read_text())
    trained = [row for row in rows if "train/global_step" in row]
    assert [row["train/global_step"] for row in trained] == [1, 2, 2, 3], "step 2 was done again"
    for row in trained:
        step = row["train/global_step"]
        expected = numbers("train/", STEPS[step])
        assert {name: row[name] for name in expected} == expected
        assert {name: row[f"axis/{name}"] for name in ("steps", "rollouts", "tokens", "seconds")} == {
            "steps": step, "rollouts": 6 * step, "tokens": 60 * step, "seconds": 3.0 * step,
        }  # fmt: skip
        draws = row["train/ada/draws"]
        assert (draws["_type"], draws["values"], draws["bins"]) == (
            "histogram",
            [3, 0, 0, 0, 1],
            [3.5, 4.5, 5.5, 6.5, 7.5, 8.5],
        )
        assert row["train/ada/allocated_rollouts"]["values"] == [8, 0, 0, 12, 0, 0, 0]


@pytest.mark.slow
def test_wandb_has_evaluations_at_both_ends_and_between(folder: Path) -> None:
    rows, _ = wandb_history(folder, (folder / "wandb_run_id").read_text())
    ours = [row for row in rows if "eval/accuracy" in row]
    assert [row["eval/global_step"] for row in ours] == [0, 2, 3]
    assert all(row[name] == value for row in ours for name, value in numbers("", EVALUATION).items())
    assert [row["axis/rollouts"] for row in ours] == [0, 12, 18]
    assert {row["eval/eval_sums_pass1"] for row in rows if "eval/eval_sums_pass1" in row} == {0.5}, "OpenRLHF's own"


@pytest.mark.slow
def test_wandb_has_a_table_of_samples(folder: Path) -> None:
    rows, _ = wandb_history(folder, (folder / "wandb_run_id").read_text())
    shown = next(row["train/samples"] for row in rows if "train/samples" in row)
    (path,) = list((folder / "wandb").glob(f"offline-run-*/files/{shown['path']}"))
    table = json.loads(path.read_text())
    first, second = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert (first["prompt"], first["response"], first["kept"]) == ("1+1=", "2 | <b>\nso", True)
    assert (second["prompt"], second["response"], second["cause"]) == ("1+1=", "3", "wrong")


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

    accumulator = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0, "histograms": 0})
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


@pytest.mark.slow
def test_tensorboard_has_curves_over_rollouts_tokens_and_seconds(folder: Path) -> None:
    for axis, per_step in (("rollouts", 6), ("tokens", 60), ("seconds", 3)):
        read = events(folder / "tb" / "n" / f"by_{axis}")
        right = f"by_{axis}/train/ada/first_wave_metric_mean"
        assert points(read, right) == [(per_step * step, 0.5) for step in (1, 2, 3)]
        assert points(read, f"by_{axis}/eval/accuracy") == [(0, 0.5), (3 * per_step, 0.5)]


@pytest.mark.slow
def test_tensorboard_has_histograms_and_samples(folder: Path) -> None:
    read = events(folder / "tb" / "n")
    draws = read.Histograms("train/ada/draws")[0].histogram_value
    assert (draws.num, draws.sum) == (4, 3 * 4 + 8)
    assert [draws.bucket[i] for i in range(6)] == [0, 3, 0, 0, 0, 1]
    allocated = read.Histograms("train/ada/allocated_rollouts")[0].histogram_value
    assert list(allocated.bucket) == [0, 8, 0, 0, 12, 0, 0, 0]
    text = read.Tensors("train/samples/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| 1+1= | 0 | 2 &#124; &lt;b><br>so | 1 | 1 | 2 | True | 0.5 |" in text
    assert "| 1+1= | 1 | 3 | 0 | 0 | 2 | False |  | wrong |" in text
