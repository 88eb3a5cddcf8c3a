"""An engine's process is killed in the middle of a step: the run goes on, with the same rollouts as without that.

What the driver does when is in tests/unit/test_rollout_engine_connections.py.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from books import PARTIAL, PPO, SEQ, check_books
from conftest import Toy, check_ledger, read_jsonl, steps_of, toy_flags, train
from deadly_rewards import REWARDS
from interrupted_runs import Interruption, interrupt

pytestmark = [pytest.mark.e2e, pytest.mark.rehearsal]

LONGER = SEQ | {"actor__adam__lr": 1e-3, "data__max_samples": 64}


def rollouts(run: Path) -> list[tuple[Any, ...]]:
    """Of the first three steps."""
    return sorted(
        (row["step"], row["key"], row["index"], row["reward"], row["tokens"], row.get("text", ""))
        for row in read_jsonl(run / "samples.jsonl")
        if row["step"] <= 3
    )


@pytest.fixture(scope="module")
def undisturbed(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing happens to its engine. Ctrl-C ends it after three of four steps."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    interrupt(toy_flags(toy, run, **LONGER), "step 3/4", Interruption(signal.SIGINT, 130))
    assert {row[0] for row in rollouts(run)} == {1, 2, 3}
    return run


def test_samples_equal_those_of_an_undisturbed_run(toy: Toy, undisturbed: Path, tmp_path: Path) -> None:
    """The engine's actor dies in the second step, vLLM's core of the next one in the third: each that is started must
    have the weights after the step before. The first step takes about 150 rollouts.
    """
    run, rewards = tmp_path / "run", tmp_path / "rewards.py"
    killed = [tmp_path / "actor", tmp_path / "core"]
    deaths = [(str(done), done.name, call) for done, call in zip(killed, (200, 280), strict=True)]
    rewards.write_text(REWARDS.format(deaths=deaths))
    done_run = train(toy_flags(toy, run, **LONGER, reward__remote_url=rewards))
    told = done_run.stdout + done_run.stderr
    assert all(done.exists() for done in killed), told
    assert told.count("vLLM engine 0 died") == told.count("vLLM engine 0 is back") == 2, told
    check_ledger(run, batch_size=16, group_size=4, cap=16)
    lost = {row["step"] for row in steps_of(run) if row["ada/lost"] > 0}
    assert lost == {2, 3}, f"{lost}\n{told}"
    assert rollouts(run) == rollouts(undisturbed)


@pytest.mark.long
def test_engine_death_keeps_partial_rollouts_and_updates(toy: Toy, tmp_path: Path) -> None:
    """vLLM's core of one of two engines dies while the trainer may be about to pause them."""
    run, rewards, killed = tmp_path / "run", tmp_path / "rewards.py", tmp_path / "killed"
    rewards.write_text(REWARDS.format(deaths=[(str(killed), "core", 150)]))
    changes = SEQ | PPO | PARTIAL
    done_run = train(
        toy_flags(toy, run, **changes, vllm__num_engines=2, reward__remote_url=rewards, train__num_episodes=2)
    )
    assert killed.exists(), done_run.stdout + done_run.stderr
    check_ledger(run, batch_size=16, group_size=4, cap=16)
    check_books(run, changes)
