"""Graders of one's own on the real stack: where one hangs or crashes, that costs its time limit and never the run.

A reward server that fails: test_prepare_train_evaluate.py. Rows with a grader each that are prepared and evaluated:
tests/unit/test_data_row_rewards.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Toy, check_ledger, read_jsonl, steps_of, toy_flags, train

MINE = """
import os
from openrlhf_ada.reward.grade import Grade


def brevity(response, label):
    return Grade(0.5 if len(response.strip()) > 1 else 1.0, "long")


def same_text(response, label):
    if label.endswith("7"):
        while True:
            pass
    if label == "12":
        os._exit(1)
    return Grade(float(response.strip() == label), "other text")
"""


@pytest.mark.e2e
def test_rows_with_a_grader_each_and_a_weighted_sum(toy: Toy, tmp_path: Path) -> None:
    """Prompts that do not fit are listed, and those without a score train nothing; neither ends the run."""
    mine = tmp_path / "mine.py"
    mine.write_text(MINE)
    graders = [f"{mine}:same_text", "arithmetic"]
    rows = [row | {"reward": graders[number % 2]} for number, row in enumerate(read_jsonl(toy.train)[:64])]
    rows[-1]["input"] = "1+" * 20 + "1="
    hopeless = {
        str(number)
        for number, row in enumerate(rows)
        if number % 2 == 0 and (row["label"].endswith("7") or row["label"] == "12")
    }
    assert len(hopeless) > 1
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_dir = tmp_path / "run"
    flags = {
        "ada_mode": "seq",
        "ada_max_samples": 8,
        "ada_wave": 4,
        "ada_reward_timeout": 1,
        "ada_reward_workers": 2,
        "ada_max_no_score": 0.9,
        "reward.remote_url": f"mixed,{mine}:brevity",
        "ada_reward_weights": "1,0.25",
        "data.prompt_dataset": data,
        "data.max_samples": 64,
    }
    train(toy_flags(toy, run_dir, **flags))
    check_ledger(run_dir, batch_size=16, group_size=4, cap=8)
    (left_out,) = read_jsonl(run_dir / "left_out.jsonl")
    assert (left_out["source"], left_out["place"]) == (str(data), "line 64")
    assert "the prompt has 42 tokens, and --data.max_len 32 less --rollout.max_new_tokens 4" in left_out["cause"]
    steps, samples = steps_of(run_dir), read_jsonl(run_dir / "samples.jsonl")
    assert sum(row["ada/no_score"] for row in steps) > 0
    assert not hopeless & {sample["prompt_id"] for sample in samples}
    assert {sample["prompt_id"] for sample in samples} <= {str(number) for number in range(63)}
    for sample in samples:
        assert sample["reward"] - sample["metric"] in (0.125, 0.25), "the score is the first reward alone"
        assert 0 < sample["scoring_s"] < 1
    assert {sample.get("cause") for sample in samples} >= {"wrong answer", "other text"}
    for step in steps:
        mixed, brevity = step["trained/reward_mixed"], step["trained/reward_mine_brevity"]
        assert step["trained/reward"] == pytest.approx(mixed + 0.25 * brevity, abs=1e-5)
        assert step["ada/scoring_s_mean"] < 1
