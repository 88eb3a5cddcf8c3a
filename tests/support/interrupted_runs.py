"""Runs that are ended from outside. However a run ends, its processes end with it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import psutil
from conftest import LIMIT_S, ROOT

ENDED_S = 90.0
"""Ray's agents notice only after a while that a killed driver's Ray is gone; ours end at once."""


def run_until(line_start: str, argv: list[str]) -> subprocess.Popen[str]:
    """Start a run and return when it says a line that begins like this."""
    command = [sys.executable, "-m", "openrlhf_ada.cli.train_ppo_ray", *argv]
    # As from a terminal: a test run in the background of a shell passes on that Ctrl-C is ignored.
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    deadline = time.monotonic() + LIMIT_S
    for line in process.stderr:
        if line.startswith(line_start):
            return process
        assert time.monotonic() < deadline
    raise AssertionError(f"the run ended with status {process.wait()} before {line_start!r}")


def end_and_check_nothing_is_left(process: subprocess.Popen[str], sent: signal.Signals, status: int) -> None:
    """It ends with this status, and none of the processes that it started lives on."""
    started = psutil.Process(process.pid).children(recursive=True)
    try:
        # vLLM names its engine process where the system lets it, and spawns it in any case.
        commands = [" ".join(child.cmdline()) for child in started]
        assert any("EngineCore" in command or "multiprocessing.spawn" in command for command in commands), commands
        assert any("raylet" in command for command in commands), commands
        process.send_signal(sent)
        assert process.wait(timeout=60) == status
        _, alive = psutil.wait_procs(started, timeout=ENDED_S)
        assert not alive, [child.cmdline()[:2] for child in alive]
    finally:
        process.kill()
        for child in psutil.wait_procs(started, timeout=0)[1]:
            child.kill()
