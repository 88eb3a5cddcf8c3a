"""Modes with and without a critic, synchronous and asynchronous, on the real stack: all train, with exact books.

Modes of runs that have more to show are elsewhere:
    `off`, GRPO: test_off_equals_host.py                `off`, PPO: test_reward_model.py
    `seq`, GRPO: test_adaptive_training.py              `seq`, PPO, colocated: test_reward_model.py
    `seq`, PPO, partial rollouts: test_engine_death.py  `est`, GRPO, asynchronous: test_reward_model.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from books import ASYNC, EST, OWN_CRITIC, PARTIAL, PPO, SEQ, check_books
from conftest import ROOT, Toy, read_jsonl, steps_of, toy_flags, train

pytestmark = [pytest.mark.e2e, pytest.mark.rehearsal]

LORA = {"ds__lora__rank": 4, "ds__lora__alpha": 8, "ada_verify_sync": "always"}
TWO_ROUNDS = {"ada_allocation": "hit", "ada_pilot": 2, "ada_correction": "stratum"}
POS = {"algo__advantage__estimator": "reinforce_baseline", "ada_exit": "pos"}
CHOSEN = {"ada_candidates": 2, "ada_choice": "vade"}
BY_VISITS = {"ada_candidates": 2, "ada_choice": "greso", "ada_select": "best_random"}
TRUSTED = {"ada_estimator": "critic", "ada_trust_steps": 1}

CASES: dict[str, dict[str, Any]] = {
    "seq, async, chosen": SEQ | ASYNC | POS | BY_VISITS | {"ada_loss": "sequence-constant"},
    "est, PPO, partial rollouts, chosen": EST | PPO | PARTIAL | CHOSEN | TRUSTED,
}
LONGER: dict[str, dict[str, Any]] = {
    "off, PPO, async, LoRA": PPO | ASYNC | LORA | {"ada_loss": "sequence-constant"},
    "est, GRPO, two critics, two rounds": EST | OWN_CRITIC | TWO_ROUNDS | {"critic__num_gpus_per_node": 2},
}


@pytest.mark.parametrize("name", [*CASES, *(pytest.param(name, marks=pytest.mark.long) for name in LONGER)])
def test_trains_with_exact_books(toy: Toy, tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    changes = (CASES | LONGER)[name]
    # Two passes over 32 prompts, so that pass rates are known in the second.
    done = train(toy_flags(toy, run, **changes, train__num_episodes=2))
    assert "does not answer" not in done.stdout + done.stderr, "a start is no silence"
    check_books(run, changes)


CONVERSATIONS: dict[str, Any] = {
    "reward__remote_url": None,
    "train__agent_func_path": ROOT / "tests/support/two_turns.py",
    "data__max_len": 64,
    "rollout__max_new_tokens": 12,
    "reward__overlong_buffer_len": 3,
    "reward__overlong_penalty_factor": 1,
}


def test_a_conversation_is_as_long_as_what_was_sampled(toy: Toy, tmp_path: Path) -> None:
    """Two answers of at most three tokens; of what is inserted between them alone, all would be penalised."""
    run = tmp_path / "run"
    train(toy_flags(toy, run, **CONVERSATIONS, **EST, actor__adam__lr=0))
    check_conversations(run)
    assert all(sample["reward"] == sample["metric"] for sample in read_jsonl(run / "samples.jsonl"))


def test_the_same_policy_is_measured_alike(toy: Toy, tmp_path: Path) -> None:
    """With a learning rate of 0. Between the evaluations, mode off samples without seeds; conversations here too."""
    run, held_out = tmp_path / "run", {"eval__dataset": toy.heldout, "eval__n_samples_per_prompt": 4}
    measured = {"eval__temperature": 1.0, "ada_eval_ends": True}
    train(toy_flags(toy, run, **CONVERSATIONS, **ASYNC, **held_out, **measured, actor__adam__lr=0))
    check_conversations(run)
    before, after = (
        {name: value for name, value in row.items() if name.startswith("eval/")}
        for row in read_jsonl(run / "metrics.jsonl")
        if "eval/accuracy" in row
    )
    assert before == after and 0 < before["eval/accuracy"] < 1


def check_conversations(run: Path) -> None:
    assert steps_of(run)
    for row in steps_of(run):
        assert 0 < row["rollout/reward_mean"] == pytest.approx(row["ada/first_wave_metric_mean"])
        assert 9 > row["response_length"] == pytest.approx(row["ada/kept_tokens"] / row["ada/kept"])
        assert row["truncated"] == row["rollout/truncated_rate"] == 0
