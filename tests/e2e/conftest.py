"""The real stack with a toy model: built once per checkout, kept in .cache."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from shared_start import FORKS_VARIABLE, OF_SHARED_RAY, one_ray, python, runs_are_forked

from openrlhf_ada.demo.toy import build_toy_model, write_toy_data
from openrlhf_ada.platforms import without_gpu
from openrlhf_ada.platforms.without_gpu import ENGINES_VARIABLE, THREADS_VARIABLE
from openrlhf_ada.reward import arithmetic

ROOT = Path(__file__).parents[2]
LIMIT_S = 400
"""A run of the toy takes well under a minute; this ends one that hangs."""


@dataclass(frozen=True)
class Toy:
    """Paths of the toy model and its prompts."""

    model: Path
    train: Path
    heldout: Path


@pytest.fixture(scope="session", autouse=True)
def common_start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """On a CPU, these runs fork their processes from one server, and join one Ray where no test says otherwise.

    Scripts find this installation's programs.
    """
    with pytest.MonkeyPatch.context() as patch:
        # Before the server starts: what has another PATH is not forked.
        patch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
        patch.setenv("PATH", str(forked_program(tmp_path_factory.mktemp("bin"))), prepend=os.pathsep)
        for name, value in threads().items():
            patch.setenv(name, value)
        with own_fork_server(), one_ray() if without_gpu.is_needed() else nullcontext():
            yield


def forked_program(folder: Path, interpreter: str = "") -> Path:
    """A folder with an `openrlhf-ada` for scripts, which is forked as well. `interpreter`: by default the server's."""
    program = folder / "openrlhf-ada"
    forked = shlex.quote(interpreter) if interpreter else f'"${{{FORKS_VARIABLE}:-{shlex.quote(sys.executable)}}}"'
    program.write_text(f'#!/bin/sh\nexec {forked} -m openrlhf_ada.cli.main "$@"\n')
    program.chmod(0o755)
    return folder


