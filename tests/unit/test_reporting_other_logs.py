"""Rollouts of other trainers, as their own code writes them: verl 0.9, TRL 1.16, prime-rl (verifiers 0.4), slime."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from openrlhf_ada.cli.main import main as program
from openrlhf_ada.reporting.other_logs import equal_rollouts, is_log, read_log, shares

SCORES = {1: [[0.0, 1.0], [0.0, 0.0], [1.0, 1.0]], 10: [[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]}
"""By step, of its prompts. Two rollouts each; two prompts of a step have the same text."""

ROLLOUTS = [
    (step, number, i, score)
    for step, prompts in SCORES.items()
    for number, scores in enumerate(prompts)
    for i, score in enumerate(scores)
]

Answer = {"output": "x" * 40, "gts": "1"}


def verl(folder: Path, **more: Any) -> None:
    for step in SCORES:
        rows = [
            Answer | {"input": "same?", "score": score, "step": s, "uid": f"id_{number}_{i}_0"} | more
            for s, number, i, score in ROLLOUTS
            if s == step
        ]
        (folder / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def trl(folder: Path, **more: Any) -> None:
    """With the batch of step 10 twice."""
    for logged, step in ((1, 1), (10, 10), (11, 10)):
        rows = [
            {
                "step": logged,
                "prompt": [{"role": "user", "content": f"{step} {number}"}],
                "completion": [{"role": "assistant", "content": "y" * 40}],
                "accuracy_reward": score,
                "advantage": 0.0,
            }
            | more
            for s, number, i, score in ROLLOUTS
            if s == step
        ]
        pd.DataFrame(rows).to_parquet(folder / f"completions_{logged:05d}.parquet")


def prime_rl(folder: Path, **more: Any) -> None:
    for step in SCORES:
        part = folder / f"step_{step}" / "train" / "all"
        part.mkdir(parents=True)
        lines = [
            {
                "group": {"id": f"{s}-{number}"},
                "traces": [{"agent": {"name": "a"}, "num_output_tokens": 10, "rewards": reward_of(score)} | more],
            }
            for s, number, i, score in ROLLOUTS
            if s == step
        ]
        (part / "traces.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def reward_of(score: float) -> dict[str, Any]:
    return {"right": {"score": 2 * score, "weight": 0.5}, "format": {"score": 7.0, "weight": 0.0}}


def slime(folder: Path, **more: Any) -> None:
    for step in SCORES:
        samples = [
            {"group_index": number, "prompt": "p", "response_length": 10, "reward": score, "status": "completed"}
            | more
            for s, number, i, score in ROLLOUTS
            if s == step
        ]
        torch.save({"rollout_id": step, "samples": samples}, folder / f"{step}.pt")
    torch.save({"rollout_id": 1, "samples": []}, folder / "eval_1.pt")


WRITERS: dict[str, Callable[..., None]] = {"verl": verl, "TRL": trl, "prime-rl": prime_rl, "slime": slime}


@pytest.mark.parametrize("trainer", WRITERS)
def test_what_a_trainer_logs_is_read(trainer: str, tmp_path: Path) -> None:
    WRITERS[trainer](tmp_path)
    assert is_log(tmp_path)
    log = read_log(tmp_path)
    assert (log.trainer, log.steps, len(log.groups), log.usual_size, log.positive_above) == (trainer, 2, 6, 2, 0.0)
    assert [[r.score for r in group] for group in log.groups.values()] == [*SCORES[1], *SCORES[10]]
    assert {rollout.tokens for rollout in log.rollouts} == {10.0}
    assert shares(log) == pytest.approx((3 / 6, 1 / 6, 2 / 6)) and equal_rollouts(log) == 8


def test_prompts_without_a_number_are_told_apart_by_their_text(tmp_path: Path) -> None:
    samples = [{"group_index": None, "prompt": p, "response_length": 1, "reward": 1.0} for p in "aabb"]
    torch.save({"rollout_id": 1, "samples": samples}, tmp_path / "1.pt")
    assert [len(group) for group in read_log(tmp_path).groups.values()] == [2, 2]


@pytest.mark.parametrize(
    ("trainer", "more"),
    [
        ("verl", {"score": None}),
        ("TRL", {"accuracy_reward": float("nan")}),
        ("prime-rl", {"rewards": {"right": None}}),
        ("slime", {"reward": None}),
    ],
    ids=WRITERS,
)
def test_rollouts_without_a_score_are_counted(trainer: str, more: dict[str, Any], tmp_path: Path) -> None:
    WRITERS[trainer](tmp_path, **more)
    with pytest.raises(ValueError, match="none of its 12 rollouts has a score"):
        read_log(tmp_path)


@pytest.mark.parametrize(
    ("trainer", "more", "said"),
    [
        ("TRL", {"format_reward": 1.0}, "accuracy_reward, format_reward.*--score NAME"),
        ("slime", {"reward": {"a": 1.0, "b": 0.0}}, "a, b.*--score NAME"),
        ("slime", {"response_length": None}, "line 1: no 'response_length'"),
        ("verl", {"score": "right"}, r"1\.jsonl, line 1: 'score' is 'right', expected a number"),
        ("prime-rl", {"rewards": {"right": {"score": "x"}}}, "line 1: 'score' is 'x'"),
    ],
)
def test_a_score_that_is_not_plain_is_refused(trainer: str, more: dict[str, Any], said: str, tmp_path: Path) -> None:
    WRITERS[trainer](tmp_path, **more)
    with pytest.raises(ValueError, match=said):
        read_log(tmp_path)


def test_the_score_can_be_named(tmp_path: Path) -> None:
    trl(tmp_path, format_reward=1.0)
    assert {rollout.score for rollout in read_log(tmp_path, "format_reward").rollouts} == {1.0}
    (tmp_path / "verl").mkdir()
    verl(tmp_path / "verl", acc=True)
    assert {rollout.score for rollout in read_log(tmp_path / "verl", "acc").rollouts} == {1.0}


@pytest.mark.parametrize("trainer", ["verl", "slime"])
def test_a_damaged_file_is_named(trainer: str, tmp_path: Path) -> None:
    WRITERS[trainer](tmp_path)
    (damaged,) = tmp_path.glob("10.*")
    damaged.write_bytes(b"\x80\x02cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(ValueError, match=damaged.name):
        read_log(tmp_path)


def test_the_command_says_what_others_would_have_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    verl(tmp_path)
    monkeypatch.setattr("sys.argv", ["openrlhf-ada", "report", str(tmp_path)])
    assert program() == 0
    said = capsys.readouterr().out
    assert "12 rollouts of 6 prompts in 2 steps" in said and "recorded" in said and "reinforce-ada-balance" in said


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("plan", "--score", "acc"), "--score is for a log"),
        (("plan", "{log}", "--beta", "1,1"), "--beta"),
        (("report", "{log}/none"), "is not a run directory"),
        (("report", "{log}", "--follow"), "--follow and --out are for runs"),
    ],
)
def test_wrong_input_says_what_to_do(
    argv: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    verl(tmp_path)
    monkeypatch.setattr("sys.argv", ["openrlhf-ada", *(word.format(log=tmp_path) for word in argv)])
    assert program() == 2
    assert said in capsys.readouterr().err
