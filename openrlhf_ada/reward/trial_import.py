"""The user's Python files are imported once before any engine starts, in processes of their own.

An engine would find what is wrong with one only after it has loaded its model.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO, NamedTuple

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.reward.names import split_names
from openrlhf_ada.reward.reward_function import NAMED, file_and_function, name_of

LIMIT_S = 60.0
"""A file that loads a large model may take longer; the engine then waits for it."""

# What the file prints goes to stderr, and the result to what was stdout. As OpenRLHF, without sys.modules.
CHILD = """
import importlib.util, json, os, sys, traceback
result = os.dup(1)
os.dup2(2, 1)
file, report = sys.argv[1], {}
spec = importlib.util.spec_from_file_location("reward_func", file)
try:
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
except BaseException as error:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    report = {"error": f"{type(error).__name__}: {error}", "line": lines[-1] if lines else 0}
os.write(result, json.dumps(report).encode())
os._exit(0)
"""


class _Trial(NamedTuple):
    flag: str
    value: str
    process: subprocess.Popen[bytes]
    result: IO[bytes]
    output: IO[bytes]


@contextmanager
def trial_imports(args: SimpleNamespace) -> Iterator[Callable[[], None]]:
    """Imports begin at once, beside what the block does; the function that this yields waits for them.

    It raises ConfigError for a file that raises, and returns where one takes longer than LIMIT_S.
    """
    with ExitStack() as after:
        trials = [after.enter_context(_started(*named)) for named in _files(args)]
        yield lambda: _finish(trials)


def _files(args: SimpleNamespace) -> list[tuple[str, str, str]]:
    """Flag, its value, and the file that it names: the user's alone."""
    rewards = [name for name in split_names(args.reward.remote_url) if name_of(name) not in NAMED]
    named = [("--reward.remote_url", name, (file_and_function(name) or (name,))[0]) for name in rewards]
    if args.train.agent_func_path:
        named.append(("--train.agent_func_path", args.train.agent_func_path, args.train.agent_func_path))
    return [(flag, value, file) for flag, value, file in named if file.endswith(".py") and Path(file).is_file()]


@contextmanager
def _started(flag: str, value: str, file: str) -> Iterator[_Trial]:
    with tempfile.TemporaryFile() as result, tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            # Not buffered: what the file has printed is read although it ends the process.
            [sys.executable, "-u", "-c", CHILD, file],
            stdin=subprocess.DEVNULL,
            stdout=result,
            stderr=output,
            # With what the file itself has started.
            start_new_session=True,
        )
        try:
            yield _Trial(flag, value, process, result, output)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _finish(trials: Sequence[_Trial]) -> None:
    for trial in trials:
        try:
            status = trial.process.wait(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            continue
        report = _text(trial.result)
        if not report:
            last = _text(trial.output).strip().splitlines()[-1:]
            raise _refused(trial, "; ".join([f"its import ends the process (status {status})", *last]))
        if result := json.loads(report):
            line = f", line {result['line']}" if result["line"] else ""
            raise _refused(trial, f"it raises when it is imported ({' '.join(result['error'].split())}{line})")


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _refused(trial: _Trial, rule: str) -> ConfigError:
    return ConfigError(trial.flag, trial.value, rule, "Fix the file, or install what it needs")
