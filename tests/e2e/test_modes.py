"""Every mode with and without a critic, synchronous and asynchronous, on the real stack: all train, with exact books.

`off` and `seq` with GRPO, synchronous: test_off_equals_host.py and test_adaptive_training.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Toy, pools_of_step, read_jsonl, steps_of, toy_flags, train

pytestmark = pytest.mark.e2e

BATCH, N, STEPS = 16, 4, 4
SEQ = {"ada_mode": "seq", "ada_wave": 4, "ada_max_samples": 16}
EST = {"ada_mode": "est"}
ASYNC = {"train__async_enable": True}
PARTIAL = ASYNC | {"train__partial_rollout_enable": True, "algo__advantage__is_correction_level": "token"}
LORA = {"ds__lora__rank": 4, "ds__lora__alpha": 8, "ada_verify_sync": "always"}
GRPO = {"algo__advantage__estimator": "dr_grpo"}
POS = {"algo__advantage__estimator": "reinforce_baseline", "ada_exit": "pos"}
PPO = {"algo__advantage__estimator": "gae", "critic__adam__lr": 1e-3}
OWN_CRITIC = {"ada_estimator": "critic", "ada_trust_steps": 1, "critic__adam__lr": 1e-3}

COLOCATED = {"train__colocate_all": True, "ds__enable_sleep": True}
"""All models on one slot; optimizer states are moved out while nothing is trained, as on a shared GPU."""

CASES: dict[str, dict[str, Any]] = {
    "off, PPO": PPO,
    "off, GRPO, async, LoRA": GRPO | ASYNC | LORA | {"ada_loss": "prompt-mean"},
    "off, PPO, async": PPO | ASYNC,
    "seq, PPO, partial rollouts": SEQ | PPO | PARTIAL,
    "seq, PPO, colocated": SEQ | PPO | COLOCATED | {"ada_loss": "sequence-constant"},
    "seq, GRPO, async": SEQ | ASYNC | POS | {"ada_loss": "prompt-mean"},
    "est, GRPO, two critics": EST | GRPO | OWN_CRITIC | {"critic__num_gpus_per_node": 2},
    "est, PPO": EST | PPO | {"ada_estimator": "critic", "ada_trust_steps": 1},
    "est, GRPO, async": EST | GRPO | ASYNC | OWN_CRITIC,
    "est, PPO, partial rollouts": EST | PPO | PARTIAL | {"ada_estimator": "critic", "ada_trust_steps": 1},
}


@pytest.mark.parametrize("name", CASES)
def test_trains_with_exact_books(toy: Toy, tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    changes = CASES[name]
    # Two passes over 32 prompts, so that pass rates are known in the second.
    train(toy_flags(toy, run, **changes, train__num_episodes=2))
    steps = steps_of(run)
    assert [row["step"] for row in steps] == list(range(1, STEPS + 1))
    for row in steps:
        assert np.isfinite(row["policy_loss"])
        assert row["actor_grad_norm"] > 0
        assert row["ada/drawn"] == row["ada/kept"] + row["ada/unused"] + row["ada/aborted"]
        assert row["ada/kept"] == BATCH * N
    # The host's schedule falls to a tenth: its end is the run's end, however much was drawn.
    assert steps[-1]["actor_lr"] == pytest.approx(3e-5)
    if "ada_mode" in changes:
        check_against_samples(run, steps)
    if changes.get("ada_mode") == "est":
        assert [row["ada/drawn"] for row in steps] == [BATCH * N] * STEPS, "the budget, exactly"
        assert any(len(row["ada/draws_histogram"]) > 1 for row in steps[2:]), "prompts get different numbers"
    if changes.get("ada_estimator") == "critic":
        assert all(row["ada/critic_brier"] >= 0 and row["critic_loss"] >= 0 for row in steps)
    if changes.get("ada_exit") == "pos":
        check_pool_baseline(run)
    stale = [row.get("ada/staleness_mean", 0.0) for row in steps]
    assert all(0 <= s <= 2 for s in stale) if "train__async_enable" in changes else set(stale) == {0.0}


def check_against_samples(run: Path, steps: list[dict[str, Any]]) -> None:
    """Each step's figures, recomputed from every recorded rollout."""
    samples = read_jsonl(run / "samples.jsonl")
    for row in steps:
        drawn = [s for s in samples if s["step"] == row["step"]]
        assert row["ada/drawn"] - row["ada/aborted"] == len(drawn)
        assert row["ada/kept"] == sum(s["kept"] for s in drawn)
        assert row["ada/drawn_tokens"] - row["ada/aborted_tokens"] == sum(s["tokens"] for s in drawn)
        assert len({s["key"] for s in drawn}) == BATCH


def check_pool_baseline(run: Path) -> None:
    """Every trained rollout's coefficient is its reward minus its whole pool's mean."""
    pools = pools_of_step(run, 1)
    for sample in read_jsonl(run / "samples.jsonl"):
        if sample["step"] == 1 and sample["kept"]:
            pool = pools[sample["key"]]
            assert sample["coefficient"] == pytest.approx(sample["reward"] - sum(pool) / len(pool))
