"""Commands that are printed begin with what the user's shell finds."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from openrlhf_ada.config import program
from openrlhf_ada.data.files import DataError
from openrlhf_ada.data.prepared import check_counts

ROOT = Path(__file__).parents[2]
INSTALLED = Path(sys.executable).parent / program.NAME


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in a folder with a space in its name, called by its path from the current folder."""
    path = tmp_path / "my env" / program.NAME
    path.parent.mkdir()
    path.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"my env/{program.NAME}", "init", "mine"])
    monkeypatch.setenv("PATH", "/usr/bin")
    return path


def test_a_program_on_the_path_is_called_by_its_name(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(own.parent))
    assert program.called() == program.called(elsewhere=True) == program.NAME


def test_a_link_on_the_path_to_it_is_enough(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    links = tmp_path / "links"
    links.mkdir()
    (links / program.NAME).symlink_to(own)
    monkeypatch.setenv("PATH", str(links))
    assert program.called() == program.NAME


def test_another_program_is_called_as_the_user_called_it(own: Path) -> None:
    assert shlex.split(program.called()) == [f"my env/{program.NAME}"]


def test_in_another_folder_the_whole_path_is_needed(own: Path) -> None:
    assert shlex.split(program.called(elsewhere=True)) == [str(own)]


def test_another_installation_on_the_path_is_not_taken_for_this_one(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other" / program.NAME
    other.parent.mkdir()
    other.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(other.parent))
    assert shlex.split(program.called()) == [f"my env/{program.NAME}"]


def test_a_notebook_names_the_program_beside_its_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ipykernel_launcher.py"])
    monkeypatch.setenv("PATH", "/usr/bin")
    assert shlex.split(program.called()) == [str(INSTALLED)]


def test_without_a_program_the_name_is_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["-m"])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert program.called() == program.NAME


def test_messages_begin_so(own: Path) -> None:
    with pytest.raises(DataError, match=f"`'my env/{program.NAME}' prepare-data`"):
        check_counts("none.parquet", flag="SOURCE")


@pytest.mark.slow
@pytest.mark.parametrize("on_path", [True, False])
def test_the_commands_of_init_can_be_typed(on_path: bool, tmp_path: Path) -> None:
    """In a shell as it is after `make setup`: with the environment activated, or without."""
    path = f"{INSTALLED.parent}:/usr/bin:/bin" if on_path else "/usr/bin:/bin"
    called = program.NAME if on_path else os.path.relpath(INSTALLED, tmp_path)

    def shell(*lines: str) -> subprocess.CompletedProcess[str]:
        command = ["sh", "-e", "-c", "\n".join(lines)]
        return subprocess.run(
            command, cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
        )

    done = shell(f"{called} init 'my run'")
    assert done.returncode == 0, done.stderr
    enter, *_, train = done.stdout.partition("Next:\n")[2].splitlines()
    assert train.endswith("train --config run.yaml")
    done = shell(enter, train.replace("train --config run.yaml", "--version"))
    assert done.returncode == 0 and done.stdout.startswith("openrlhf-ada "), done.stderr
