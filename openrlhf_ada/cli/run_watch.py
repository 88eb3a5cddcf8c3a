"""Watches the processes of a run, on whichever node they are: says who is waited for, gives up a run in which nothing
happens, and explains a process that was lost: which, how, its last words, and whether memory was the reason."""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from openrlhf_ada.config.settings import Settings
from openrlhf_ada.host.ray_actors import DEAD, STARTS, ActorRow, job_actors
from openrlhf_ada.platforms.processes import ProcessProbe, Seen, has_worked, how_it_ended, kernel_kills, look
from openrlhf_ada.platforms.signals import interrupt_main
from openrlhf_ada.reporting.silence import (
    CONTROLLER,
    ENGINE,
    IDLE,
    SERVANT,
    STARTING,
    UNSEEN,
    WORKER,
    WORKING,
    Process,
    Silence,
)

ROLES = {
    "PolicyModelActor": ("policy actor", WORKER),
    "ReferenceModelActor": ("reference", WORKER),
    "RewardModelActor": ("reward model", WORKER),
    "CriticModelActor": ("critic", WORKER),
    "RolloutRayActor": ("vLLM engine", ENGINE),
    "PPOTrainer": ("trainer", CONTROLLER),
    "PPOTrainerAsync": ("coordinator", CONTROLLER),
    "TrainingActor": ("trainer", CONTROLLER),
    "GenerateSamplesActor": ("generator", CONTROLLER),
    "_QueueActor": ("queue", SERVANT),
    "Lock": ("engine lock", SERVANT),
}
"""By the class's name in Ray's table: OpenRLHF's, also where ours is derived from it. Other actors, such as those of
an agent, keep the name of their class."""

LOOK_S = 5.0
"""Seconds between two looks, and at most a third of --ada_silence."""

ENGINE_S = 120.0
"""How much longer than --ada_timeout an engine has: its own limits, which do not end the run, come first."""

PROBE_S = 10.0
"""Seconds that a node has to say what its processes do."""

STOP_S = 30.0

NOTICED_S = 10.0
"""Seconds that Ray's head takes at most to note a death that a caller has noticed."""

LAST_LINES, LINE_LENGTH = 8, 160

BY_RAY = re.compile(r"memory monitor|low on memory|running out of memory", re.IGNORECASE)
"""What Ray says where its own memory monitor ends a process. Its usual guess names the kernel's OOM killer."""

RAY_GUESSES = "Some common causes include"

SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""Of terminals: colours and movements."""


class RunLostError(RuntimeError):
    """A process of the run has died, or nothing has happened for --ada_dead_after. The text is for the user."""


class RunWatch(threading.Thread):
    """Looks at the run's processes; `note` gets the lines for the user.

    At the end of its patience it interrupts the main thread, and `verdict` says why.
    """

    def __init__(self, settings: Settings, log_dir: str, note: Callable[[str], None]) -> None:
        import ray

        super().__init__(daemon=True, name="ada-watch")
        self._look_s = min(LOOK_S, settings.silence / 3)
        self._silence = Silence(settings.silence, settings.dead_after, settings.timeout + ENGINE_S)
        self._log_dir, self._note = Path(log_dir), note
        self._node_id = ray.get_runtime_context().get_node_id()
        self._actors = RunActors(self._node_id)
        self._kills = kernel_kills()
        self._ended = threading.Event()
        self.verdict = ""

    def note_progress(self) -> None:
        """The trainer has told something."""
        self._silence.note_progress()

    def run(self) -> None:
        from ray.exceptions import RayError

        while not self._ended.wait(self._look_s):
            try:
                verdict = self._silence.judge(self._actors.look())
            except RayError:
                # Ray ends, and the main thread says why.
                return
            if verdict is not None and verdict.is_end:
                self.verdict = verdict.text
                interrupt_main()
                return
            if verdict is not None:
                self._note(verdict.text)

    def lost(self) -> str:
        """A few lines of each process of this run whose death nobody asked for, the first one first; empty where none
        is found within a few seconds. Ray must still be there."""
        end = time.monotonic() + NOTICED_S
        while not (rows := [row for row in actors_of_run() if row.lost]) and time.monotonic() < end:
            time.sleep(0.5)
        rows.sort(key=lambda row: row.ended_at)
        return "\n".join(explained(row, self._node_id, self._log_dir, self._kills) for row in rows)

    def stop(self, *, waits: bool) -> None:
        """A call into Ray after its shutdown would end the whole process. `waits`: False where Ray does not answer."""
        self._ended.set()
        if waits:
            self.join(STOP_S)


# -- what they do -----------------------------------------------------------------------------------------------------


def role_of(row: ActorRow) -> tuple[str, str]:
    """Its name, such as `policy actor`, and its kind."""
    return ROLES.get(row.class_name, (row.class_name, WORKER))


def actors_of_run() -> list[ActorRow]:
    """All but those that look at the others."""
    return [row for row in job_actors() if row.class_name != ProcessProbe.__name__]


class RunActors:
    """Looks at all actors of this job again and again. `node_id`: this machine's, as Ray has it."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._probes: dict[str, Any] = {}
        self._seen: dict[tuple[str, int], Seen] = {}
        self._at = time.monotonic()

    def look(self) -> list[Process]:
        """What each does since the last look."""
        rows = [row for row in actors_of_run() if row.state != DEAD]
        pids: defaultdict[str, list[int]] = defaultdict(list)
        for row in rows:
            # Ray says the process of an actor only when its constructor is done.
            if row.state not in STARTS:
                pids[row.node_id].append(row.pid)
        seen: dict[tuple[str, int], Seen] = {}
        for node, of_node in pids.items():
            on_node = look(of_node) if node == self._node_id else self._look_at(node, of_node)
            seen |= {(node, pid): process for pid, process in on_node.items()}
        now = time.monotonic()
        found = [self._process(row, seen, now - self._at) for row in rows]
        self._seen, self._at = seen, now
        return found

    def _look_at(self, node: str, pids: Sequence[int]) -> dict[int, Seen]:
        """Empty where that node does not answer: Ray finds out by itself whether it is lost."""
        import ray
        from ray.exceptions import ActorUnschedulableError, GetTimeoutError, RayActorError
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if node not in self._probes:
            on_it = NodeAffinitySchedulingStrategy(node, soft=False)
            self._probes[node] = ray.remote(ProcessProbe).options(num_cpus=0, scheduling_strategy=on_it).remote()
        with suppress(GetTimeoutError):
            try:
                return ray.get(self._probes[node].look.remote(pids), timeout=PROBE_S)
            except (RayActorError, ActorUnschedulableError):
                del self._probes[node]
        return {}

    def _process(self, row: ActorRow, seen: Mapping[tuple[str, int], Seen], seconds: float) -> Process:
        name, kind = role_of(row)
        if row.state in STARTS:
            return Process(name, kind, 0, STARTING)
        address = "" if row.node_id == self._node_id else row.address
        process = (row.node_id, row.pid)
        if process not in seen:
            return Process(name, kind, row.pid, UNSEEN, address=address)
        now = seen[process]
        does = WORKING if has_worked(self._seen.get(process), now, seconds) and not now.is_stopped else IDLE
        return Process(name, kind, row.pid, does, now.runs, address, now.is_stopped)


# -- how one was lost -------------------------------------------------------------------------------------------------


def explained(row: ActorRow, node_id: str, log_dir: Path, kills_before: Mapping[str, int]) -> str:
    """For the user: a few lines. `node_id`: this machine's; `log_dir`: of Ray, here."""
    who = f"{role_of(row)[0]} (pid {row.pid}) died:"
    if row.node_id != node_id:
        lines = [f"{who} on {row.address}, {said_by_ray(row.lost)}.", by_memory(row.lost, {}, {})]
        return "\n".join([*filter(None, lines), f"Its log is on {row.address}."])
    file, last = last_lines(log_dir, row.pid)
    lines = [f"{who} {how_it_ended(None, last)}.", by_memory(row.lost, kills_before, kernel_kills())]
    lines.append(f"Its last lines ({file}):" if last else f"It has left no lines ({file}).")
    return "\n".join([*filter(None, lines), *(f"    {line}" for line in last)])


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
    """The file of what a worker has written to standard error, or else to standard output, and its last lines, without
    what a progress bar has written over."""
    files = [*log_dir.glob(f"worker-*-{pid}.err"), *log_dir.glob(f"worker-*-{pid}.out")]
    for file in files:
        text = file.read_bytes().decode(errors="replace")
        lines = (SEQUENCES.sub("", line).rstrip().rpartition("\r")[2].rstrip() for line in text.split("\n"))
        if shown := [line[:LINE_LENGTH] for line in lines if line][-LAST_LINES:]:
            return str(file), shown
    return str(files[0] if files else log_dir), []
