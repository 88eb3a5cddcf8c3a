"""On a CPU, a run's processes are forked from one that has imported torch, vLLM, DeepSpeed and the rest.

A run starts six to nine processes, and each would spend ten seconds of processor time on the same imports.
"""

from __future__ import annotations

import logging
import os
import resource
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.platforms.template_server import FIRST_FREE

logger = logging.getLogger(__name__)

TEMPLATE_VARIABLE = "OPENRLHF_ADA_TEMPLATE"
"""Launcher of a running template; "off": every process imports for itself. Empty: a template for this run."""

OFF = "off"

LOG = "template.log"
"""Beside the launcher: a line for each process, forked or not."""

MODULES = (
    "torch",
    "transformers",
    "datasets",
    "deepspeed",
    "peft",
    "openai.types.responses",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.core.sched.async_scheduler",
    "vllm.engine.arg_utils",
    "vllm.model_executor.models.llama",
    "fastapi",
)
"""Nearly all that a process of a run imports; the rest it imports itself. None of them imports Ray."""

END_S = 10.0

LONGEST_ADDRESS = 107
"""Bytes, of a socket's path in Linux."""


def running() -> str:
    """The launcher of the template that OPENRLHF_ADA_TEMPLATE names; empty without one."""
    named = os.environ.get(TEMPLATE_VARIABLE, "")
    return "" if named == OFF else named


def python() -> str:
    """A program that takes the arguments of `python`: forked, where a template runs."""
    return running() or sys.executable


@contextmanager
def template(environment: Mapping[str, str], modules: Sequence[str] = MODULES) -> Iterator[tuple[str, int | None]]:
    """A program that takes the arguments of `python` and is forked from a template, and the pid of one started here.

    The program is "" where templates are off, or the system does not allow them. `environment`: of the processes to be
    forked, on top of this process's. A template that this starts ends with the block, or when this process ends; all
    that it forked ends with it. Raises ConfigError where OPENRLHF_ADA_TEMPLATE names no program.
    """
    if os.environ.get(TEMPLATE_VARIABLE) == OFF:
        yield "", None
        return
    if running():
        if not os.access(running(), os.X_OK):
            raise ConfigError(TEMPLATE_VARIABLE, running(), "there is no such program", "Unset it, or set it to off")
        yield running(), None
        return
    folder = Path(tempfile.mkdtemp(prefix="ada-template-"))
    try:
        launcher = _write_launcher(folder)
        missing = _missing(launcher)
        if missing:
            logger.info("%s: every process imports for itself", missing)
            yield "", None
            return
        process = _start(folder, os.environ | environment, modules)
        try:
            yield str(launcher), process.pid
        finally:
            _end(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_launcher(folder: Path) -> Path:
    """A script, since multiprocessing takes the path of a program without arguments."""
    launcher = folder / "python"
    program = Path(__file__).with_name("template_launcher.py")
    command = shlex.join([sys.executable, "-I", "-S", str(program), str(_address(folder))])
    launcher.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    launcher.chmod(0o700)
    return launcher


def _address(folder: Path) -> Path:
    return folder / "socket"


def _missing(launcher: Path) -> str:
    """What a template needs and this system does not give; empty if nothing."""
    if not os.access(launcher, os.X_OK):
        return f"{launcher.parent} is mounted noexec"
    if len(os.fsencode(_address(launcher.parent))) > LONGEST_ADDRESS:
        return f"the path {launcher.parent} is too long for a socket"
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2 * FIRST_FREE:
        return f"a process may have fewer than {2 * FIRST_FREE} open files"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return f"pidfd_open: {error}"
    return ""


def _start(folder: Path, environment: Mapping[str, str], modules: Sequence[str]) -> subprocess.Popen[bytes]:
    """Returns at once; who asks before the imports are done waits for them."""
    server = Path(__file__).with_name("template_server.py")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, open(folder / LOG, "wb") as log:
        listener.bind(str(_address(folder)))
        listener.listen(128)
        return subprocess.Popen(
            [sys.executable, str(server), str(listener.fileno()), str(folder), *modules],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[listener.fileno()],
            # Ctrl-C is for the run, and the template ends when the run does.
            start_new_session=True,
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        # In the middle of its imports.
        process.kill()
        process.wait()
