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
GRPO = {"algo__advantage__estimator": "dr_grpo"}
TWO_ROUNDS = {"ada_allocation": "hit", "ada_pilot": 2, "ada_correction": "stratum"}
POS = {"algo__advantage__estimator": "reinforce_baseline", "ada_exit": "pos"}
RATED = {
    "ada_exit": "fixed",
    "ada_max_samples": 1,
    "ada_select": "all",
    "ada_baseline": "blend",
    "ada_estimator": "rating",
    "algo__advantage__estimator": "flash_reinforce",
    "rollout__n_samples_per_prompt": 1,
    "rollout__micro_batch_size": 16,
    "train__batch_size": 8,
    "train__micro_batch_size": 8,
    "train__max_epochs": 2,
}
CHOSEN = {"ada_candidates": 2, "ada_choice": "vade"}
BY_VISITS = {"ada_candidates": 2, "ada_choice": "greso", "ada_select": "best_random"}

CASES: dict[str, dict[str, Any]] = {
    "off, GRPO, async, LoRA": GRPO | ASYNC | LORA | {"ada_loss": "sequence-constant"},
    "off, PPO, async": PPO | ASYNC,
    "seq, GRPO, async, chosen": SEQ | ASYNC | POS | BY_VISITS | {"ada_loss": "sequence-constant"},
    "est, GRPO, two critics": EST | GRPO | OWN_CRITIC | {"critic__num_gpus_per_node": 2},
    "est, PPO": EST | PPO | {"ada_estimator": "critic", "ada_trust_steps": 1},
    "est, GRPO, two rounds": EST | GRPO | TWO_ROUNDS,
    "seq, one rollout": SEQ | RATED,
    "est, PPO, partial rollouts, chosen": EST
    | PPO
    | PARTIAL
    | CHOSEN
    | {"ada_estimator": "critic", "ada_trust_steps": 1},
}


@pytest.mark.parametrize("name", CASES)
def test_trains_with_exact_books(toy: Toy, tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    changes = CASES[name]
    # Two passes over 32 prompts, so that pass rates are known in the second.
    done = train(toy_flags(toy, run, **changes, train__num_episodes=2))
    assert "does not answer" not in done.stdout + done.stderr, "a start is no silence"
    check_books(run, changes)


def test_dropped_prompts_train_nothing(toy: Toy, tmp_path: Path) -> None:
    """Two rollouts, and two more where one is right. Where no fresh prompt is left, the others fill their places."""
    run = tmp_path / "run"
    gate = {"ada_exit": "gate", "ada_pilot": 2, "ada_gate_low": 0.5, "ada_gate_high": 0.5, "ada_max_samples": 4}
    train(toy_flags(toy, run, ada_mode="seq", ada_select="random", ada_unresolved="refill", **gate))
    samples, steps = read_jsonl(run / "samples.jsonl"), steps_of(run)
    drawn: dict[int, list[dict[str, Any]]] = {}
    for sample in samples:
        drawn.setdefault(sample["key"], []).append(sample)
    assert {len(pool) for pool in drawn.values()} == {2, 4}
    for pool in drawn.values():
        assert sum(sample["metric"] > 0.5 for sample in pool[:2]) == 1 if len(pool) == 4 else True
        assert len(pool) == 4 or not any(sample["coefficient"] for sample in pool)
    for row in steps:
        assert row["ada/drawn"] == row["ada/kept"] + row["ada/unused"] + row["ada/aborted"]
        assert row["ada/prompts"] == 16
    assert sum(row["ada/replaced"] for row in steps) > 0


def test_the_same_policy_is_measured_alike(toy: Toy, tmp_path: Path) -> None:
    """With a learning rate of 0. Between the evaluations, mode off samples without seeds."""
    run, held_out = tmp_path / "run", {"eval__dataset": toy.heldout, "eval__n_samples_per_prompt": 4}
    train(
        toy_flags(toy, run, ada_mode="off", actor__adam__lr=0, eval__temperature=1.0, ada_eval_ends=True, **held_out)
    )
    before, after = (
        {name: value for name, value in row.items() if name.startswith("eval/")}
        for row in read_jsonl(run / "metrics.jsonl")
        if "eval/accuracy" in row
    )
    assert before == after and 0 < before["eval/accuracy"] < 1


CONVERSATIONS: dict[str, Any] = {
    "reward__remote_url": None,
    "train__agent_func_path": ROOT / "tests/support/two_turns.py",
    "data__max_len": 64,
    "rollout__max_new_tokens": 12,
    "reward__overlong_buffer_len": 3,
    "reward__overlong_penalty_factor": 1,
}


@pytest.mark.parametrize("mode", [ASYNC, EST], ids=["off, async", "est"])
def test_a_conversation_is_as_long_as_what_was_sampled(toy: Toy, tmp_path: Path, mode: dict[str, Any]) -> None:
    """Two answers of at most three tokens; of what is inserted between them alone, all would be penalised."""
    train(toy_flags(toy, tmp_path / "run", **CONVERSATIONS, **mode, actor__adam__lr=0))
    for row in steps_of(tmp_path / "run"):
        assert 0 < row["rollout/reward_mean"] == pytest.approx(row["ada/first_wave_metric_mean"])
        assert 9 > row["response_length"] == pytest.approx(row["ada/kept_tokens"] / row["ada/kept"])
        assert row["truncated"] == row["rollout/truncated_rate"] == 0
    if mode is EST:
        samples = read_jsonl(tmp_path / "run" / "samples.jsonl")
        assert all(sample["reward"] == sample["metric"] for sample in samples)
