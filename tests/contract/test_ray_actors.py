"""What host/ray_actors.py reads of Ray's table of actors, on a real Ray."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ray
from openrlhf.trainer.ray.launcher import ReferenceModelActor, RewardModelActor
from ray.core.generated.common_pb2 import ActorDeathCause
from ray.util.queue import _QueueActor

from openrlhf_ada.cli.run_watch import ROLES
from openrlhf_ada.host import ray_actors
from openrlhf_ada.host.ray_actors import LOST
from openrlhf_ada.rollout.engine import rollout_actor
from openrlhf_ada.trainer.critic import RayAdaCritic
from openrlhf_ada.trainer.policy import RayAdaPolicyActor
from openrlhf_ada.trainer.ppo_trainer import RayAdaPPOTrainer
from openrlhf_ada.trainer.ppo_trainer_async import AdaGenerateSamplesActor, AdaTrainingActor, RayAdaPPOTrainerAsync
from openrlhf_ada.trainer.prompt_critic import RayPassRateCritic

ROOT = Path(__file__).parents[2]

LIVES_AND_DEATHS = """
import json, os, signal, time
import ray
from ray.exceptions import RayActorError
from openrlhf_ada.host.ray_actors import job_actors
from openrlhf_ada.platforms.processes import look

class Worker:
    def pid(self):
        return os.getpid()

    def nap(self):
        time.sleep(3600)

ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
make = ray.remote(Worker).options(num_cpus=1).remote
lives, killed, ended = make(), make(), make()
unplaced = ray.remote(Worker).options(num_cpus=99).remote()
pids = ray.get([actor.pid.remote() for actor in (lives, killed, ended)])
lives.nap.remote()
os.kill(pids[1], signal.SIGKILL)
ray.kill(ended)
for actor in (killed, ended):
    try:
        ray.get(actor.pid.remote())
    except RayActorError:
        pass
while len([row for row in job_actors() if row.state == "DEAD"]) < 2:
    time.sleep(0.1)
titled_by = time.monotonic() + 10
while not look([pids[0]])[pids[0]].runs and time.monotonic() < titled_by:
    time.sleep(0.1)
rows = job_actors()
told = {"rows": [[row.class_name, row.pid, row.state, row.lost] for row in rows], "pids": pids}
told["runs"] = look([pids[0]])[pids[0]].runs
told["here"] = {row.node_id for row in rows if row.pid == pids[0]} == {ray.get_runtime_context().get_node_id()}
print(json.dumps(told))
"""


def told_by_a_ray() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", LIVES_AND_DEATHS], capture_output=True, text=True, timeout=120, check=True, cwd=ROOT
    )
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith('{"rows"')))


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """About one Ray of forty gives no titles: see platforms/processes.py."""
    for _ in range(3):
        if (told := told_by_a_ray())["runs"]:
            break
    return told


@pytest.mark.slow
def test_workers_have_the_method_that_runs_in_their_titles(told: dict[str, Any]) -> None:
    assert told["runs"] == "nap"


@pytest.mark.slow
def test_the_table_has_every_actor_with_its_process_and_its_death(told: dict[str, Any]) -> None:
    by_pid = {pid: (name, state, lost) for name, pid, state, lost in told["rows"]}
    lives, killed, ended = told["pids"]
    assert by_pid[lives] == ("Worker", "ALIVE", "") and told["here"]
    assert by_pid[killed][:2] == ("Worker", "DEAD") and "unexpectedly" in by_pid[killed][2]
    assert by_pid[ended] == ("Worker", "DEAD", "")
    assert by_pid[0][1] in ray_actors.STARTS


def test_deaths_that_somebody_asked_for_are_told_apart() -> None:
    context = ActorDeathCause.DESCRIPTOR.fields_by_name["actor_died_error_context"].message_type
    reasons = {value.name for value in context.fields_by_name["reason"].enum_type.values}
    assert reasons == {*LOST, "OWNER_DIED", "RAY_KILL", "OUT_OF_SCOPE", "REF_DELETED"}
    assert "error_message" in ActorDeathCause.DESCRIPTOR.fields_by_name["oom_context"].message_type.fields_by_name


@pytest.mark.parametrize(
    ("actor", "name"),
    [
        (RayAdaPolicyActor, "policy actor"),
        (ReferenceModelActor, "reference"),
        (RewardModelActor, "reward model"),
        (RayAdaCritic, "critic"),
        (RayPassRateCritic, "critic"),
        (rollout_actor(1), "vLLM engine"),
        (RayAdaPPOTrainer, "trainer"),
        (RayAdaPPOTrainerAsync, "coordinator"),
        (ray.remote(AdaTrainingActor), "trainer"),
        (ray.remote(AdaGenerateSamplesActor), "generator"),
        (ray.remote(asyncio.Lock), "engine lock"),
        (ray.remote(_QueueActor), "queue"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_actor_of_ours_has_a_name(actor: object, name: str) -> None:
    """By the class that Ray notes in its table: the one that was first made an actor."""
    noted = actor.__ray_metadata__.modified_class.__ray_actor_class__  # type: ignore[attr-defined]
    assert ROLES[noted.__name__][0] == name
