"""starts.json: where, when and of what each start of a run was; nothing of the environment, no secret."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import openrlhf_ada
from openrlhf_ada.reporting.jsonl import RunDamageError
from openrlhf_ada.reporting.starts import git_state, record_start


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@x"]
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "reward.py").write_text("one\n")
    git(folder, "add", "reward.py")
    git(folder, "commit", "-qm", "first")
    return folder


def test_git_state_is_commit_and_whether_known_files_changed(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    (repository / "runs").mkdir()
    (repository / "runs" / "new.txt").write_text("not known to git")
    assert git_state(repository / "runs") == {"commit": commit, "dirty": False}
    (repository / "reward.py").write_text("two\n")
    assert git_state(repository) == {"commit": commit, "dirty": True}


def test_outside_of_git_there_is_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert git_state(tmp_path) is None, "a repository without a commit"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(Path(__file__).parent) is None


def test_every_start_has_its_entry(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    monkeypatch.setenv("HF_TOKEN", "canary-of-the-environment")
    command = ["openrlhf-ada", "train", "--logger.wandb.key", "canary", "--data.input_key", "my question"]
    record_start(tmp_path / "run", command, ["NVIDIA H100"])
    record_start(tmp_path / "run", ["openrlhf-ada", "train", "--ckpt.load_enable"], [])
    text = (tmp_path / "run" / "starts.json").read_text()
    assert "canary" not in text
    first, second = json.loads(text)
    assert first["command"] == "openrlhf-ada train --logger.wandb.key '<removed>' --data.input_key 'my question'"
    assert second["command"].endswith("--ckpt.load_enable")
    assert first["versions"]["openrlhf-ada"] == openrlhf_ada.__version__
    assert {"python", "openrlhf", "torch", "ray", "deepspeed"} <= first["versions"].keys()
    assert first["git"] == {"commit": git(repository, "rev-parse", "HEAD"), "dirty": False}
    assert (first["host"]["gpus"], second["host"]["gpus"]) == (["NVIDIA H100"], [])
    assert first["host"]["cpus"] >= 1 and first["host"]["memory_gib"] > 0


def test_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "starts.json").write_text("{")
    with pytest.raises(RunDamageError, match=r"starts.json: not JSON"):
        record_start(tmp_path, ["x"], [])
