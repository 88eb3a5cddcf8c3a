"""What `openrlhf_ada.train` does: check the flags here, then train in a process of its own."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from openrlhf_ada import Trained, TrainingError
from openrlhf_ada.cli.config_file import expanded, unused, words_of
from openrlhf_ada.cli.train_ppo_ray import EXIT_BAD_INPUT, EXIT_INTERRUPTED, PROG, main, parse
from openrlhf_ada.config.preset_flags import is_given
from openrlhf_ada.platforms.signals import end_with_parent
from openrlhf_ada.reporting.output import LOG_FILE
from openrlhf_ada.reporting.run_record import read_run

LAST_LINES = 15
"""Of a training that failed, in the message."""


def train(config: Mapping[str, Any] | str | os.PathLike[str], overrides: Mapping[str, Any]) -> Trained:
    """See `openrlhf_ada.train`."""
    words = command_line(config, overrides)
    run_dir = _checked(words)
    status, lines = _run([sys.executable, "-m", __name__, str(os.getpid()), *words])
    if status == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    error = f"{PROG}: error: "
    if status == EXIT_BAD_INPUT:
        refused = [line.removeprefix(error) for line in lines if line.startswith(error)]
        raise ValueError(refused[-1] if refused else "the training refused its flags or data; its message is above")
    if status:
        output = "\n".join(lines) or "its message is above"
        raise TrainingError(f"the training ended with status {status} (log: {run_dir / LOG_FILE}):\n{output}")
    run = read_run(run_dir)
    evaluation = run.evaluations[-1] if run.evaluations else None
    return Trained(run_dir, run.steps[-1], evaluation, run.summary or {})


def command_line(config: Mapping[str, Any] | str | os.PathLike[str], overrides: Mapping[str, Any]) -> list[str]:
    """The words after `openrlhf-ada train`. A run without a name gets a folder that no other run has.

    Raises ConfigError for a name that is no flag, or a file that cannot be read.
    """
    own = words_of("train", overrides)
    if isinstance(config, Mapping):
        words = words_of("train", config, own)
    else:
        words = expanded("train", ["--config", os.fspath(config), *own])
    if not is_given("ada.run_dir", words) and not is_given("logger.wandb.run_name", words):
        words.append(f"--ada_run_dir={unused(Path('runs') / time.strftime('train-%m%d-%H%M%S'))}")
    return words


def _checked(words: Sequence[str]) -> Path:
    """The run directory of these flags; raises ValueError for wrong ones, before anything is started."""
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            args = parse(words)
    except SystemExit as error:
        raise ValueError(said.getvalue().strip().removeprefix(f"{PROG}: error: ")) from error
    return args.ada.resolved_run_dir(args.logger.wandb.run_name)


def _run(command: Sequence[str]) -> tuple[int, list[str]]:
    """Status of a process, and its last lines, which are printed as they come. On a terminal it writes there itself.

    An exception here, Ctrl-C above all, is passed on to the process, whose end is waited for.
    """
    on_terminal = sys.stderr.isatty()
    lines: deque[str] = deque(maxlen=LAST_LINES)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=None if on_terminal else subprocess.PIPE,
        stderr=None if on_terminal else subprocess.STDOUT,
        text=True,
        errors="replace",
        # A Jupyter server interrupts a whole session; the process would get Ctrl-C from it and from here.
        start_new_session=True,
    )
    try:
        _print_lines(process, lines)
        return process.wait(), list(lines)
    except BaseException:
        process.send_signal(signal.SIGINT)
        _print_lines(process, lines)
        process.wait()
        raise


def _print_lines(process: subprocess.Popen[str], lines: deque[str]) -> None:
    for line in process.stdout or ():
        print(line, end="", flush=True)
        lines.append(line.rstrip("\n"))


def _main(parent: int, words: Sequence[str]) -> int:
    """The process: it ends with its parent, whose pid is given."""
    end_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        return EXIT_INTERRUPTED
    return main(words)


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1]), sys.argv[2:]))
