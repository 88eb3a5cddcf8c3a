"""What is released: an archive and a wheel that are complete, and a core that needs numpy alone."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
import zipfile
from email import message_from_bytes
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import yaml

import openrlhf_ada
from openrlhf_ada.cli.verbs import VERBS

ROOT = Path(__file__).parents[2]

LIGHT = """
import sys
import openrlhf_ada.simulation.coin_flips, openrlhf_ada.core.policies, openrlhf_ada.core.scheduling
import openrlhf_ada.config.settings, openrlhf_ada.config.method_rules, openrlhf_ada.config.presets
ours = {name.split(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print(*sorted(name for name in ours if not name.startswith("_")))
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy is built: setuptools leaves folders where it works."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in listed.decode().split("\0"):
        if name.startswith(("openrlhf_ada/", "setup.py", "pyproject.toml", "README.md", "LICENSE")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return out


@pytest.mark.slow
def test_wheel_has_exactly_the_package(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = message_from_bytes(archive.read(f"openrlhf_ada-{openrlhf_ada.__version__}.dist-info/METADATA"))
        entry_points = archive.read(f"openrlhf_ada-{openrlhf_ada.__version__}.dist-info/entry_points.txt").decode()
    package = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "openrlhf_ada").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if ".dist-info/" not in name} == package
    assert "openrlhf_ada/py.typed" in names, "type checkers read its annotations"
    assert metadata["Version"] == openrlhf_ada.__version__
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "openrlhf-ada = openrlhf_ada.cli.main:main" in entry_points
    assert "[vllm.general_plugins]" in entry_points


@pytest.mark.slow
def test_the_archive_builds_the_wheel(dist: Path) -> None:
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        names = {name.split("/", 1)[-1] for name in files.getnames()}
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE", "openrlhf_ada/py.typed"} <= names


@pytest.fixture(scope="module")
def bare(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with the wheel and numpy, and nothing else."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, with_pip=False)
    site = home / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    numpy = Path(np.__file__).parent
    for name in ("numpy", "numpy.libs"):
        if (numpy.parent / name).exists():
            (site / name).symlink_to(numpy.parent / name)
    return home / "bin" / "python"


def run(python: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, *arguments], capture_output=True, text=True, check=False, cwd=folder)


@pytest.mark.slow
def test_the_core_runs_where_there_is_numpy_alone(bare: Path, tmp_path: Path) -> None:
    done = run(bare, tmp_path, "-c", LIGHT)
    assert done.returncode == 0, done.stderr
    # The second is a module that numpy's compiled parts make; Debian's Python has a sitecustomize.
    assert set(done.stdout.split()) - {"sitecustomize"} == {"numpy", "cython_runtime", "openrlhf_ada"}
    usage = run(bare, tmp_path, "-m", "openrlhf_ada.cli.main")
    assert usage.returncode == 2 and "usage: openrlhf-ada <command>" in usage.stdout, "the command needs no more"


RUN = ["--actor.model_name_or_path", "m", "--ada_run_dir", "/nowhere", "--ckpt.path", "/nowhere/ckpt"]

COMMANDS = {
    "train": ["train"],
    "doctor": ["doctor"],
    "init": ["init", "mine"],
    "demo": ["demo", "--toy", "--run-dir", "d"],
    "demo-model": ["demo-model", "--toy", "m"],
    "demo-data": ["demo-data", "--toy", "d"],
    "prepare-data": ["prepare-data", "p.jsonl", "--model", "m", "--out", "o"],
    "eval": ["eval", "--model", "m", "--benchmark", "math500", "--out", "o"],
    "submit": ["submit", "--address", "http://127.0.0.1:1", "train", *RUN],
    "report": ["report", "r"],
    "arena": ["arena", "--quick", "--out", "a"],
    "simulate": ["simulate", "--prompts", "16"],
}


def test_every_command_is_tried_without_its_packages() -> None:
    assert set(COMMANDS) == set(VERBS)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_a_bare_installation_says_what_to_install(bare: Path, tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "config.json").write_text("{}")
    (tmp_path / "r" / "metrics.jsonl").write_text('{"step": 1}\n')
    done = run(bare, tmp_path, "-m", "openrlhf_ada.cli.main", *arguments)
    said = done.stdout + done.stderr
    assert "Traceback" not in said, said
    if arguments[0] == "demo-data":
        assert done.returncode == 0, "numpy is enough"
    else:
        # The doctor has looked at everything, and found that.
        status = 1 if arguments[0] == "doctor" else 2
        assert done.returncode == status and "openrlhf-ada[gpu]" in said and "make setup" in said, said


def test_one_version_everywhere() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(cited), "what the format requires"
    assert cited["version"] == openrlhf_ada.__version__ == version("openrlhf-ada")
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    released = headings[1:] if headings[0] == "## Unreleased" else headings
    assert released[0] == f"## {openrlhf_ada.__version__} ({cited['date-released']})"
