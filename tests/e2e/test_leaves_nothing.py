"""However a run ends, its processes end with it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from conftest import LIMIT_S, ROOT, Toy, toy_flags

from openrlhf_ada.platforms.template import OFF, TEMPLATE_VARIABLE

pytestmark = pytest.mark.e2e

ENDED_S = 180.0
"""Ray's agents notice only after a minute and a half that a killed driver's Ray is gone; ours end at once."""


def start_and_wait_for_training(argv: list[str]) -> subprocess.Popen[str]:
    """Start a run and return when its first step is reported."""
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
        if line.startswith("step"):
            return process
        assert time.monotonic() < deadline
    raise AssertionError(f"the run ended with status {process.wait()} before its first step")


@pytest.mark.parametrize(
    ("sent", "status", "named_template"),
    [
        (signal.SIGINT, 130, None),
        (signal.SIGTERM, 143, OFF),
        # A template of the run's own.
        (signal.SIGKILL, -signal.SIGKILL, ""),
    ],
    ids=["ctrl-c", "sigterm", "killed"],
)
def test_no_process_is_left(
    toy: Toy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sent: signal.Signals,
    status: int,
    named_template: str | None,
) -> None:
    if named_template is not None:
        monkeypatch.setenv(TEMPLATE_VARIABLE, named_template)
    before = psutil.Process().children(recursive=True)
    flags = toy_flags(toy, tmp_path / "run", ada_mode="seq", data__max_samples=192, train__num_episodes=20)
    process = start_and_wait_for_training(flags)
    # What the tests' template forked as well.
    started = [child for child in psutil.Process().children(recursive=True) if child not in before]
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
