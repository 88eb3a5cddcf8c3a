"""What the tests' runs share, so that each starts faster: a process that has imported torch, vLLM, DeepSpeed and the
rest, from which their processes are forked, and a Ray to join.

A run starts six to nine processes, and each would spend ten seconds of processor time on the same imports. The package
knows nothing of it: Ray asks `for_workers` what a driver's workers are, and a forked process spawns forked ones.

    python shared_start.py SLOTS     a Ray that ends with its stdin; prints its address
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent

FORKS_VARIABLE = "ADA_TESTS_FORKS"
"""Launcher of a running fork server; "off": every process imports for itself."""

OFF = "off"

HOLDER_VARIABLE = "ADA_TESTS_RAY"
"""Pid of the process that holds the shared Ray."""

OF_SHARED_RAY = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", HOLDER_VARIABLE)

LOG = "fork_server.log"
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

SLOTS = 16
"""In the place of GPUs. A run takes two to six, and the one before may still be giving its own back."""

END_S = 10.0


def running() -> str:
    """The launcher of the fork server that runs; empty without one."""
    named = os.environ.get(FORKS_VARIABLE, "")
    return "" if named == OFF else named


def python() -> str:
    """A program that takes the arguments of `python`: forked, where a fork server runs."""
    return running() or sys.executable


def for_workers(runtime_env: dict[str, Any] | None) -> dict[str, Any]:
    """Ray's own hook (RAY_RUNTIME_ENV_HOOK), in a driver: its workers are forked, and those of the shared Ray get the
    driver's variables, which they do not inherit."""
    chosen = dict(runtime_env or {})
    if holder := os.environ.get(HOLDER_VARIABLE):
        inherited = _environment_of(int(holder))
        own = {n: v for n, v in os.environ.items() if inherited.get(n) != v and not n.startswith("RAY_")}
        chosen["env_vars"] = own | chosen.get("env_vars", {})
    if running():
        chosen["py_executable"] = shlex.quote(running())
    return chosen


def _environment_of(pid: int) -> dict[str, str]:
    import psutil

    return psutil.Process(pid).environ()


@contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)
        os.environ.update(before)


@contextmanager
def fork_server(environment: Mapping[str, str], modules: Sequence[str] = MODULES) -> Iterator[tuple[str, int]]:
    """A program that takes the arguments of `python` and is forked from a server, and the server's pid.

    `environment`: of the processes to be forked, on top of this process's. The server ends with the block, or when
    this process ends; all that it forked ends with it.
    """
    folder = Path(tempfile.mkdtemp(prefix="ada-forks-"))
    try:
        # A script, since multiprocessing takes the path of a program without arguments.
        launcher = folder / "python"
        command = [sys.executable, "-I", "-S", str(FOLDER / "fork_launcher.py"), str(folder / "socket")]
        launcher.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        launcher.chmod(0o700)
        process = _start(folder, os.environ | environment, modules)
        try:
            yield str(launcher), process.pid
        finally:
            _end(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path, environment: Mapping[str, str], modules: Sequence[str]) -> subprocess.Popen[bytes]:
    """Returns at once; who asks before the imports are done waits for them."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, open(folder / LOG, "wb") as log:
        listener.bind(str(folder / "socket"))
        listener.listen(128)
        return subprocess.Popen(
            [sys.executable, str(FOLDER / "fork_server.py"), str(listener.fileno()), str(folder), *modules],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[listener.fileno()],
            # Ctrl-C is for the runs, and the server ends when they do.
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


@contextmanager
def runs_are_forked() -> Iterator[None]:
    """Runs that are started within the block as `[python(), ...]` fork all their processes from one server."""
    from openrlhf_ada.platforms.session import host_environment
    from openrlhf_ada.platforms.without_gpu import worker_environment

    given = host_environment(verbose=False) | worker_environment()
    # What every run gives its workers, so that the run itself can be forked as well. Our own differ from run to run.
    environment = {name: value for name, value in given.items() if not name.startswith("OPENRLHF_ADA_")}
    path = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(FOLDER), *path]))
    hook = {"RAY_RUNTIME_ENV_HOOK": f"{Path(__file__).stem}.{for_workers.__name__}"}
    with variables(environment), fork_server({}) as (launcher, _), variables(hook | {FORKS_VARIABLE: launcher}):
        yield


@contextmanager
def one_ray() -> Iterator[None]:
    """Runs that are started within the block join one Ray as a cluster; each would take half of a short run's time to
    start and end its own. Raises ChildProcessError where Ray does not start."""
    command, secret = [python(), __file__, str(SLOTS)], {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "5" * 64}
    # In a session of its own: Ctrl-C is for the runs, and this Ray ends after them.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        env=os.environ | secret,
    ) as holder:  # fmt: skip
        assert holder.stdin is not None and holder.stdout is not None
        try:
            address = holder.stdout.readline().strip()
            if not address:
                raise ChildProcessError(f"Ray did not start: {' '.join(command)} has ended")
            with variables(secret | {"RAY_ADDRESS": address, HOLDER_VARIABLE: str(holder.pid)}):
                yield
        finally:
            # On which it ends. After Ctrl-C, Popen itself would not wait.
            holder.stdin.close()
            holder.wait()


def without_shared_ray(environment: Mapping[str, str]) -> dict[str, str]:
    """For a run that starts a Ray of its own."""
    return {name: value for name, value in environment.items() if name not in OF_SHARED_RAY}


def hold_ray(slots: int) -> None:
    """Start a Ray, print its address, and end it at the end of stdin."""
    import ray

    from openrlhf_ada.platforms.gpu import hidden_as_slots
    from openrlhf_ada.platforms.resources import CONTROLLER_CPUS
    from openrlhf_ada.platforms.session import RAY_ON_CPU, SETTINGS_ON_CPU, shut_down
    from openrlhf_ada.platforms.watcher import watched_session

    with watched_session() as watcher, hidden_as_slots(slots):
        os.environ.update(SETTINGS_ON_CPU)
        ray.init(
            address="local", num_gpus=slots, num_cpus=slots + CONTROLLER_CPUS, logging_level="ERROR", **RAY_ON_CPU
        )
        sys.stdout.write(f"{ray.get_runtime_context().gcs_address}\n")
        sys.stdout.flush()
        sys.stdin.read()
        shut_down(ray.shutdown, {watcher})


if __name__ == "__main__":
    hold_ray(int(sys.argv[1]))
