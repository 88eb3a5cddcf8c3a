"""--ada_overlap: groups are trained while others are sampled, with the weights of a run that waits for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from books import SEQ
from conftest import Toy, check_ledger, read_jsonl, steps_of, toy_flags, train
from deadly_rewards import REWARDS
from moved_weights import ONE_STEP, check_same_step

from openrlhf_ada.platforms.cpu_dtype import DTYPE_VARIABLE

pytestmark = [pytest.mark.e2e, pytest.mark.rehearsal]

PARTS = SEQ | {"rollout__micro_batch_size": 4, "train__micro_batch_size": 4, "actor__num_gpus_per_node": 2}
"""A part is as small as the groups of two prompts."""

OVERLAP = {"ada_overlap": True}

SAME = (
    "trained/return",
    "rollout/response_length_mean",
    "response_length",
    "actor_grad_norm",
    "ada/surprisal",
    "ada/logprob_gap_mean",
)
"""Not `policy_loss`: OpenRLHF's figure depends on which samples share a micro-batch."""


def rollouts(run: Path) -> list[tuple[Any, ...]]:
    rows = read_jsonl(run / "samples.jsonl")
    return sorted((row["key"], row["index"], row["reward"], row["coefficient"], row["tokens"]) for row in rows)


@pytest.mark.parametrize("stage", [2, 3])
def test_weights_are_those_of_a_run_that_waits(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: int
) -> None:
    # In half precision the order of additions alone moves a step by a twentieth.
    monkeypatch.setenv(DTYPE_VARIABLE, "float32")
    runs = {"waits": {}, "overlaps": OVERLAP}
    for name, changes in runs.items():
        train(toy_flags(toy, tmp_path / name, **PARTS, **ONE_STEP, **changes, ds__zero_stage=stage))
    (waits,), (overlaps,) = (steps_of(tmp_path / name) for name in runs)
    assert overlaps["ada/overlapped"] >= 2 / 16, "two prompts or more are done before the last"
    assert rollouts(tmp_path / "overlaps") == rollouts(tmp_path / "waits")
    for figure in SAME:
        assert overlaps[figure] == pytest.approx(waits[figure], rel=1e-3, abs=1e-5), figure
    check_same_step(toy.model, tmp_path / "waits", tmp_path / "overlaps")


def test_an_engine_that_dies_gets_its_weights_between_two_parts(toy: Toy, tmp_path: Path) -> None:
    run, rewards, killed = tmp_path / "run", tmp_path / "rewards.py", tmp_path / "killed"
    rewards.write_text(REWARDS.format(done=str(killed), victim="core", call=100))
    done = train(toy_flags(toy, run, **PARTS, **OVERLAP, reward__remote_url=rewards, train__num_episodes=2))
    told = done.stdout + done.stderr
    assert killed.exists() and "is back with the policy's weights" in told, told
    check_ledger(run, batch_size=16, group_size=4, cap=16)
    assert all(row["ada/overlapped"] > 0 for row in steps_of(run))
