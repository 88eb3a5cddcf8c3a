"""A process of a run is stopped or killed: the run says which, how, and by which command it is resumed.

Each run here is the command that the one before has printed. What is said when is in
tests/unit/test_reporting_silence.py and tests/unit/test_cli_lost_processes.py.
"""

from __future__ import annotations

import platform
import re
import shlex
import signal
from pathlib import Path

import pytest
from conftest import Toy, steps_of, toy_flags
from interrupted_runs import strike

pytestmark = pytest.mark.e2e

TELLS_SIGNALS = tuple(int(part) for part in platform.release().split(".")[:2]) >= (6, 15)
FLAGS = {
    "ada_mode": "seq",
    "train.num_episodes": 20,
    "ckpt.save_steps": 1,
    "ada_silence": 3,
    "ada_dead_after": 12,
}
RESUMES = re.compile(
    r"^Resume it from its last checkpoint, (global_step\d+): \S*openrlhf-ada (train .*)$", re.MULTILINE
)


def resuming(said: str, run: Path) -> list[str]:
    """The command's words; the checkpoint that the message names is the one that is loaded."""
    (found,) = RESUMES.findall(said)
    assert found[0] == (run / "ckpt" / "_actor" / "latest").read_text().strip()
    return shlex.split(found[1])


def check_death(said: str, name: str) -> None:
    """Its name and its signal, its last lines, and no guess of Ray's."""
    how = "ended by SIGKILL" if TELLS_SIGNALS else "ended; its signal is not known"
    assert re.search(rf"the run failed\. {name} \(pid \d+\) died: {how}", said), said
    assert "Memory was not the reason" in said and "Some common causes" not in said
    assert re.search(r"^Its last lines \(\S+worker-\S+\.(err|out)\):\n {4,}\S", said, re.MULTILINE), said


def test_lost_process_is_named_and_the_printed_command_resumes(toy: Toy, tmp_path: Path) -> None:
    run = tmp_path / "run"
    said = strike(["train", *toy_flags(toy, run, **FLAGS)], "step  3/40", "Policy", signal.SIGSTOP)
    told = re.search(
        r"^policy actor 0 \(pid (\d+).*\) has been stopped for \d s; `kill -CONT (\d+)`", said, re.MULTILINE
    )
    assert told is not None and told[1] == told[2], said
    assert re.search(r"the run failed\. policy actor 0 .* for 12 s, and --ada_dead_after allows 12 s", said), said
    assert "nothing has happened" not in said, "a false alarm"

    command = resuming(said, run)
    said = strike(command, "step  5/40", "Policy", signal.SIGKILL)
    assert "step  1/40" not in said
    check_death(said, "policy actor 0")

    assert resuming(said, run) == command
    said = strike(command, "step  7/40", "PPOTrainer", signal.SIGKILL)
    assert "step  3/40" not in said
    check_death(said, "trainer")
    assert resuming(said, run) == command
    steps = [row["step"] for row in steps_of(run)]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) >= 7
