"""What several runs on one CPU machine share, so that each starts faster: a template to fork from, and a Ray to join.

python -m openrlhf_ada.platforms.shared_start SLOTS     a Ray that ends with its stdin; prints its address
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from openrlhf_ada.host.ray_session import MODE, TOKEN, new_token
from openrlhf_ada.platforms import cpu
from openrlhf_ada.platforms.gpu import hidden_as_slots
from openrlhf_ada.platforms.resources import CONTROLLER_CPUS
from openrlhf_ada.platforms.session import (
    RAY_ON_CPU,
    SETTINGS_ON_CPU,
    SHARED_RAY_VARIABLE,
    SharedRay,
    host_environment,
    init_on_cpu,
    quiet_environment,
    runs_here,
    set_where_unset,
    shut_down,
)
from openrlhf_ada.platforms.template import TEMPLATE_VARIABLE, python, template
from openrlhf_ada.platforms.watcher import watched_session

SLOTS = 16
"""In the place of GPUs. A run takes two to six, and the one before may still be giving its own back."""


@contextmanager
def one_template() -> Iterator[None]:
    """Runs that are started within the block as `[python(), ...]` fork their processes from one template, on a CPU."""
    given = host_environment() | quiet_environment() | cpu.worker_environment()
    # What every run gives its workers, so that the run itself can be forked as well. Our own differ from run to run.
    environment = {name: value for name, value in given.items() if not name.startswith("OPENRLHF_ADA_")}
    with ExitStack() as after:
        launcher, _ = after.enter_context(template(environment)) if cpu.is_needed() else ("", None)
        with _environment(environment | {TEMPLATE_VARIABLE: launcher} if launcher else {}):
            yield


@contextmanager
def one_ray() -> Iterator[None]:
    """Runs that are started within the block join one Ray, on a CPU, where no cluster is named.

    Each would take half of a short run's time to start and end its own. Raises ChildProcessError where Ray does not
    start.
    """
    if not (cpu.is_needed() and runs_here()):
        yield
        return
    command, token = [python(), "-m", __name__, str(SLOTS)], new_token()
    # As Python sees it: readline sets variables that it does not show, and processes of a template must not differ.
    environment = {MODE: "token", TOKEN: token} | os.environ
    # In a session of its own: Ctrl-C is for the runs, and this Ray ends after them.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, env=environment
    ) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        try:
            address = holder.stdout.readline().strip()
            if not address:
                raise ChildProcessError(f"Ray did not start: {' '.join(command)} has ended")
            with _environment({SHARED_RAY_VARIABLE: " ".join(SharedRay(str(holder.pid), token, address))}):
                yield
        finally:
            # On which it ends. After Ctrl-C, Popen itself would not wait.
            holder.stdin.close()
            holder.wait()


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)
        os.environ.update(before)


def hold_ray(slots: int) -> None:
    """Start a Ray, print its address, and end it at the end of stdin."""
    import ray

    with watched_session() as watcher, hidden_as_slots(slots):
        set_where_unset(SETTINGS_ON_CPU)
        quiet: dict[str, Any] = RAY_ON_CPU | {"logging_level": "ERROR"}
        init_on_cpu(ray, address="local", num_gpus=slots, num_cpus=slots + CONTROLLER_CPUS, **quiet)
        sys.stdout.write(f"{ray.get_runtime_context().gcs_address}\n")
        sys.stdout.flush()
        sys.stdin.read()
        shut_down(ray.shutdown, {watcher})


if __name__ == "__main__":
    hold_ray(int(sys.argv[1]))
