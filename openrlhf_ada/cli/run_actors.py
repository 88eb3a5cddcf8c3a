"""The actors of a run under our names, and what their processes do, on whichever node they are."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from openrlhf_ada.host.ray_actors import DEAD, STARTS, ActorRow, job_actors
from openrlhf_ada.platforms.processes import ProcessProbe, Seen, has_worked, look, stopped_workers
from openrlhf_ada.reporting.silence import (
    CONTROLLER,
    ENGINE,
    IDLE,
    SERVANT,
    STARTING,
    STOPPED,
    UNSEEN,
    WORKER,
    WORKING,
    Process,
)

logger = logging.getLogger(__name__)

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

PROBE_S = 10.0
"""Seconds that a node has to say what its processes do."""


def name_of(row: ActorRow) -> str:
    """Such as `policy actor`."""
    return ROLES.get(row.class_name, (row.class_name, WORKER))[0]


def actors_of_run() -> list[ActorRow]:
    """All but those that look at the others."""
    return [row for row in job_actors() if row.class_name != ProcessProbe.__name__]


class RunActors:
    """Looks at all actors of this job again and again.

    `node_id`: this machine's, as Ray has it. `logs`: where Ray's workers on it write.
    """

    def __init__(self, node_id: str, logs: Path) -> None:
        self._node_id, self._logs = node_id, logs
        self._probes: dict[str, Any] = {}
        self._seen: dict[tuple[str, int], Seen] = {}
        self._at = time.monotonic()

    def look(self) -> tuple[list[Process], list[int]]:
        """What each does since the last look; and the pids of those on this machine."""
        rows = [row for row in actors_of_run() if row.state != DEAD]
        pids: defaultdict[str, list[int]] = defaultdict(list)
        for row in rows:
            if row.state not in STARTS:
                pids[row.node_id].append(row.pid)
        seen: dict[tuple[str, int], Seen] = {}
        for node, of_node in pids.items():
            on_node = look(of_node) if node == self._node_id else self._look_at(node, of_node)
            seen |= {(node, pid): process for pid, process in on_node.items()}
        now = time.monotonic()
        # Ray says the process of an actor only when its constructor is done.
        held = stopped_workers(self._logs) if any(row.state in STARTS for row in rows) else {}
        found = [self._process(row, seen, now - self._at, held) for row in rows]
        self._seen, self._at = seen, now
        return found, pids[self._node_id]

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

    def _process(
        self, row: ActorRow, seen: Mapping[tuple[str, int], Seen], seconds: float, held: dict[int, str]
    ) -> Process:
        """`held`: stopped workers of this machine, by pid; the one of this row is taken out."""
        name, (_, kind) = name_of(row), ROLES.get(row.class_name, ("", WORKER))
        address = "" if row.node_id == self._node_id else row.address
        if row.state in STARTS:
            # Our classes have the host's name in theirs.
            stopped = next((pid for pid, of_class in held.items() if of_class.endswith(row.class_name)), 0)
            if not held.pop(stopped, ""):
                return Process(name, kind, 0, STARTING)
            return Process(name, kind, stopped, STOPPED, stopped=stopped)
        process = (row.node_id, row.pid)
        if process not in seen:
            return Process(name, kind, row.pid, UNSEEN, address=address)
        now = seen[process]
        if now.stopped:
            return Process(name, kind, row.pid, STOPPED, now.runs, now.stopped, address)
        does = WORKING if has_worked(self._seen.get(process), now, seconds) else IDLE
        return Process(name, kind, row.pid, does, now.runs, address=address)
