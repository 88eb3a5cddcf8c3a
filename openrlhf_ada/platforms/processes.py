"""What Linux says of processes: whether they are stopped, what they work, which method of an actor they run."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")

WORKS_CPU = 0.05
"""Share of a core. An idle process of Ray or vLLM takes up to 0.02."""

WORKS_BYTES = 16 * 1024
"""Bytes a second, read or written. An idle process of Ray moves up to 1 KiB a second."""

STOPPED = ("T", "t")


@dataclass(frozen=True)
class Seen:
    """A process and all below it at one moment.

    `stopped`: pid of one that is stopped, or 0. `done`: by pid, seconds of processor time and bytes moved so far.
    `runs`: the method that it runs, which Ray writes into a worker's title; empty if none or unknown.
    """

    stopped: int
    done: Mapping[int, tuple[float, int]]
    runs: str


def look(pids: Collection[int], proc: Path = PROC) -> dict[int, Seen]:
    """Those that exist. Zombies do not count."""
    stats = _all_stats(proc)
    below: defaultdict[int, list[int]] = defaultdict(list)
    for pid, (_, parent, _) in stats.items():
        below[parent].append(pid)
    return {pid: _read_tree(pid, stats, below, proc) for pid in pids if pid in stats}


def _read_tree(
    root: int, stats: Mapping[int, tuple[str, int, float]], below: Mapping[int, list[int]], proc: Path
) -> Seen:
    family, pids = [root], [root]
    while pids:
        pids = [child for pid in pids for child in below.get(pid, ())]
        family += pids
    stopped = next((pid for pid in family if stats[pid][0] in STOPPED), 0)
    return Seen(stopped, {pid: (stats[pid][2], _moved(pid, proc)) for pid in family}, _method(root, proc))


def _all_stats(proc: Path) -> dict[int, tuple[str, int, float]]:
    """State, parent, and seconds of processor time by pid."""
    tick = os.sysconf("SC_CLK_TCK")
    stats: dict[int, tuple[str, int, float]] = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            text = _read(folder / "stat")
            # The name, in brackets, may have blanks and brackets of its own.
            state, parent, *rest = text.rpartition(")")[2].split() or ("Z", "0")
            if state != "Z":
                stats[int(folder.name)] = (state, int(parent), (int(rest[9]) + int(rest[10])) / tick)
    return stats


def _moved(pid: int, proc: Path) -> int:
    """0 for a process of another user, which may not be looked into."""
    lines = (line.split(":") for line in _read(proc / str(pid) / "io").splitlines())
    return sum(int(number) for name, number in lines if name in ("rchar", "wchar"))


def stopped_workers(logs: Path, proc: Path = PROC) -> dict[int, str]:
    """Ray's workers on this machine that are stopped: class of the actor by pid. `logs`: they write there."""
    stopped = [pid for pid, (state, _, _) in _all_stats(proc).items() if state in STOPPED]
    classes = {pid: _title(pid, proc).removeprefix("ray::").partition(".")[0] for pid in stopped}
    return {pid: name for pid, name in classes.items() if name and _writes_to(pid, logs, proc)}


def _writes_to(pid: int, logs: Path, proc: Path) -> bool:
    try:
        return (proc / str(pid) / "fd" / "1").readlink().is_relative_to(logs)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False


def _method(pid: int, proc: Path) -> str:
    """Of a title such as `ray::PolicyModelActor.fit`."""
    return _title(pid, proc).partition(".")[2]


def _title(pid: int, proc: Path) -> str:
    """That Ray gives a worker; empty for other processes.

    About one Ray of forty gives none: where a worker has set the first variable of its environment again, whose order
    is chance, Ray does not find the place for a title.
    Contract: test_ray_actors.test_workers_have_the_method_that_runs_in_their_titles
    """
    title = _read(proc / str(pid) / "cmdline").split("\0")[0].strip()
    return title if title.startswith("ray::") else ""


def _read(path: Path) -> str:
    """Empty where the process has ended meanwhile."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
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
