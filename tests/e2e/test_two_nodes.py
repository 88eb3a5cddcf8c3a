"""Jobs on a cluster of three raylets: a head without GPUs, and two nodes of which one gets the policy, one the engine.

Whatever the end of a job, none of its processes is left, and the cluster takes the next one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from clusters import RAY, Cluster, cluster, wait_until
from conftest import (
    LIMIT_S,
    ROOT,
    Toy,
    check_ledger,
    forked_python,
    pools_of_step,
    read_jsonl,
    steps_of,
    toy_flags,
)
from example_runs import TOY_RATES, TOY_SIZES

pytestmark = pytest.mark.e2e

SEQ = {"ada_mode": "seq", "ada_wave": 4, "ada_max_samples": 16}
LONG = SEQ | {"data__max_samples": 192, "train__num_episodes": 40}

REWARDS = """
import os
from my_helper import right

def reward_func(queries, prompts, labels):
    assert os.environ["MY_SETTING"] == "from_here"
    return right(queries, prompts, labels)
"""

STOPS = """
import pathlib, time
from openrlhf_ada.reward import arithmetic

STOP, STOPPED = pathlib.Path({stop!r}), pathlib.Path({stopped!r})

def reward_func(queries, prompts, labels):
    while STOP.exists():
        STOPPED.touch()
        time.sleep(0.1)
    return arithmetic.reward_func(queries, prompts, labels)
