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
from conftest import Toy, toy_flags, train

pytestmark = pytest.mark.e2e

LORA = {"ds__lora__rank": 4, "ds__lora__alpha": 8, "ada_verify_sync": "always"}
GRPO = {"algo__advantage__estimator": "dr_grpo"}
POS = {"algo__advantage__estimator": "reinforce_baseline", "ada_exit": "pos"}

CASES: dict[str, dict[str, Any]] = {
    "off, GRPO, async, LoRA": GRPO | ASYNC | LORA | {"ada_loss": "prompt-mean"},
    "off, PPO, async": PPO | ASYNC,
    "seq, GRPO, async": SEQ | ASYNC | POS | {"ada_loss": "prompt-mean"},
    "est, GRPO, two critics": EST | GRPO | OWN_CRITIC | {"critic__num_gpus_per_node": 2},
    "est, PPO": EST | PPO | {"ada_estimator": "critic", "ada_trust_steps": 1},
    "est, PPO, partial rollouts": EST | PPO | PARTIAL | {"ada_estimator": "critic", "ada_trust_steps": 1},
}


@pytest.mark.parametrize("name", CASES)
def test_trains_with_exact_books(toy: Toy, tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    changes = CASES[name]
    # Two passes over 32 prompts, so that pass rates are known in the second.
    train(toy_flags(toy, run, **changes, train__num_episodes=2))
    check_books(run, changes)
