"""Processes of this machine: those below this one, what they work, which method of an actor they run, how one ended.
Each may end between two questions about it, which is no error here."""

from __future__ import annotations

import re
import signal
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

HELPER = "multiprocessing.resource_tracker"
"""In the command line of Python's process that removes what others leave behind. Nothing waits for it."""

SAID_OF_SIGNALS = re.compile(r"\*\*\* (SIG[A-Z]+) received|Fatal Python error: ([A-Z][a-z ]+)")
"""What Ray's handler and Python's write into the log of a process that a fault ends."""


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


@dataclass(frozen=True)
class Seen:
    """A process and all below it at one moment.

    `done`: by pid, seconds of processor time and bytes moved so far. `runs`: the method that it runs, which Ray writes
    into a worker's title; empty if none or unknown. `is_stopped`: one of them is (SIGSTOP, a debugger).
    """

    done: Mapping[int, tuple[float, int]]
    runs: str
    is_stopped: bool = False


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
    done = {process.pid: (sum(process.info["cpu_times"][:2]), _moved(process)) for process in family}
    # psutil's words.
    stopped = [process for process in family if process.info["status"] in ("stopped", "tracing-stop")]
    is_stopped = any(HELPER not in " ".join(_command(process)) for process in stopped)
    return Seen(done, _title(root).partition(".")[2], is_stopped)


def _moved(process: psutil.Process) -> int:
    """0 for a process of another user, which may not be looked into."""
    import psutil

    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        counted = process.io_counters()
        return counted.read_chars + counted.write_chars
    return 0


def _title(process: psutil.Process) -> str:
    """That Ray gives a worker, such as `ray::PolicyModelActor.fit`; empty for others, and in one Ray of forty.

    Contract: test_ray_actors.test_workers_have_the_method_that_runs_in_their_titles
    """
    title = next(iter(_command(process)), "").strip()
    return title if title.startswith("ray::") else ""


def _command(process: psutil.Process) -> list[str]:
    """Empty for a process of another user, which may not be looked into."""
    import psutil

    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return process.cmdline()
    return []


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


# -- how one ended ----------------------------------------------------------------------------------------------------


def how_it_ended(status: int | None, log_lines: Collection[str] = ()) -> str:
    """In words, by its status (as `subprocess` has it) or, where that is not known, by what it has left in its log."""
    if status is not None:
        return f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
    for line in log_lines:
        if found := SAID_OF_SIGNALS.search(line):
            return f"ended by {found[1] or found[2]}"
    return "ended; its signal is not known. After SIGKILL a log ends without an error"


def kernel_kills(cgroups: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> dict[str, int]:
    """How many processes the kernel has ended for want of memory, by where: this process's memory group with those
    below it (of cgroups v2), and this machine, which may have other users. What Linux does not say is left out."""
    membership = (proc / "self" / "cgroup").read_text(encoding="utf-8")
    own = membership.rpartition("0::/")[2].strip()
    # In a container the group may be mounted at the root.
    of_group = (folder / "memory.events" for folder in (cgroups / own, cgroups))
    group = next((path for path in of_group if path.is_file()), None)
    counted = {"this memory group": group, "this machine": proc / "vmstat"}
    found = {where: _oom_kills(path) for where, path in counted.items() if path is not None}
    return {where: count for where, count in found.items() if count is not None}


def _oom_kills(path: Path) -> int | None:
    entries = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
    return next((int(entry[1]) for entry in entries if entry[0] == "oom_kill"), None)
