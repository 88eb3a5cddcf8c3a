"""`openrlhf-ada doctor`: what it looks at, what it says of a training's flags, its exit status and its JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from openrlhf_ada.cli import doctor, train_ppo_ray
from openrlhf_ada.cli.doctor import input_findings
from openrlhf_ada.platforms import machine_check, without_gpu
from openrlhf_ada.platforms.machine_check import ERROR, OK, WARNING, Finding
from openrlhf_ada.trainer import training_data

Argv = Callable[[dict[str, str | None]], list[str]]


CPU: dict[str, str | None] = {"--ds.attn_implementation": "sdpa", "--vllm.sync_backend": "gloo"}


@pytest.fixture(autouse=True)
def tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_data, "_tokenizer", lambda args: lambda text, add_special_tokens: {"input_ids": text})


def look(words: Sequence[str]) -> list[Finding]:
    return list(input_findings(words))


# -- flags ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_whole_training_is_checked_as_at_its_start(
    argv_with: Argv, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path_factory.mktemp("here")
    monkeypatch.chdir(here)
    *notes, last = look(argv_with(CPU))
    assert last.level == OK and "mode seq" in last.what and "GPU slots" in last.what
    assert all(finding.level == OK for finding in notes)
    assert not list(here.iterdir()), "nothing is written"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"--rollout.batch_size": "-3"}, "--rollout.batch_size"),
        ({"--actor.model_name_or_path": "/nowhere"}, "/nowhere"),
        ({"--data.prompt_dataset": "none.jsonl"}, "--data.prompt_dataset"),
        ({"--data.prompt_dataset": None}, "--data.prompt_dataset"),
        ({"--reward.remote_url": "mth"}, "--reward.remote_url"),
    ],
)
def test_what_a_training_refuses_is_an_error(argv_with: Argv, changes: dict[str, str | None], named: str) -> None:
    (finding,) = look(argv_with(changes))
    assert finding.level == ERROR and named in finding.what


def test_a_folder_without_weights_is_no_model(argv_with: Argv, valid_flags: dict[str, str]) -> None:
    (Path(valid_flags["--actor.model_name_or_path"]) / "model.safetensors").unlink()
    (finding,) = look(argv_with(CPU))
    assert finding.level == ERROR and "--actor.model_name_or_path" in finding.what


@pytest.mark.slow
def test_a_reward_without_scores_says_why(argv_with: Argv, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("def grade(response, label):\n    raise RuntimeError('no such table')\n")
    *_, finding = look(argv_with(CPU | {"--reward.remote_url": f"{file}:grade", "--data.label_key": "label"}))
    assert finding.level == ERROR and "no such table" in finding.what


@pytest.mark.slow
def test_rows_that_contradict_each_other_are_a_warning(argv_with: Argv, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    pairs = [("1+2=", "3"), ("1+2=", "4"), ("2+2=", "4"), ("2+2=", "04")]
    file.write_text("".join(json.dumps({"input": q, "label": label}) + "\n" for q, label in pairs))
    changes = {"--data.prompt_dataset": str(file), "--data.label_key": "label", "--reward.remote_url": "arithmetic"}
    warnings = [finding.what for finding in look(argv_with(CPU | changes)) if finding.level == WARNING]
    assert any("2 of 4 rows" in what and "line 1" in what for what in warnings)


@pytest.mark.slow
def test_a_run_that_needs_more_gpus_is_told(argv_with: Argv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_ppo_ray, "check_surroundings", lambda args: None)
    monkeypatch.setattr(without_gpu, "is_needed", lambda: False)
    monkeypatch.setattr("openrlhf_ada.platforms.session.cluster_to_join", lambda: None)
    for gpus, level in ((1, ERROR), (64, OK)):
        monkeypatch.setattr(doctor, "usable_gpus", lambda gpus=gpus: gpus)
        monkeypatch.setattr(doctor.os, "sched_getaffinity", lambda pid: set(range(64)))
        finding = look(argv_with(CPU | {"--vllm.num_engines": "2"}))[-1]
        assert finding.level == level and "GPU" in finding.what


def test_a_config_is_a_trainings(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("data:\n  prompt_datset: x\n")
    (finding,) = look(["--config", str(config)])
    assert finding.level == ERROR and "prompt_dataset" in finding.what


# -- the command ------------------------------------------------------------------------------------------------------


def _with(monkeypatch: pytest.MonkeyPatch, *findings: Finding, fails: BaseException | None = None) -> None:
    def check() -> Any:
        yield from findings
        if fails is not None:
            raise fails

    for name in ("machine_findings", "gpu_findings", "package_findings", "path_findings"):
        monkeypatch.setattr(machine_check, name, tuple)
    monkeypatch.setattr(machine_check, "ray_findings", check)


SEEN = (Finding("memory", OK, "64 GiB"), Finding("disk", WARNING, "little room", "Free some"))
BROKEN = Finding("model", ERROR, "there is none", "Name one")


@pytest.mark.parametrize(("findings", "status"), [(SEEN, 0), ((*SEEN, BROKEN), 1)])
def test_errors_alone_count(
    findings: Sequence[Finding],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _with(monkeypatch, *findings)
    assert doctor.main([]) == status
    said = capsys.readouterr().out
    assert "-> Free some" in said and said.rstrip().endswith("1 warning)")
    assert ("a training cannot start (1 error, 1 warning)" in said) == bool(status)
    assert doctor.main(["--json"]) == status
    record = json.loads(capsys.readouterr().out)
    assert (record["error"], record["warning"]) == (status, 1)
    assert record["findings"][1] == {"check": "disk", "level": "warning", "what": "little room", "remedy": "Free some"}
    assert "openrlhf-ada" in record["versions"]


def test_what_needs_a_missing_package_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _with(monkeypatch, fails=ModuleNotFoundError("No module named 'ray'", name="ray"))
    assert doctor.main([]) == 0
    assert "not looked at, since ray is not installed" in capsys.readouterr().out


BARE = """
import importlib.abc, importlib.metadata, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
version = importlib.metadata.version

def only_ours(name):
    if name not in ("openrlhf-ada", "numpy"):
        raise importlib.metadata.PackageNotFoundError(name)
    return version(name)

importlib.metadata.version = only_ours
sys.argv = ["openrlhf-ada", "doctor", *{words!r}]
from openrlhf_ada.cli.main import main
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["--actor.model_name_or_path", "x"], ["--config", "run.yaml"]])
def test_a_bare_installation_is_told_what_it_lacks(words: list[str]) -> None:
    """Only numpy is there."""
    from openrlhf_ada.config.installed import MODULES

    script = BARE.format(modules=sorted(MODULES), words=words)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "not installed, and a training needs them: openrlhf" in done.stdout
    assert "requirements/setup.sh --gpu" in done.stdout
