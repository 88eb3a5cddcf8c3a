"""Evaluation, checkpoint and resume: the resumed run serves the prompts and keys that an uninterrupted one would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Toy, check_ledger, read_jsonl, steps_of, toy_flags, train

pytestmark = pytest.mark.e2e


def test_resume_goes_on_where_the_checkpoint_is(toy: Toy, tmp_path: Path) -> None:
    run = tmp_path / "run"
    common = {
        "ada_mode": "seq",
        "ada_wave": 4,
        "ada_max_samples": 8,
        "data.max_samples": 64,
        "ckpt.save_steps": 2,
        "eval.steps": 2,
        "eval.dataset": toy.heldout,
        "eval.n_samples_per_prompt": 2,
        "ckpt.best_metric_key": "none",
    }
    train(toy_flags(toy, run, **common))
    whole = read_jsonl(run / "samples.jsonl")
    order = {step: [s["prompt_id"] for s in whole if s["step"] == step and s["index"] == 0] for step in range(1, 5)}
    assert [row["step"] for row in steps_of(run)] == [1, 2, 3, 4]

    # Go back to the checkpoint of step 2, as a run that was killed after step 3 would.
    latest = run / "ckpt" / "_actor" / "latest"
    assert latest.read_text() == "global_step4"
    latest.write_text("global_step2")
    train(toy_flags(toy, run, **common, **{"ckpt.load_enable": True}))

    check_ledger(run, batch_size=16, group_size=4, cap=8)
    steps = steps_of(run)
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    resumed = read_jsonl(run / "samples.jsonl")
    for step in (3, 4):
        assert [s["prompt_id"] for s in resumed if s["step"] == step and s["index"] == 0] == order[step]
    keys = [s["key"] for s in resumed if s["index"] == 0]
    assert keys == list(range(64))
    assert steps[-1]["ada/total_drawn"] == len(resumed)
    assert json.loads((run / "summary.json").read_text())["rollouts"] == len(resumed)
    evaluations = [row["step"] for row in read_jsonl(run / "metrics.jsonl") if "eval/accuracy" in row]
    assert evaluations == [2, 4]
