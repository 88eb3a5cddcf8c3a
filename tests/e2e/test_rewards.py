"""A grader of one's own on the real stack: where it hangs or crashes, that costs its time limit and never the run.

A reward server that fails: test_prepare_train_evaluate.py.
"""

from __future__ import annotations

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
        assert row["ada/scoring_s_mean"] <= row["ada/scoring_s_max"] < 1