def threads() -> dict[str, str]:
    """This process's share of the cores: threads of runs side by side would wait for those of each other."""
    tests = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    each = max(len(os.sched_getaffinity(0)) // tests, 1)
    return {THREADS_VARIABLE: str(each), ENGINES_VARIABLE: str(tests)} if tests > 1 else {}


@pytest.fixture
def own_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of this test start and end a Ray of their own, as those of users do."""
    for name in OF_SHARED_RAY:
        monkeypatch.delenv(name, raising=False)


@contextmanager
def own_fork_server(*pythonpath: Path) -> Iterator[None]:
    """Runs within it fork their processes from a server of their own, which has this PYTHONPATH."""
    with pytest.MonkeyPatch.context() as patch:
        if pythonpath:
            patch.setenv("PYTHONPATH", os.pathsep.join(map(str, pythonpath)))
        with runs_are_forked() if without_gpu.is_needed() else nullcontext():
            yield


@pytest.fixture(scope="session")
def toy() -> Toy:
    return write_toy(ROOT / ".cache")


def write_toy(cache: Path) -> Toy:
    """What is not there yet."""
    data = cache / "toy-test-data"
    cache.mkdir(exist_ok=True)
    # Tests run in several processes.
    with FileLock(cache / "toy.lock"):
        if not data.exists():
            write_toy_data(data, num_train=192, num_heldout=32, seed=0)
        return Toy(build_toy_model(cache / "toy-model"), data / "train.jsonl", data / "heldout.jsonl")


def toy_flags(toy: Toy, run_dir: Path, **changes: Any) -> list[str]:
    """A command line for two steps of 16 prompts x 4; `changes` replaces flags by name ('.' as '__'), None drops one.

    A value of True is a flag without a value.
    """
    flags: dict[str, Any] = {
        "ada_run_dir": run_dir,
        "actor.model_name_or_path": toy.model,
        "actor.num_gpus_per_node": 1,
        "ref.num_gpus_per_node": 1,
        "critic.num_gpus_per_node": 1,
        "actor.adam.lr": 3e-4,
        "vllm.num_engines": 1,
        "vllm.sync_backend": "gloo",
        "ds.attn_implementation": "sdpa",
        "algo.advantage.estimator": "dr_grpo",
        "algo.kl.init_coef": 0,
        "data.prompt_dataset": toy.train,
        "data.max_samples": 32,
        "data.input_key": "input",
        "data.label_key": "label",
        "data.max_len": 32,
        "reward.remote_url": arithmetic.__file__,
        "rollout.batch_size": 16,
        "rollout.n_samples_per_prompt": 4,
        "rollout.micro_batch_size": 32,
        "rollout.max_new_tokens": 4,
        "train.batch_size": 64,
        "train.micro_batch_size": 32,
        "ckpt.path": run_dir / "ckpt",
        "ckpt.output_dir": run_dir / "model",
    }
    flags |= {name.replace("__", "."): value for name, value in changes.items()}
    argv: list[str] = []
    for name, value in flags.items():
        if value is not None:
            argv += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return argv


def train(
    argv: list[str], module: str = "openrlhf_ada.cli.train_ppo_ray", limit_s: float = LIMIT_S
) -> subprocess.CompletedProcess[str]:
    """Run to the end in a process of its own; fails with the output where the run fails."""
    program, environment = forked_python()
    done = subprocess.run(
        [program, "-m", module, *argv],
        capture_output=True,
        text=True,
        timeout=limit_s,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    return done


def forked_job_python(folder: Path) -> str:
    """A program that runs Python for a job on a cluster: with a fork server, driver and workers are forked too."""
    program, environment = forked_python()
    if program == sys.executable:
        return program
    # By which the server would refuse, if they differed.
    same = " ".join(f"{name}={shlex.quote(environment.get(name, ''))}" for name in ("PATH", "PYTHONPATH"))
    forked = folder / "python"
    forked.write_text(
        "#!/bin/sh\n"
        'export PROGRAM_OF_JOB="$0" PATH_OF_JOB="$PYTHONPATH" RAY_RUNTIME_ENV_HOOK=forked_job.with_same_python\n'
        f'export {same}\n[ "$PYTHONPATH" ] || unset PYTHONPATH\n'
        f'exec {shlex.quote(program)} {shlex.quote(str(ROOT / "tests/support/forked_job.py"))} "$@"\n'
    )
    forked.chmod(0o755)
    return str(forked)


def forked_python() -> tuple[str, dict[str, str]]:
    """A program that runs Python with everything imported, and its environment; a plain Python without the server."""
    return python(), dict(os.environ)


def run_script(script: str, folder: Path, *args: str) -> dict[str, Any]:
    """Run a Python program in a process of its own, kept in `folder`; the JSON object in its last line of output."""
    path = folder / "script.py"
    path.write_text(script)
    program, environment = forked_python()
    done = subprocess.run(
        [program, str(path), *args],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=ROOT,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps_of(run_dir: Path) -> list[dict[str, Any]]:
    return [row for row in read_jsonl(run_dir / "metrics.jsonl") if "eval/accuracy" not in row]


def pools_of_step(run_dir: Path, step: int) -> dict[int, list[float]]:
    """The rewards of every rollout drawn, by prompt."""
    pools: dict[int, list[float]] = {}
    for sample in read_jsonl(run_dir / "samples.jsonl"):
        if sample["step"] == step:
            pools.setdefault(sample["key"], []).append(sample["reward"])
    return pools


def check_ledger(run_dir: Path, *, batch_size: int, group_size: int, cap: int) -> None:
    """Exact bookkeeping: the figures of each step, recomputed from every recorded rollout."""
    samples = read_jsonl(run_dir / "samples.jsonl")
    for row in steps_of(run_dir):
        drawn = [s for s in samples if s["step"] == row["step"]]
        kept = [s for s in drawn if s["kept"]]
        assert row["ada/drawn"] == row["ada/kept"] + row["ada/unused"] + row["ada/aborted"]
        assert row["ada/drawn"] - row["ada/aborted"] == len(drawn)
        assert row["ada/kept"] == len(kept) == batch_size * group_size
        assert row["ada/drawn_tokens"] - row["ada/aborted_tokens"] == sum(s["tokens"] for s in drawn)
        assert row["ada/kept_tokens"] == sum(s["tokens"] for s in kept)
        by_prompt: dict[int, list[dict[str, Any]]] = {}
        for sample in drawn:
            by_prompt.setdefault(sample["key"], []).append(sample)
        assert len(by_prompt) == batch_size
        for group in by_prompt.values():
            assert [s["index"] for s in group] == list(range(len(group)))
            assert group_size <= len(group) <= cap
            assert sum(s["kept"] for s in group) == group_size
