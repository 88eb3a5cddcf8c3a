"""A grader of one's own on the real stack: where it hangs or crashes, that costs its time limit and never the run.

A reward server that fails: test_prepare_train_evaluate.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Toy, check_ledger, read_jsonl, steps_of, toy_flags, train

REWARD = """
import os
from openrlhf_ada.reward.reward_function import pooled
from openrlhf_ada.reward.grade import Grade


def grade(response, label):
    if label.endswith("7"):
        while True:
            pass
    if label == "12":
        os._exit(1)
    right = response.strip() == label
    return Grade(float(right), "" if right else "wrong answer")


reward_func = pooled(f"{__file__}:grade")
"""


@pytest.mark.e2e
def test_hanging_grader_costs_its_limit_only(toy: Toy, tmp_path: Path) -> None:
    reward = tmp_path / "my_reward.py"
    reward.write_text(REWARD)
    run_dir = tmp_path / "run"
    flags = {
        "ada_mode": "seq",
        "ada_max_samples": 8,
        "ada_wave": 4,
        "ada_reward_timeout": 1,
        "ada_reward_workers": 2,
        "ada_max_no_score": 0.9,
        "ada_format": "boxed",
        "ada_format_bonus": 0.5,
        "reward.remote_url": reward,
        "data.max_samples": 64,
    }
    train(toy_flags(toy, run_dir, **flags))
    check_ledger(run_dir, batch_size=16, group_size=4, cap=8)
    steps = steps_of(run_dir)
    labels = [row["label"] for row in read_jsonl(toy.train)[:64]]
    hopeless = {str(i) for i, label in enumerate(labels) if label.endswith("7") or label == "12"}
    assert hopeless
    assert sum(row["ada/no_score"] for row in steps) > 0
    samples = read_jsonl(run_dir / "samples.jsonl")
    assert not hopeless & {sample["prompt_id"] for sample in samples}
    for sample in samples:
        # Numbers are in no box: shaping adds nothing, and the cause is the grader's word.
        assert sample["reward"] == sample["metric"]
        assert 0 < sample["scoring_s"] < 1
        assert sample.get("cause") == (None if sample["metric"] == 1.0 else "wrong answer")
    for row in steps:
        assert row["ada/causes"].keys() == {"wrong answer"}
        assert row["ada/scoring_s_mean"] < 1


STYLE = """
from openrlhf_ada.reward.grade import Grade


def brevity(response, label):
    return Grade(0.5 if len(response.strip()) > 1 else 1.0, "long")


def same_text(response, label):
    return Grade(float(response.strip() == label), "other text")
"""


@pytest.mark.e2e
def test_rows_with_a_grader_each_and_a_weighted_sum(toy: Toy, tmp_path: Path) -> None:
    """Prepared, trained on and evaluated. Prompts that do not fit are listed, and end no run."""
    style = tmp_path / "style.py"
    style.write_text(STYLE)
    graders = ["arithmetic", f"{style}:same_text"]
    rows = [row | {"reward": graders[number % 2]} for number, row in enumerate(read_jsonl(toy.train)[:48])]
    rows[5]["input"] = "1+" * 20 + "1="
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_dir = tmp_path / "run"
    flags = {
        "ada_mode": "seq",
        "ada_max_samples": 8,
        "ada_wave": 4,
        "reward.remote_url": f"mixed,{style}:brevity",
        "ada_reward_weights": "1,0.25",
        "data.prompt_dataset": data,
        "data.max_samples": 48,
    }
    train(toy_flags(toy, run_dir, **flags))
    (left_out,) = read_jsonl(run_dir / "left_out.jsonl")
    assert (left_out["source"], left_out["place"]) == (str(data), "line 6")
    assert "the prompt has 42 tokens, and --data.max_len 32 less --rollout.max_new_tokens 4" in left_out["cause"]
    samples = read_jsonl(run_dir / "samples.jsonl")
    assert len({sample["prompt_id"] for sample in samples}) == 32
    for sample in samples:
        assert sample["reward"] - sample["metric"] in (0.125, 0.25), "the score is the first reward alone"
    assert {sample.get("cause") for sample in samples} >= {"wrong answer", "other text"}

    for step in steps_of(run_dir):
        mixed, brevity = step["trained/reward_mixed"], step["trained/reward_style_brevity"]
        assert step["trained/reward"] == pytest.approx(mixed + 0.25 * brevity, abs=1e-5)

    sampling = ("--model", toy.model, "--max_new_tokens", 4, "--max_len", 32, "--n", 2)
    prepared, evaluated = tmp_path / "prepared", tmp_path / "eval"
    verbs = (("prepare-data", data, "--out", prepared), ("eval", "--benchmark", prepared / "train.parquet"))
    for verb, out in zip(verbs, ((), ("--out", evaluated)), strict=True):
        command = (*verb, *sampling, "--reward", f"mixed,{style}:brevity", *out)
        text = train([str(part) for part in command], "openrlhf_ada.cli.main").stdout
        assert verb[0] == "eval" or f"--reward.remote_url mixed,{style}:brevity" in text
    causes = {row["place"]: row["cause"] for row in read_jsonl(prepared / "dropped.jsonl")}
    assert "the prompt has 42 tokens" in causes["line 6"]
    answers = read_jsonl(next(evaluated.glob("*/train/answers.jsonl")))
    assert {row["cause"] for row in answers if row["score"] == 0.0} >= {"wrong answer", "other text"}
    assert all(row["score"] in (0.0, 1.0) for row in answers)
