"""Processes of this machine: those below this one, whether they are stopped, what they work, which method of an actor
they run. Each may end between two questions about it, which is no error here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # A bare installation has none.
    import psutil

WORKS_CPU = 0.05
"""Share of a core. An idle process of Ray or vLLM takes up to 0.02."""

WORKS_BYTES = 16 * 1024
"""Bytes a second, read or written. An idle process of Ray moves up to 1 KiB a second."""

STOPPED = ("stopped", "tracing-stop")
"""psutil's words."""


def children_named(names: Collection[str]) -> Iterator[tuple[psutil.Process, str]]:
    """(child, its name). One that has ended and was waited for has none."""
    import psutil

    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            name = child.name()
            if name in names:
                yield child, name


def kill_rest(processes: Collection[psutil.Process], after_s: float) -> list[psutil.Process]:
    """Kill those that are still there after so many seconds; returns them."""
    import psutil

    _, alive = psutil.wait_procs(list(processes), timeout=after_s)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    return alive


def is_stopped(process: psutil.Process) -> bool:
    """One that has ended is not."""
    import psutil

    with suppress(psutil.NoSuchProcess):
        return process.status() in STOPPED
    return False


@dataclass(frozen=True)
class Seen:
    """A process and all below it at one moment.

    `stopped`: pid of one that is stopped, or 0. `done`: by pid, seconds of processor time and bytes moved so far.
    `runs`: the method that it runs, which Ray writes into a worker's title; empty if none or unknown.
    """

    stopped: int
    done: Mapping[int, tuple[float, int]]
    runs: str


def look(pids: Collection[int]) -> dict[int, Seen]:
    """Those that exist. Zombies do not count."""
    import psutil

    found = psutil.process_iter(["ppid", "status", "cpu_times"])
    processes = {process.pid: process for process in found if process.info["status"] != psutil.STATUS_ZOMBIE}
    below: defaultdict[int, list[psutil.Process]] = defaultdict(list)
    for process in processes.values():
        below[process.info["ppid"]].append(process)
    return {pid: _seen(processes[pid], below) for pid in pids if pid in processes}


def _seen(root: psutil.Process, below: defaultdict[int, list[psutil.Process]]) -> Seen:
    family = [root]
    for process in family:
        family += below[process.pid]
    stopped = next((process.pid for process in family if process.info["status"] in STOPPED), 0)
    done = {process.pid: (sum(process.info["cpu_times"][:2]), _moved(process)) for process in family}
    return Seen(stopped, done, _title(root).partition(".")[2])


def _moved(process: psutil.Process) -> int:
    """0 for a process of another user, which may not be looked into."""
    import psutil

    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        counted = process.io_counters()
        return counted.read_chars + counted.write_chars
    return 0


def stopped_workers(logs: Path) -> dict[int, str]:
    """Ray's workers on this machine that are stopped: class of the actor by pid. `logs`: they write there."""
    import psutil

    stopped = [process for process in psutil.process_iter(["status"]) if process.info["status"] in STOPPED]
    classes = {process.pid: _title(process).removeprefix("ray::").partition(".")[0] for process in stopped}
    return {pid: name for pid, name in classes.items() if name and _writes_to(pid, logs)}


def _writes_to(pid: int, logs: Path) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        return Path(f"/proc/{pid}/fd/1").readlink().is_relative_to(logs)
    return False


def _title(process: psutil.Process) -> str:
    """That Ray gives a worker, such as `ray::PolicyModelActor.fit`; empty for other processes.

    About one Ray of forty gives none: where a worker has set the first variable of its environment again, whose order
    is chance, Ray does not find the place for a title.
    Contract: test_ray_actors.test_workers_have_the_method_that_runs_in_their_titles
    """
    import psutil

    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        title = next(iter(process.cmdline()), "").strip()
        return title if title.startswith("ray::") else ""
    return ""


def has_worked(before: Seen | None, now: Seen, seconds: float) -> bool:
    """Has it, or a process below it, done anything in these seconds? That one has been started counts."""
    if before is None or now.done.keys() - before.done.keys():
        return True
    for pid, (cpu, moved) in now.done.items():
        cpu_before, moved_before = before.done[pid]
        if cpu - cpu_before >= WORKS_CPU * seconds or moved - moved_before >= WORKS_BYTES * seconds:
            return True
    return False


class ProcessProbe:
    """A Ray actor on another node: looks at processes there."""

    def look(self, pids: Collection[int]) -> dict[int, Seen]:
        """See `look`."""
        return look(pids)
