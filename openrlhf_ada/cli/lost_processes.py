"""Processes of a run that died: which, how, its last words, and whether memory was the reason."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from openrlhf_ada.cli.run_actors import actors_of_run, name_of
from openrlhf_ada.host.ray_actors import DEAD, ActorRow
from openrlhf_ada.platforms.exits import Exits, how_it_ended, kernel_kills

LAST_LINES = 8

LINE_LENGTH = 160

NOTICED_S = 10.0
"""Seconds that Ray's head takes at most to note a death that a caller has noticed."""

REAPED_S = 5.0
"""Seconds until its parent has fetched the status of a process that has ended."""

BY_RAY = re.compile(r"memory monitor|low on memory|running out of memory", re.IGNORECASE)
"""What Ray says where its own memory monitor ends a process. Its usual guess names the kernel's OOM killer."""

SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""Of terminals: colours and movements."""

RAY_GUESSES = "Some common causes include"


class RunLostError(RuntimeError):
    """A process of the run has died, or nothing has happened for --ada_dead_after. The text is for the user."""


@dataclass(frozen=True)
class LostProcess:
    """`how`: in words. `memory`: what is known of memory as the reason, or empty. `log`: its last lines."""

    name: str
    pid: int
    how: str
    memory: str
    log: Sequence[str]
    log_file: str

    def description(self) -> str:
        """For the user: a few lines."""
        lines = [f"{self.name} (pid {self.pid}) died: {self.how}."]
        if self.memory:
            lines.append(self.memory)
        if self.log:
            lines.append(f"Its last lines ({self.log_file}):")
            lines += [f"    {line}" for line in self.log]
        else:
            lines.append(f"It has left no lines ({self.log_file}).")
        return "\n".join(lines)


def explain(node_id: str, log_dir: str, exits: Exits, kills_before: Mapping[str, int]) -> list[LostProcess]:
    """Those of this job, by the time of their end; empty where none is found within a few seconds."""
    end = time.monotonic() + NOTICED_S
    while not (rows := [row for row in actors_of_run() if row.state == DEAD and row.lost]) and time.monotonic() < end:
        time.sleep(0.5)
    return [
        _explained(row, name_of(row), row.node_id == node_id, Path(log_dir), exits, kills_before)
        for row in sorted(rows, key=lambda row: row.ended_at)
    ]


def _explained(
    row: ActorRow, name: str, is_here: bool, log_dir: Path, exits: Exits, kills_before: Mapping[str, int]
) -> LostProcess:
    if not is_here:
        how = f"on {row.address}, {said_by_ray(row.lost)}"
        return LostProcess(name, row.pid, how, by_memory(row.lost, {}, {}), (), f"its log is on {row.address}")
    log_file, lines = last_lines(log_dir, row.pid)
    how = how_it_ended(exits.status(row.pid, REAPED_S), lines)
    return LostProcess(name, row.pid, how, by_memory(row.lost, kills_before, kernel_kills()), lines, log_file)


def said_by_ray(lost: str) -> str:
    """Ray's words in one line, without its guesses at the cause."""
    return " ".join(lost.partition(RAY_GUESSES)[0].split()).rstrip(".")


def by_memory(lost: str, before: Mapping[str, int], now: Mapping[str, int]) -> str:
    """Who ended it for want of memory, if anybody did."""
    if BY_RAY.search(lost):
        return f"Ray's memory monitor ended it: {said_by_ray(lost)}."
    for where, count in now.items():
        if count > before.get(where, count):
            return f"The kernel ended {count - before[where]} processes of {where} for want of memory during this run."
    if not now:
        return ""
    return f"Memory was not the reason: neither Ray nor the kernel (its counts for {' and '.join(now)}) says so."


def last_lines(log_dir: Path, pid: int) -> tuple[str, list[str]]:
    """The file of what a worker has written to standard error, or else to standard output, and its last lines."""
    files = [*log_dir.glob(f"worker-*-{pid}.err"), *log_dir.glob(f"worker-*-{pid}.out")]
    for file in files:
        if shown := shown_lines(file.read_bytes().decode(errors="replace")):
            return str(file), shown
    return str(files[0] if files else log_dir), []


def shown_lines(text: str) -> list[str]:
    """The last ones, without what a progress bar has written over."""
    lines = (SEQUENCES.sub("", line).rstrip().rpartition("\r")[2].rstrip() for line in text.split("\n"))
    return [line[:LINE_LENGTH] for line in lines if line][-LAST_LINES:]
