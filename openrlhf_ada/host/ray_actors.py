"""Ray's table of a job's actors: which process each has, and of what it died.

Contract: test_ray_actors.test_deaths_that_somebody_asked_for_are_told_apart
Contract: test_ray_actors.test_the_table_has_every_actor_with_its_process_and_its_death
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ENGINE, UP, RESTARTS = "RolloutRayActor", "ALIVE", "RESTARTING"
STARTS = ("DEPENDENCIES_UNREADY", "PENDING_CREATION", RESTARTS)
DEAD = "DEAD"

LOST = ("WORKER_DIED", "NODE_DIED", "UNSPECIFIED")
"""Ray's reasons for a death that nobody asked for."""


@dataclass(frozen=True)
class ActorRow:
    """One actor. `pid`: 0 before it has a process. `lost`: what Ray says of a death that nobody asked for, else empty.

    `ended_at`: in the order of Ray's clock.
    """

    class_name: str
    node_id: str
    address: str
    pid: int
    state: str
    lost: str = ""
    ended_at: int = 0


def job_actors() -> list[ActorRow]:
    """All actors of this process's job, from Ray's head; Ray must be initialised. Ray's public table is its
    dashboard's, which a local Ray of ours does not start."""
    import ray
    from ray._private import state

    job = ray.JobID.from_hex(ray.get_runtime_context().get_job_id())
    return [_row(entry) for entry in state.actors(job_id=job).values()]


def num_engines_up() -> int:
    """Engines of this job whose constructor is done; an engine answers no call before that. Ours have the name of
    OpenRLHF's class."""
    return sum(row.class_name == ENGINE and row.state == UP for row in job_actors())


def _row(entry: dict[str, Any]) -> ActorRow:
    address = entry["Address"]
    return ActorRow(
        entry["ActorClassName"],
        address["NodeID"],
        address["IPAddress"],
        entry["Pid"],
        entry["State"],
        _lost(entry["DeathCause"]) if entry["State"] == DEAD else "",
        entry["EndTime"],
    )


def _lost(cause: Any) -> str:
    """What Ray says of an actor that was lost; "" for one that somebody ended."""
    if cause.HasField("oom_context"):
        return cause.oom_context.error_message or "out of memory"
    if not cause.HasField("actor_died_error_context"):
        return ""
    died = cause.actor_died_error_context
    return (
        died.error_message
        if died.DESCRIPTOR.fields_by_name["reason"].enum_type.values[died.reason].name in LOST
        else ""
    )