"""
"""Stops in the middle of a step while there is a file."""

TRAIN = "openrlhf_ada.cli.train_ppo_ray"

HELPER = "from openrlhf_ada.reward.arithmetic import reward_func as right\n"


@pytest.fixture(scope="module")
def one_node() -> Iterator[Cluster]:
    with cluster(gpus=0, dashboard=True) as started:
        started.add_node(gpus=1, cpus=4)
        yield started


@dataclass(frozen=True)
class Refusal:
    done: subprocess.CompletedProcess[str]
    run: Path


@pytest.fixture(scope="module")
def refusal(one_node: Cluster, toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Refusal:
    """Of a run that needs two GPUs, while the cluster has one."""
    run = tmp_path_factory.mktemp("refused") / "run"
    flags = toy_flags(toy, run, ada_mode="seq", ada_cluster_wait=2)
    program, environment = forked_python()
    done = subprocess.run(
        [program, "-m", TRAIN, *flags],
        env=environment | {"RAY_ADDRESS": one_node.address}, cwd=ROOT, capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    return Refusal(done, run)


@pytest.fixture(scope="module")
def nodes(one_node: Cluster, refusal: Refusal) -> Cluster:
    one_node.add_node(gpus=1, cpus=4)
    return one_node


def submit(nodes: Cluster, flags: list[str], *options: str, cwd: Path = ROOT) -> subprocess.Popen[str]:
    command = [RAY, "job", "submit", "--address", nodes.dashboard, *options, "--", sys.executable, "-m", TRAIN, *flags]
    return start([str(part) for part in command], cwd)


def start(command: list[str], cwd: Path, **variables: str) -> subprocess.Popen[str]:
    """It is ended after LIMIT_S, so that a test that waits for a line of it ends as well."""
    job = subprocess.Popen(
        command,
        cwd=cwd,
        env=os.environ | variables,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # As from a terminal: a test run in the background of a shell passes on that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    end = threading.Timer(LIMIT_S, job.terminate)
    end.daemon = True
    end.start()
    return job


def read_to(line_start: str, job: subprocess.Popen[str]) -> None:
    assert job.stdout is not None
    seen: list[str] = []
    for line in job.stdout:
        seen.append(line)
        if line.startswith(line_start):
            return
    told = "".join(seen)
    raise AssertionError(f"{told[:4000]}\n...\n{told[-4000:]}")


def rest(job: subprocess.Popen[str]) -> str:
    """What it says until its end. (`communicate` would lose lines that came together with those that were read.)"""
    assert job.stdout is not None
    told = job.stdout.read()
    job.wait(timeout=60)
    return told


def nothing_is_left(nodes: Cluster) -> None:
    wait_until(lambda: not nodes.workers_of_runs(), f"processes are left: {nodes.workers_of_runs()}", 60)


def places(nodes: Cluster) -> dict[str, str]:
    """Node by class of actor."""
    return {actor["class_name"]: actor["node_id"] for actor in nodes.living_actors()}


def test_cluster_with_too_few_slots_is_refused(refusal: Refusal) -> None:
    """OpenRLHF would wait for its placement groups for ever."""
    told = refusal.done.stderr
    assert refusal.done.returncode == 2, told[-4000:]
    assert "waiting for nodes to join the Ray cluster: GPU 2 needed, 1 present" in told
    assert "error: the Ray cluster is too small: GPU 2 needed, 1 present" in told
    assert "1 policy + 1 vLLM engine" in told
    assert not (refusal.run / "metrics.jsonl").exists()


def test_files_variables_log_and_status_reach_the_job(nodes: Cluster, toy: Toy, tmp_path: Path) -> None:
    """By train_multinode.sh. Reward file and helper exist in the folder of submission only; both nodes work."""
    here, run = tmp_path / "here", tmp_path / "run"
    here.mkdir()
    (here / "rewards.py").write_text(REWARDS)
    (here / "my_helper.py").write_text(HELPER)
    (here / "prompts.jsonl").write_text(toy.train.read_text())
    variables = {
        "SUBMIT": nodes.dashboard,
        "SUBMIT_FLAGS": '--working-dir . --runtime-env-json {"env_vars":{"MY_SETTING":"from_here"}}',
        "PATH": f"{Path(RAY).parent}:{os.environ['PATH']}",
        "DEVICE": "cpu",
        **TOY_SIZES,
        # So many that it still runs when the first lines of its log have come.
        "STEPS": "12",
        "MODEL": str(toy.model),
        "DATA": "prompts.jsonl",
        "EVAL_DATA": str(toy.heldout),
        "REWARD": "rewards.py",
        "RUN_DIR": str(run),
    }
    multinode = ROOT / "examples" / "scripts" / "train_multinode.sh"
    script = [str(multinode), *TOY_RATES, "--algo.advantage.estimator", "rloo"]
    job = start(script, here, **variables)
    # Lines of a job's log come late on a busy machine; its record does not.
    record = run / "metrics.jsonl"
    while not (record.exists() and record.stat().st_size):
        assert job.poll() is None, rest(job)
        time.sleep(0.1)
    assert nodes.workers_of_runs()
    where = places(nodes)
    assert where["PolicyModelActor"] != where["RolloutRayActor"]
    assert where["PPOTrainer"] == where["_QueueActor"] == where["JobSupervisor"]
    told = rest(job)
    assert job.returncode == 0, told
    assert "step 12/12" in told
    check_ledger(run, batch_size=16, group_size=4, cap=32)
    check_loo_baseline(run)
    nothing_is_left(nodes)


def check_loo_baseline(run: Path) -> None:
    """`rloo` takes the other samples of the whole pool for its baseline."""
    pools = pools_of_step(run, 1)
    for sample in read_jsonl(run / "samples.jsonl"):
        if sample["step"] == 1 and sample["kept"]:
            others = sum(pools[sample["key"]]) - sample["reward"]
            expected = sample["reward"] - others / (len(pools[sample["key"]]) - 1)
            assert sample["coefficient"] == pytest.approx(expected)


@pytest.mark.long
def test_a_job_that_is_refused_says_why(nodes: Cluster, toy: Toy, tmp_path: Path) -> None:
    job = submit(nodes, toy_flags(toy, tmp_path / "run", data__prompt_dataset="/only/elsewhere.jsonl"))
    told = rest(job)
    assert job.returncode == 1 and "--data.prompt_dataset" in told and "/only/elsewhere.jsonl" in told, told


@pytest.mark.long
def test_a_stopped_job_leaves_nothing(nodes: Cluster, toy: Toy, tmp_path: Path) -> None:
    job = submit(nodes, toy_flags(toy, tmp_path / "run", **LONG), "--submission-id", tmp_path.name)
    read_to("loading", job)
    stop = [RAY, "job", "stop", "--address", nodes.dashboard, tmp_path.name]
    subprocess.run(stop, check=True, capture_output=True, timeout=60)
    assert "was stopped" in rest(job)
    nothing_is_left(nodes)


@pytest.mark.long
def test_lost_engine_node_is_awaited_lost_policy_ends_run(nodes: Cluster, toy: Toy, tmp_path: Path) -> None:
    """By a driver on a node."""
    run, rewards, stop, stopped = (tmp_path / name for name in ("run", "rewards.py", "stop", "stopped"))
    rewards.write_text(STOPS.format(stop=str(stop), stopped=str(stopped)))
    flags = toy_flags(toy, run, **LONG, reward__remote_url=rewards)
    driver = [sys.executable, "-m", TRAIN, *flags]
    job = start(driver, ROOT, RAY_ADDRESS=nodes.address)
    read_to("step", job)
    actors = {actor["class_name"]: actor for actor in nodes.living_actors()}
    stop.touch()
    wait_until(stopped.exists, "no rollout was judged")
    nodes.lose(nodes.node_of(actors["RolloutRayActor"]))
    stop.unlink()
    read_to("vLLM engine 0 died", job)
    nodes.add_node(gpus=1, cpus=4)
    read_to("vLLM engine 0 is back", job)
    read_to("step", job)
    check_ledger(run, batch_size=16, group_size=4, cap=16)
    assert sum(row["ada/lost"] for row in steps_of(run)) > 0
    nodes.lose(nodes.node_of(actors["PolicyModelActor"]))
    told = rest(job)
    assert job.returncode == 1, told[-2000:]
    assert "the run failed" in told
    nothing_is_left(nodes)
