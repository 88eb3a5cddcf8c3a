"""An engine's process is killed in the middle of a step: the run goes on, with the same rollouts as without that.

What the driver does when is in tests/unit/test_rollout_engine_connections.py.
"""

from __future__ import annotations

import re
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


@pytest.mark.parametrize(
    ("victim", "engines", "call"),
    # The first step takes about 150 rollouts: on one engine the 200th is in the second step, as is the 100th of two.
    [("actor", 2, 100), ("core", 1, 200)],
)
def test_samples_equal_those_of_an_undisturbed_run(
    toy: Toy, undisturbed: Path, tmp_path: Path, victim: str, engines: int, call: int
) -> None:
    """In the second step, so the restarted engine must have the weights after the first."""
    run, rewards, killed = tmp_path / "run", tmp_path / "rewards.py", tmp_path / "killed"
    rewards.write_text(REWARDS.format(done=str(killed), victim=victim, call=call))
    done_run = train(toy_flags(toy, run, **LONGER, vllm__num_engines=engines, reward__remote_url=rewards))
    told = done_run.stdout + done_run.stderr
    assert killed.exists(), told
    assert re.search(r"engine \d+ died", told) and re.search(r"engine \d+ is back", told)
    check_ledger(run, batch_size=16, group_size=4, cap=16)
    lost = {row["step"]: row["ada/lost"] for row in steps_of(run)}
    assert lost[2] > 0 and sum(lost.values()) == lost[2], f"{lost}\n{told}"
    assert rollouts(run) == rollouts(undisturbed)


def test_engine_death_keeps_partial_rollouts_and_updates(toy: Toy, tmp_path: Path) -> None:
    """vLLM's core of one of two engines dies while the trainer may be about to pause them."""
    run, rewards, killed = tmp_path / "run", tmp_path / "rewards.py", tmp_path / "killed"
    rewards.write_text(REWARDS.format(done=str(killed), victim="core", call=150))
    changes = SEQ | PPO | PARTIAL
    done_run = train(
        toy_flags(toy, run, **changes, vllm__num_engines=2, reward__remote_url=rewards, train__num_episodes=2)
    )
    assert killed.exists(), done_run.stdout + done_run.stderr
    check_ledger(run, batch_size=16, group_size=4, cap=16)
    check_books(run, changes)
