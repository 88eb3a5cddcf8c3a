"""Processes of a run are forked from the template, and what they compute is the same without it."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Toy, read_jsonl, toy_flags, train

from openrlhf_ada.platforms.template import LOG, OFF, TEMPLATE_VARIABLE, running

pytestmark = pytest.mark.e2e


def test_forked_run_has_the_rollouts_of_a_plain_one(toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Path(running()).with_name(LOG)
    start = log.stat().st_size
    flags = {"ada_mode": "seq", "data__max_samples": 16}
    train(toy_flags(toy, tmp_path / "forked", **flags))
    lines = log.read_text()[start:].splitlines()
    forked = [line for line in lines if " forked " in line]
    plain = [line for line in lines if " plain" in line]
    # Trainer, policy, engine and the process that creates workers ahead; the engine's core; the driver.
    assert sum("default_worker.py" in line for line in forked) >= 3, lines
    assert sum("spawn_main" in line for line in forked) == 1, lines
    assert sum("train_ppo_ray" in line for line in forked) == 1, lines
    assert all("resource_tracker" in line for line in plain), lines

    monkeypatch.setenv(TEMPLATE_VARIABLE, OFF)
    train(toy_flags(toy, tmp_path / "plain", **flags))
    assert len(log.read_text()[start:].splitlines()) == len(lines)
    rollouts = {side: read_jsonl(tmp_path / side / "samples.jsonl") for side in ("forked", "plain")}
    assert rollouts["forked"] == rollouts["plain"]
