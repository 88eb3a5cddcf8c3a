"""When nothing happens: whom a run waits for, since when, when that is said, and when the run is given up.

What counts as progress stands in docs/operations.md; keep it the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

WORKING, IDLE, STARTING, UNSEEN = "working", "idle", "starting", "unseen"
"""What a process does. starting: Ray has not started it yet. unseen: its node does not tell."""

CONTROLLER, ENGINE, SERVANT, WORKER = "controller", "engine", "servant", "worker"
"""Kinds of actors. controller: waits for others itself. servant: a queue or a lock, waits to be asked."""

WAITS_TO_BE_ASKED = "answers"
"""The method that an engine runs all the time, whether it has rollouts or not."""


@dataclass(frozen=True)
class Process:
    """An actor of the run as it is now. `pid`: 0 before it has a process. `runs`: the method it runs, empty if
    none or unknown."""

    name: str
    kind: str
    pid: int
    does: str
    runs: str = ""
    address: str = ""
    is_stopped: bool = False

    def description(self) -> str:
        if self.does == STARTING:
            return f"{self.name} (Ray has not started it)"
        what = f", in {self.runs}" if self.runs not in ("", WAITS_TO_BE_ASKED) else ""
        what += ", stopped" if self.is_stopped else ""
        where = f", on {self.address}" if self.address else ""
        return f"{self.name} (pid {self.pid}{what}{where})"


@dataclass(frozen=True)
class Verdict:
    """A line for the user. `is_end`: the run is given up, and this says why."""

    text: str
    is_end: bool = False


def waited_for(processes: Sequence[Process]) -> list[Process]:
    """Those on which the run depends now: others than those that wait for them. A stopped one comes first: all depends
    on it sooner or later."""
    if stopped := [p for p in processes if p.is_stopped]:
        return stopped
    at_work = [p for p in processes if p.kind in (WORKER, ENGINE) and p.runs not in ("", WAITS_TO_BE_ASKED)]
    starting = [p for p in processes if p.does == STARTING]
    # An engine may be sampling whatever its title says: it does many things at a time.
    engines = [p for p in processes if p.kind == ENGINE]
    return at_work or starting or engines + [p for p in processes if p.kind == CONTROLLER]


class Silence:
    """Told what all processes do every few seconds; says what is due. `silence_s`, `dead_after_s`: --ada_silence and
    --ada_dead_after; `engine_s`: how long engines have at least, since they have limits of their own."""

    def __init__(
        self, silence_s: float, dead_after_s: float, engine_s: float, clock: Callable[[], float] = monotonic
    ) -> None:
        self._silence_s, self._dead_after_s, self._engine_s = silence_s, dead_after_s, engine_s
        self._clock = clock
        self._moved_at = clock()
        self._next_line_s = silence_s
        self._before: set[tuple[str, int, str]] = set()

    def note_progress(self) -> None:
        """The trainer has told something. Callable from any thread."""
        self._moved_at = self._clock()

    def judge(self, processes: Sequence[Process]) -> Verdict | None:
        """What is to be said now, if anything."""
        if self._is_progress(processes):
            self._moved_at = self._clock()
        held, seconds = waited_for(processes), self._clock() - self._moved_at
        limit, text = self._limit(held), self._text(held, seconds)
        if seconds >= limit:
            return Verdict(f"{text}, and --ada_dead_after allows {limit:g} s", is_end=True)
        if seconds < self._silence_s:
            self._next_line_s = self._silence_s
        elif seconds >= self._next_line_s:
            self._next_line_s = 2 * seconds
            end = "" if limit == math.inf else f". The run ends after {limit:g} s of this (--ada_dead_after)"
            return Verdict(text + end)
        return None

    def _is_progress(self, processes: Sequence[Process]) -> bool:
        is_seen = any(p.does in (WORKING, UNSEEN) for p in waited_for(processes))
        # The driver asks the queue twice a second, whatever happens.
        running = {(p.name, p.pid, "" if p.kind == SERVANT else p.runs) for p in processes}
        changed, self._before = running != self._before, running
        return is_seen or changed

    def _limit(self, held: Sequence[Process]) -> float:
        """No end while Ray has no place for a process: other jobs may hold the slots for hours."""
        if any(p.does == STARTING for p in held) or not held:
            return math.inf
        if any(p.kind == ENGINE for p in held):
            return max(self._dead_after_s, self._engine_s)
        return self._dead_after_s

    @staticmethod
    def _text(held: Sequence[Process], seconds: float) -> str:
        if not held:
            return f"waiting for Ray, which has started no process of this run for {seconds:.0f} s"
        if any(p.does == STARTING for p in held):
            return f"waiting for {_named(held)} for {seconds:.0f} s"
        return f"nothing has happened for {seconds:.0f} s: waiting for {_named(held)}"


def _named(processes: Sequence[Process], most: int = 4) -> str:
    names = [process.description() for process in processes[:most]]
    if len(processes) > most:
        names.append(f"{len(processes) - most} more")
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
