"""Runs that are ended from outside, each with a Ray of its own. However a run ends, its processes end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import psutil
from conftest import LIMIT_S, ROOT, forked_python
from processes import command_line
from shared_start import FORKS_VARIABLE, OFF, without_shared_ray

from openrlhf_ada.platforms.processes import kill_rest

ENDED_S = 30.0
"""Seconds until all processes have ended, also after SIGKILL."""


@dataclass(frozen=True)
class Interruption:
    """A signal, and the status that the run ends with.

    `forked`: its processes are forked from the tests' server; otherwise they are plain ones, as those of users are.
    `to`: the driver alone; its process group, as `timeout` and a closed terminal do; or all processes, as Slurm does.
    """

    sent: signal.Signals
    status: int
    forked: bool = True
    to: Literal["driver", "group", "all"] = "driver"

    def send(self, driver: subprocess.Popen[str], others: list[psutil.Process]) -> None:
        if self.to == "group":
            # Of a plain Python; what was forked is in a session of its own.
            assert not self.forked and os.getpgid(driver.pid) == driver.pid
            os.killpg(driver.pid, self.sent)
            return
        for process in others if self.to == "all" else ():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(self.sent)
        driver.send_signal(self.sent)


def interrupt(
    argv: list[str],
    after: str,
    interruption: Interruption,
    look: Callable[[list[psutil.Process]], object] = lambda processes: None,
) -> str:
    """Start a run and end it when it says a line that begins like `after`; none of its processes lives on.

    `look` gets its processes before that. Returns what the run says in all.
    """
    before = psutil.Process().children(recursive=True)
    program, environment = forked_python()
    if not interruption.forked:
        program, environment = sys.executable, environment | {FORKS_VARIABLE: OFF}
    process = subprocess.Popen(
        [program, "-m", "openrlhf_ada.cli.train_ppo_ray", *argv],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        env=without_shared_ray(environment),
        start_new_session=True,
        preexec_fn=_as_from_a_terminal,
    )
    said = _read_until(after, process)
    # What the tests' server forked for it is among them.
    started = [child for child in psutil.Process().children(recursive=True) if child not in before]
    try:
        # vLLM names its engine process where the system lets it, and spawns it in any case.
        commands = [command_line(child) for child in started]
        if after.startswith("step"):
            assert any("EngineCore" in command or "multiprocessing.spawn" in command for command in commands), commands
            assert any("raylet" in command for command in commands), commands
        look(started)
        interruption.send(process, started)
        said += process.communicate(timeout=LIMIT_S)[1]
        assert process.returncode == interruption.status, said
        _, alive = psutil.wait_procs(started, timeout=ENDED_S)
        assert not alive, [command_line(child)[:200] for child in alive]
    finally:
        process.kill()
        kill_rest(started, 0.0)
    return said


def _as_from_a_terminal() -> None:
    """Tests in the background of a shell, or below nohup, pass on that a signal is ignored."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def strike(words: list[str], after: str, victim: str, sent: signal.Signals) -> str:
    """Start `openrlhf-ada WORDS` and, when it says a line that begins like `after`, send a signal to the process whose
    title in Ray has `victim` in it. Returns what the run says in all; it fails, and leaves no process.
    """
    before = psutil.Process().children(recursive=True)
    program, environment = forked_python()
    command = [program, "-m", "openrlhf_ada.cli.main", *words]
    process = subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=without_shared_ray(environment)
    )
    said = _read_until(after, process)
    started = [child for child in psutil.Process().children(recursive=True) if child not in before]
    try:
        (struck,) = [child for child in started if victim in command_line(child).partition(" ")[0]]
        struck.send_signal(sent)
        said += process.communicate(timeout=LIMIT_S)[1]
        assert process.returncode == 1, said
        _, alive = psutil.wait_procs(started, timeout=30)
        assert not alive, [command_line(child)[:200] for child in alive]
    finally:
        process.kill()
        kill_rest(started, 0.0)
    return said


def _read_until(line_start: str, process: subprocess.Popen[str]) -> str:
    """What it has said."""
    assert process.stderr is not None
    deadline, said = time.monotonic() + LIMIT_S, ""
    for line in process.stderr:
        said += line
        if line.startswith(line_start):
            return said
        assert time.monotonic() < deadline
    raise AssertionError(f"the run ended with status {process.wait()} before {line_start!r}: {said}")
