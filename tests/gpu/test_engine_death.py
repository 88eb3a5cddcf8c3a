"""An engine's process is killed while it samples: it comes back with the policy's weights, over a new group."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from conftest import Toy
from deadly_rewards import REWARDS
from gpu_runs import COLOCATED, ON_GPU, SEQ, check_run, gpu_train

pytestmark = [pytest.mark.gpu, pytest.mark.e2e]


def train_with_a_death(toy: Toy, folder: Path, victim: str, **flags: Any) -> None:
    """In the first step, so the second is sampled by the new process with the weights after the first."""
    run, rewards, killed = folder / "run", folder / "rewards.py", folder / "killed"
    rewards.write_text(REWARDS.format(deaths=[(str(killed), victim, 50)]))
    told = gpu_train(toy, run, **flags, **SEQ, reward__remote_url=rewards)
    assert killed.exists(), told
    assert re.search(r"engine \d+ died", told) and re.search(r"engine \d+ is back", told)
    check_run(run, steps=2)


@pytest.mark.gpu(2)
@pytest.mark.parametrize("victim", ["actor", "core"])
def test_a_group_is_formed_anew_after_an_engines_death(toy: Toy, tmp_path: Path, victim: str) -> None:
    train_with_a_death(toy, tmp_path, victim, **ON_GPU)


@pytest.mark.parametrize("victim", ["actor", "core"])
def test_an_engine_comes_back_beside_the_policy(toy: Toy, tmp_path: Path, victim: str) -> None:
    train_with_a_death(toy, tmp_path, victim, **COLOCATED)
