"""What holds for every run of four steps with 16 prompts x 4: exact books, and what its mode promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import pools_of_step, read_jsonl, steps_of

BATCH, N, STEPS = 16, 4, 4

SEQ: dict[str, Any] = {"ada_mode": "seq", "ada_wave": 4, "ada_max_samples": 16}
EST: dict[str, Any] = {"ada_mode": "est"}
ASYNC: dict[str, Any] = {"train__async_enable": True}
PARTIAL = ASYNC | {"train__partial_rollout_enable": True, "algo__advantage__is_correction_level": "token"}
PPO: dict[str, Any] = {"algo__advantage__estimator": "gae", "critic__adam__lr": 1e-3}
OWN_CRITIC: dict[str, Any] = {"ada_estimator": "critic", "ada_trust_steps": 1, "critic__adam__lr": 1e-3}

COLOCATED: dict[str, Any] = {"train__colocate_all": True, "ds__enable_sleep": True}
"""All models on one slot; optimizer states are moved out while nothing is trained, as on a shared GPU."""


def check_books(run: Path, changes: dict[str, Any]) -> None:
    """`changes`: its flags, as `toy_flags` takes them. Two passes over 32 prompts, at the usual learning rate."""
    steps, n = steps_of(run), changes.get("rollout__n_samples_per_prompt", N)
    assert [row["step"] for row in steps] == list(range(1, STEPS + 1))
    for row in steps:
        assert np.isfinite(row["policy_loss"])
        assert row["actor_grad_norm"] > 0
        assert row["ada/drawn"] == row["ada/kept"] + row["ada/unused"] + row["ada/aborted"]
        assert row["ada/kept"] == BATCH * n
    # OpenRLHF's schedule falls to a tenth: its end is the run's end, however much was drawn.
    assert steps[-1]["actor_lr"] == pytest.approx(3e-5)
    if "ada_mode" in changes:
        check_against_samples(run, steps)
    if changes.get("ada_mode") == "est":
        assert [row["ada/drawn"] for row in steps] == [BATCH * N] * STEPS, "the budget, exactly"
        # Two more rollouts after two of any outcome are worth the same to `hit`.
        different = any(len(row["ada/draws_histogram"]) > 1 for row in steps[2:])
        assert different or "ada_pilot" in changes, "prompts get different numbers"
    if changes.get("ada_estimator") == "critic":
        assert all(row["ada/critic_brier"] >= 0 and row["critic_loss"] >= 0 for row in steps)
    if changes.get("ada_exit") == "pos":
        check_pool_baseline(run)
    if "ada_candidates" in changes:
        check_choices(run, steps, changes["ada_candidates"])
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


def check_choices(run: Path, steps: list[dict[str, Any]], candidates: int) -> None:
    """No step has a prompt twice. All prompts are candidates."""
    samples = read_jsonl(run / "samples.jsonl")
    seen: set[str] = set()
    for row in steps:
        firsts = [s for s in samples if s["step"] == row["step"] and s["index"] == 0]
        prompts = {s["prompt_id"] for s in firsts}
        assert len(prompts) == len(firsts) == BATCH
        assert all(0 < s["chance"] <= 1 for s in firsts)
        assert row["ada/prompt_age_max"] >= row["ada/prompt_age"]
        seen |= prompts
        assert row["ada/coverage"] == len(seen) / (BATCH * candidates)


def check_pool_baseline(run: Path) -> None:
    """Every trained rollout's coefficient is its reward minus its whole pool's mean."""
    pools = pools_of_step(run, 1)
    for sample in read_jsonl(run / "samples.jsonl"):
        if sample["step"] == 1 and sample["kept"]:
            pool = pools[sample["key"]]
            assert sample["coefficient"] == pytest.approx(sample["reward"] - sum(pool) / len(pool))
