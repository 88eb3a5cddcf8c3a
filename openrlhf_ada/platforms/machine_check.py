"""Has this machine what a run needs? Memory, shared memory, disk, a name: read from the system, in milliseconds."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True, slots=True)
class Finding:
    """`check`: what was looked at. `level`: OK, WARNING or ERROR. `remedy`: what to do; empty where nothing is."""

    check: str
    level: str
    what: str
    remedy: str = ""


def machine_findings(root: Path = Path("/")) -> Iterator[Finding]:
    """`root`: of the file system."""
    yield _memory(root)
    yield _shared_memory(root)
    yield from _disks()
    yield _connection()


def _judged(check: str, what: str, *, is_low: bool, remedy: str) -> Finding:
    return Finding(check, WARNING, what, remedy) if is_low else Finding(check, OK, what)


def _memory(root: Path) -> Finding:
    lines = dict(line.split(":", 1) for line in _text(root / "proc/meminfo").splitlines() if ":" in line)
    total, free = (int(lines[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    limit = _text(root / "sys/fs/cgroup/memory.max")
    usable = min(total, int(limit)) if limit.isdecimal() else total
    free = min(free, usable)
    by = " by this container's limit" if usable < total else ""
    remedy = f"End what else runs here, or give it more: the demo needs about {LITTLE_MEMORY >> 30} GiB"
    what = f"{usable / GIB:.1f} GiB{by}, {free / GIB:.1f} GiB of it free"
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
        yield _disk(", ".join(names), folder)


def _disk(names: str, folder: Path) -> Finding:
    usage = shutil.disk_usage(folder)
    what = f"{usage.free / GIB:.1f} of {usage.total / GIB:.1f} GiB free for {names} ({folder})"
    remedy = f"Checkpoints, Ray's files and models need room: free some of {folder}"
    if usage.free < LEAST_DISK:
        return Finding("disk", ERROR, what, remedy)
    is_low = usage.free < LITTLE_DISK or usage.used > FULL * usage.total
    return _judged("disk", what, is_low=is_low, remedy=remedy)


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


def _text(path: Path) -> str:
    """Empty where there is no such file."""
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""
