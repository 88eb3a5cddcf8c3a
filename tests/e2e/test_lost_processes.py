"""A process of a run is stopped or killed: the run says which, how, and by which command it is resumed.

Each run here is the command that the one before has printed. What is said when is in
tests/unit/test_reporting_silence.py and tests/unit/test_cli_run_watch.py.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from conftest import LIMIT_S, ROOT, Toy, forked_python, steps_of, toy_flags
from interrupted_runs import Interruption, interrupt, strike

from openrlhf_ada.trainer.checkpoints import newest_whole

pytestmark = pytest.mark.e2e

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


def loaded_next(run: Path) -> str:
    """DeepSpeed's `latest` is named after the manifest: a run may have been killed between the two."""
    found = newest_whole(run / "ckpt")
    assert found
    return found[0].tag


def resuming(said: str, run: Path) -> list[str]:
    """The command's words; the checkpoint that the message names is the one that is loaded."""
    (found,) = RESUMES.findall(said)
    assert found[0] == loaded_next(run)
    return shlex.split(found[1])


@pytest.mark.parametrize(
    ("after", "sent", "status"),
    [
        pytest.param("starting Ray", signal.SIGTERM, 143, id="starting", marks=pytest.mark.long),
        pytest.param("loading", signal.SIGHUP, 129, id="loading"),
    ],
)
def test_a_signal_to_its_group_ends_a_run_that_starts(
    toy: Toy, tmp_path: Path, after: str, sent: signal.Signals, status: int
) -> None:
    said = interrupt(toy_flags(toy, tmp_path / "run", **FLAGS), after, Interruption(sent, status, False, "group"))
    check_signal(said)


def check_signal(said: str) -> None:
    """It is no fault of Ray's."""
    assert "the run failed" not in said and "Ray's" not in said and "terminated" in said


def check_death(said: str, name: str) -> None:
    """Its name, its last lines, and no guess of Ray's."""
    assert re.search(rf"the run failed\. {name} \(pid \d+\) died: ", said), said
    assert "Memory was not the reason" in said and "Some common causes" not in said
    assert re.search(r"^Its last lines \(\S+worker-\S+\.(err|out)\):\n {4,}\S", said, re.MULTILINE), said


def check_steps(run: Path, least: int) -> None:
    steps = [row["step"] for row in steps_of(run)]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) >= least


def test_lost_process_is_named_and_the_printed_command_resumes(toy: Toy, tmp_path: Path) -> None:
    """A signal to all processes ends the first run. As long as it has its folder, no other run goes on with it."""
    run = tmp_path / "run"
    flags = toy_flags(toy, run, **FLAGS)

    def intrude(processes: list[psutil.Process]) -> None:
        program, environment = forked_python()
        command = [program, "-m", "openrlhf_ada.cli.main", "train", *flags, "--ckpt.load_enable"]
        refused = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LIMIT_S, cwd=ROOT)
        assert refused.returncode == 2 and re.search(r"--ada_run_dir is .*\(process \d+ on", refused.stderr), refused

    said = interrupt(flags, "step  2/40", Interruption(signal.SIGTERM, 143, to="all"), intrude)
    check_signal(said)

    check_lost_again(said, run, "Policy", "policy actor")


@pytest.mark.long
def test_a_process_that_stands_still_ends_the_run(toy: Toy, tmp_path: Path) -> None:
    run = tmp_path / "run"
    said = strike(["train", *toy_flags(toy, run, **FLAGS)], "step  3/40", "Policy", signal.SIGSTOP)
    assert re.search(
        r"^nothing has happened for \d s: waiting for policy actor \(pid \d+.*, stopped\)", said, re.MULTILINE
    ), said
    assert re.search(r"the run failed\. .* for 12 s: waiting for policy actor .*--ada_dead_after allows 12 s", said)

    check_lost_again(said, run, "PPOTrainer", "trainer")


def check_lost_again(said: str, run: Path, actor: str, named: str) -> None:
    """What was said resumes the run; it loses this actor at its second step, and can be resumed in the same way."""
    command = resuming(said, run)
    step = 2 + int(loaded_next(run).removeprefix("global_step"))
    said = strike(command, f"step {step:2}/40", actor, signal.SIGKILL)
    assert "step  1/40" not in said
    check_death(said, named)
    assert resuming(said, run) == command
    check_steps(run, step)
