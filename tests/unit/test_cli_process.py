"""What a user meets at the shell when the command line is wrong: exit status 2, one line, seconds, nothing started."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from openrlhf_ada.platforms import without_gpu

pytestmark = pytest.mark.slow

Flags = dict[str, str | None]
ArgvWith = Callable[[Flags], list[str]]

HEAVY = ("ray", "vllm", "torch", "transformers", "openrlhf", "deepspeed", "datasets")
LIMIT_S = 5.0
"""Of processor time, since a busy machine makes everything slow."""


def cpu_seconds_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.fixture
def train(tmp_path: Path) -> Callable[[list[str]], subprocess.CompletedProcess]:
    """Run the command line where importing anything heavy fails: what it does, it does without Ray, torch or vLLM.

    `openrlhf` itself stays: it is looked up, not imported.
    """
    for name in HEAVY:
        if name != "openrlhf":
            (tmp_path / "blocked" / name).mkdir(parents=True)
            (tmp_path / "blocked" / name / "__init__.py").write_text("raise RuntimeError('imported: ' + __name__)\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "blocked")}

    def run(argv: list[str]) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "openrlhf_ada.cli.train_ppo_ray", *argv]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, env=environment, cwd=tmp_path
        )

    return run


CASES: list[tuple[str, Flags, list[str], list[str]]] = [
    # id, changed flags, extra arguments, what the line must say
    ("unknown mode", {"--ada_mode": "foo"}, [], ["--ada_mode is 'foo'", "off, seq, est", "Try --ada_mode est"]),
    ("cap below n", {"--ada_max_samples": "3"}, [], ["--ada_max_samples is 3", "at least 4", "--ada_max_samples 16"]),
    ("dynamic filtering", {}, ["--algo.dynamic_filtering_enable"], ["--algo.dynamic_filtering_enable is True"]),
    ("data missing", {"--data.prompt_dataset": "./no.jsonl"}, [], ["--data.prompt_dataset", "no.jsonl", "not exist"]),
    ("model missing", {"--actor.model_name_or_path": "./no"}, [], ["--actor.model_name_or_path is './no'", "folder"]),
    ("reward missing", {"--reward.remote_url": "no.py"}, [], ["--reward.remote_url is 'no.py'", "no such file"]),
    ("typo in our flag", {}, ["--ada_mod", "seq"], ["unrecognized arguments: --ada_mod seq"]),
    ("typo in OpenRLHF's flag", {}, ["--rollout.batchsize", "8"], ["unrecognized arguments: --rollout.batchsize 8"]),
    ("our flag abbreviated", {}, ["--ada_max", "8"], ["unrecognized arguments: --ada_max 8"]),
    ("no value", {}, ["--ada_wave"], ["--ada_wave", "expected one argument"]),
    ("no such method", {"--ada_method": "grpo2"}, [], ["--ada_method is 'grpo2'", "reinforce-ada-est, "]),
    (
        "OpenRLHF's rule",
        {"--ada_mode": "off"},
        ["--train.partial_rollout_enable"],
        ["--train.partial_rollout_enable requires"],
    ),
]


@pytest.mark.parametrize(("changes", "extra", "says"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_ends_at_once_with_one_line(
    train: Callable[[list[str]], subprocess.CompletedProcess],
    argv_with: ArgvWith,
    tmp_path: Path,
    changes: Flags,
    extra: list[str],
    says: list[str],
) -> None:
    before = cpu_seconds_of_children()
    done = train([*argv_with(changes), *extra])
    assert cpu_seconds_of_children() - before < LIMIT_S
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("openrlhf-ada train: error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    for part in says:
        assert part in done.stderr
    assert not (tmp_path / "run").exists(), "nothing was written"


def test_help_shows_both_groups_of_flags(train: Callable[[list[str]], subprocess.CompletedProcess]) -> None:
    done = train(["--help"])
    assert (done.returncode, done.stderr) == (0, "")
    for part in ("usage: openrlhf-ada train", "Ada-Seq", "--ada_mode", "--rollout.batch_size"):
        assert part in done.stdout


def test_gpu_only_flags_are_refused_before_ray_starts(argv_with: ArgvWith, tmp_path: Path) -> None:
    """OpenRLHF's default attention needs flash-attn. Only torch knows whether there is a GPU, so it is imported."""
    if not without_gpu.is_needed():
        pytest.skip("this machine has a GPU")
    command = [sys.executable, "-m", "openrlhf_ada.cli.train_ppo_ray", *argv_with({"--vllm.sync_backend": "gloo"})]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=environment, cwd=tmp_path, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "--ds.attn_implementation is 'flash_attention_2': this machine has no GPU" in done.stderr
    assert "Traceback" not in done.stderr


def test_valid_command_line_passes_checks_before_ray(
    train: Callable[[list[str]], subprocess.CompletedProcess], argv_with: ArgvWith
) -> None:
    """The proof that the cases above ended for their own reason: without a mistake, what is heavy is imported next."""
    done = train(argv_with({}))
    assert done.returncode == 1
    assert "RuntimeError: imported: " in done.stderr
