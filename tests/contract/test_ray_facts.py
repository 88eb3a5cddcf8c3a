"""What host/ray_session.py reads of Ray's own record."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ray._private import node, services, worker
from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR as NAME

from openrlhf_ada.host.ray_session import job_runtime_env, own_token, running_cluster

ROOT = Path(__file__).parents[2]


def test_session_folder_is_where_the_logs_are() -> None:
    assert "worker.node = node" in inspect.getsource(worker.connect)
    assert isinstance(worker.global_worker, worker.Worker)
    assert list(inspect.signature(node.Node.get_session_dir_path).parameters) == ["self"]
    assert 'self._logs_dir = os.path.join(self._session_dir, "logs")' in inspect.getsource(node.Node)


@pytest.mark.parametrize("address", ["10.1.2.3:6379", "ray.example.org:77"])
def test_running_cluster_is_the_named_one(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert running_cluster() == address


@pytest.mark.parametrize("known", [None, "10.1.2.3:6379"], ids=["none", "ray start"])
def test_a_private_ray_of_another_run_is_not_found(monkeypatch: pytest.MonkeyPatch, known: str | None) -> None:
    """`ray start` leaves an address behind; a private Ray is a process and nothing more."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(services, "find_gcs_addresses", lambda: {"10.9.9.9:1"})
    monkeypatch.setattr(services, "find_bootstrap_address", lambda temp_dir: known)
    assert running_cluster() == known


def test_runtime_environment_of_a_job_is_in_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAME, raising=False)
    assert job_runtime_env() == {}
    for config, expected in (({}, {}), ({"runtime_env": None}, {}), ({"runtime_env": {"env_vars": {"A": "1"}}}, None)):
        monkeypatch.setenv(NAME, json.dumps(config))
        assert job_runtime_env() == (config["runtime_env"] if expected is None else expected)


ON_ONE_RAY = """
import asyncio, json, os, signal, time
import psutil, ray
from ray.exceptions import RayActorError
from openrlhf_ada.host.ray_session import started_apart
from openrlhf_ada.platforms.gpu import VISIBLE, hidden_as_slots
from openrlhf_ada.rollout.engine_restart import EngineLostError, ask_ready, read_start_id

def start():
    few = dict(num_gpus=2, num_cpus=2, include_dashboard=False, object_store_memory=1 << 27, log_to_driver=False)
    ray.init(address="local", **few)

told = {}
handler = signal.signal(signal.SIGTERM, print)
with started_apart(), hidden_as_slots(2):
    # Ray's core has a handler of its own, which is below Python's.
    start()
assert signal.getsignal(signal.SIGTERM) is print

@ray.remote(num_cpus=0)
def seen():
    return os.environ[VISIBLE]

told["seen"] = ray.get([seen.options(num_gpus=1).remote(), seen.options(num_gpus=0).remote()])
told["here"] = os.environ[VISIBLE]
worker = ray.get(ray.remote(lambda: os.getpid()).remote())
below = {child.pid: child.name() for child in psutil.Process().children(recursive=True)}
assert worker in below and {"gcs_server", "raylet"} <= set(below.values())
told["near"] = [
    name for pid, name in below.items() if os.getpgid(pid) == os.getpgid(0) or os.getsid(pid) == os.getsid(0)
]

class Engine:
    async def __init__(self):
        if ray.get_runtime_context().was_current_actor_reconstructed:
            raise RuntimeError("no room")

    async def ready(self):
        return "first"

    async def die(self):
        os._exit(1)

    async def sleep(self):
        await asyncio.sleep(600)

engine = ray.remote(max_restarts=5)(Engine).remote()
told["starts"] = [read_start_id(0, ask_ready(engine))]
other = ray.remote(num_cpus=0)(Engine).remote()
begun_s = time.monotonic()
try:
    ray.get([other.sleep.remote(), engine.die.remote()])
except RayActorError:
    told["starts"].append("died")
    told["waited_s"] = time.monotonic() - begun_s
try:
    read_start_id(0, ask_ready(engine))
except EngineLostError as error:
    told["starts"].append(str(error))
ray.shutdown()
try:
    start()
except ValueError as error:
    told["refused"] = str(error)
print("\\n" + json.dumps(told))
"""


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", ON_ONE_RAY],
        capture_output=True, text=True, timeout=240, check=False, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.rehearsal
def test_a_dead_actor_is_noticed_though_others_do_not_answer(told: dict[str, Any]) -> None:
    """So a process of the policy that is killed ends the run, before a transfer has waited for its 300 s."""
    assert told["waited_s"] < 30


@pytest.mark.slow
@pytest.mark.rehearsal
def test_an_actor_whose_constructor_fails_after_a_death_is_not_tried_again(told: dict[str, Any]) -> None:
    """Though Ray may restart it five times; the reason reaches those who call it."""
    assert told["starts"] == ["first", "died", "vLLM engine 0 did not start: RuntimeError: no room"]


@pytest.mark.slow
def test_slots_in_the_place_of_gpus_need_as_many_entries_that_hide_them(told: dict[str, Any]) -> None:
    """Ray counts what CUDA_VISIBLE_DEVICES names; CUDA reads -1 as no GPU at all."""
    assert "Attempting to start raylet" in told["refused"]
    assert told["here"] == "" and told["seen"] in (["-1", ""], ["-1", "-1,-1"])


@pytest.mark.slow
def test_rays_processes_are_in_sessions_of_their_own(told: dict[str, Any]) -> None:
    assert told["near"] == []


OWNER = """
import os, subprocess, sys
import ray
from openrlhf_ada.host.ray_session import own_token

JOIN = "import sys, ray; ray.init(address=sys.argv[1], logging_level='ERROR'); print('joined')"

def joining(**variables):
    known = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    quiet = dict(stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return subprocess.Popen([sys.executable, "-c", JOIN, address], env=known | variables, **quiet)

@ray.remote
def token():
    return os.environ["RAY_AUTH_TOKEN"]

with own_token("5" * 64):
    quiet = dict(logging_level="ERROR", log_to_driver=False, include_dashboard=False)
    ray.init(address="local", num_cpus=1, object_store_memory=1 << 28, **quiet)
    address = ray.get_runtime_context().gcs_address
    mine = os.environ["RAY_AUTH_TOKEN"]
    assert ray.get(token.remote()) == mine
    # Side by side: those that are refused try for a while.
    others = joining(), joining(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64)
    others += (joining(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=mine),)
    answers = tuple("joined" in other.communicate()[0] for other in others)
    ray.shutdown()
print(answers, "RAY_AUTH_MODE" in os.environ)
"""


@pytest.mark.slow
def test_a_private_ray_serves_its_own_processes_alone() -> None:
    """Ray is imported before. Neither without a token nor with another one is it joined."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_AUTH", "RAY_ADDRESS"))}
    done = subprocess.run([sys.executable, "-c", OWNER], capture_output=True, text=True, env=known, timeout=240)
    assert done.stdout.splitlines()[-1:] == ["(False, False, True) False"], done.stdout + done.stderr


def test_a_mode_of_the_users_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    with own_token("5" * 64):
        assert os.environ["RAY_AUTH_MODE"] == "disabled" and "RAY_AUTH_TOKEN" not in os.environ
