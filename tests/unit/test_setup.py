"""The set-up on a machine without a GPU: torch's CPU build, whatever pip's index has. Stand-in wheels, no network."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pip
import pytest
import yaml
from dockerfiles import pins

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "requirements" / "install_torch_cpu.sh"
PINNED = pins(ROOT / "requirements" / "cpu.txt")["torch"]
CUDA = PINNED.removesuffix("+cpu")
UV = next(line for line in SCRIPT.read_text().splitlines() if line.startswith("uv=")).partition("==")[2]
SITE = Path("lib") / f"python3.{sys.version_info.minor}" / "site-packages"

# Stands for uv: says how it was called, and has its own folder of wheels as uv has PyTorch's index.
UV_CODE = """
import os, pathlib, subprocess, sys

def main():
    home = pathlib.Path(os.environ["STAND_INS"])
    (home / "uv.called").write_text("\\n".join(sys.argv[1:]))
    found = ["--no-index", "--find-links", str(home / "pytorch")]
    sys.exit(subprocess.call([sys.executable, "-m", "pip", "install", "-q", "--no-deps", *found, sys.argv[-1]]))
"""


def wheel(folder: Path, name: str, version: str, files: Mapping[str, str]) -> Path:
    """Writes a wheel of these files (path: text) and returns where it is."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    texts = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in texts.items():
            archive.writestr(file, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{file},,\n" for file in [*texts, f"{info}/RECORD"]))
    return path


def torch_wheel(folder: Path, version: str, origin: str = "") -> Path:
    own = "cpu.py" if version.endswith("+cpu") else "cuda.py"
    return wheel(folder, "torch", version, {"torch/__init__.py": f"origin = {origin!r}\n", f"torch/{own}": ""})


def uv_wheel(folder: Path) -> Path:
    points = "[console_scripts]\nuv = uv_stand_in:main\n"
    return wheel(folder, "uv", UV, {"uv_stand_in.py": UV_CODE, f"uv-{UV}.dist-info/entry_points.txt": points})


def index(folder: Path, *wheels: Path) -> str:
    """Address of a package index with these wheels."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in wheels:
        page = folder / path.name.split("-")[0] / "index.html"
        page.parent.mkdir(exist_ok=True)
        with page.open("a") as html:
            html.write(f'<a href="{path.as_uri()}">{path.name}</a>\n')
    return folder.as_uri()


@dataclass(frozen=True)
class Machine:
    home: Path

    @property
    def venv(self) -> Path:
        return self.home / "venv"

    @property
    def site(self) -> Path:
        return self.venv / SITE

    def environ(self, **variables: str) -> dict[str, str]:
        """This machine's, without its own configuration of pip."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "TORCH_"))}
        kept |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1", "STAND_INS": str(self.home)}
        return kept | variables

    def pip_install(self, path: Path) -> None:
        command = [self.venv / "bin" / "python", "-m", "pip", "install", "-q", "--no-deps", "--no-index", path]
        subprocess.run(command, env=self.environ(), check=True)

    def install(self, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SCRIPT, self.venv], env=self.environ(**variables), capture_output=True, text=True, check=False
        )

    @property
    def torch(self) -> list[str]:
        """Versions of torch that count as installed."""
        found = self.site.glob("torch-*.dist-info")
        return [path.name.removeprefix("torch-").removesuffix(".dist-info") for path in found]

    @property
    def uv_arguments(self) -> list[str] | None:
        called = self.home / "uv.called"
        return called.read_text().split("\n") if called.exists() else None


@pytest.fixture(scope="module")
def empty_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty") / "venv"
    venv.create(path, symlinks=True)
    # `ensurepip` would take seconds to install the same files.
    installed = Path(pip.__file__).parent
    for folder in (installed, *installed.parent.glob("pip-*.dist-info")):
        shutil.copytree(folder, path / SITE / folder.name)
    return path


@pytest.fixture
def machine(empty_venv: Path, tmp_path: Path) -> Machine:
    shutil.copytree(empty_venv, tmp_path / "venv", symlinks=True)
    (tmp_path / "pytorch").mkdir()
    return Machine(tmp_path)


@pytest.fixture
def pypi(machine: Machine) -> str:
    """An index as PyPI is: torch's CUDA build, and uv."""
    wheels = machine.home / "wheels"
    return index(machine.home / "pypi", torch_wheel(wheels, CUDA), uv_wheel(wheels))


@pytest.mark.slow
def test_uv_installs_build_missing_from_pips_index(machine: Machine, pypi: str) -> None:
    torch_wheel(machine.home / "pytorch", PINNED)
    done = machine.install(PIP_INDEX_URL=pypi)
    assert (done.returncode, done.stderr) == (0, "")
    assert machine.torch == [PINNED]
    called = machine.uv_arguments
    assert called is not None and called[:2] == ["pip", "install"] and called[-1] == f"torch=={PINNED}"
    assert {"--torch-backend=cpu", "--no-deps"} <= set(called)
    assert called[called.index("--python") + 1] == str(machine.venv / "bin" / "python")
    (line,) = done.stdout.splitlines()
    assert f"torch=={PINNED}" in line and "uv" in line, "what is done, and why"


@pytest.mark.slow
@pytest.mark.parametrize("by_uv", [True, False])
def test_a_cuda_build_is_replaced(machine: Machine, pypi: str, by_uv: bool) -> None:
    machine.pip_install(torch_wheel(machine.home / "wheels", CUDA))
    assert machine.torch == [CUDA] and (machine.site / "torch" / "cuda.py").exists()
    source = torch_wheel(machine.home / "pytorch", PINNED)
    done = machine.install(PIP_INDEX_URL=pypi if by_uv else index(machine.home / "mirror", source))
    assert done.returncode == 0, done.stderr
    assert machine.torch == [PINNED]
    assert not (machine.site / "torch" / "cuda.py").exists()
    assert (machine.uv_arguments is not None) == by_uv


GRID = [(version, missing) for version in (CUDA, PINNED) for missing in ("INSTALLER", "INSTALLER RECORD", "RECORD")]
QUICK = [(CUDA, "INSTALLER"), (PINNED, "INSTALLER RECORD")]


@pytest.mark.parametrize(
    ("version", "missing"), [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in GRID]
)
def test_killed_installation_is_repeated(machine: Machine, version: str, missing: str) -> None:
    """pip takes such a package for installed, and neither pip nor uv can remove it without its list of files."""
    machine.pip_install(torch_wheel(machine.home / "wheels", version, "unfinished"))
    machine.pip_install(wheel(machine.home / "wheels", "finished", "1.0", {"finished.py": ""}))
    for name in missing.split():
        (machine.site / f"torch-{version}.dist-info" / name).unlink()
    (machine.site / "~orch").mkdir()
    source = torch_wheel(machine.home / "mirror-wheels", PINNED, "mirror")
    done = machine.install(PIP_INDEX_URL=index(machine.home / "mirror", source))
    assert done.returncode == 0, done.stderr
    assert machine.torch == [PINNED]
    assert "mirror" in (machine.site / "torch" / "__init__.py").read_text()
    assert not (machine.site / "torch" / "cuda.py").exists() and not (machine.site / "~orch").exists()
    assert (machine.site / "finished-1.0.dist-info").exists()
    assert f"torch-{version}" in done.stdout


def test_files_of_no_package_are_removed(machine: Machine) -> None:
    """Killed while torch's files were copied, before its metadata."""
    (machine.site / "torch").mkdir()
    (machine.site / "torch" / "cuda.py").touch()
    source = torch_wheel(machine.home / "wheels", PINNED)
    assert machine.install(PIP_INDEX_URL=index(machine.home / "mirror", source)).returncode == 0
    assert machine.torch == [PINNED] and not (machine.site / "torch" / "cuda.py").exists()


@pytest.mark.slow
@pytest.mark.parametrize("configured", ["index", "folder"])
def test_uv_is_not_called_where_pip_finds_the_build(machine: Machine, configured: str) -> None:
    wheels = machine.home / "wheels"
    mirror = index(machine.home / "mirror", torch_wheel(wheels, CUDA), torch_wheel(wheels, PINNED), uv_wheel(wheels))
    folder = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    done = machine.install(**({"PIP_INDEX_URL": mirror} if configured == "index" else folder))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert machine.torch == [PINNED] and machine.uv_arguments is None
    assert not (machine.venv / "bin" / "uv").exists()


@pytest.mark.slow
def test_a_finished_installation_asks_no_index(machine: Machine) -> None:
    machine.pip_install(torch_wheel(machine.home / "wheels", PINNED))
    done = machine.install(PIP_INDEX_URL=index(machine.home / "empty"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert machine.torch == [PINNED]


@pytest.mark.slow
@pytest.mark.parametrize("uv_is_there", [True, False])
def test_no_source_is_an_error_with_a_remedy(machine: Machine, pypi: str, uv_is_there: bool) -> None:
    done = machine.install(PIP_INDEX_URL=pypi if uv_is_there else index(machine.home / "empty"))
    assert done.returncode == 1
    assert machine.torch == []
    assert (machine.uv_arguments is not None) == uv_is_there
    assert f"torch=={PINNED} is not installed" in done.stderr
    assert f"No matching distribution found for {'torch' if uv_is_there else 'uv'}==" in done.stderr, "the cause"
    assert "make TORCH_INDEX=<index> setup" in done.stderr and "https://pytorch.org/" in done.stderr


def test_another_error_of_pip_is_shown_and_ends_the_setup(machine: Machine) -> None:
    wheels = machine.home / "wheels"
    broken = torch_wheel(wheels, PINNED)
    broken.write_text("an archive that did not arrive whole")
    torch_wheel(machine.home / "pytorch", PINNED)
    done = machine.install(PIP_INDEX_URL=index(machine.home / "mirror", broken, uv_wheel(wheels)))
    assert done.returncode == 1
    assert "is invalid" in done.stderr
    assert machine.uv_arguments is None and machine.torch == []


def test_torch_index_wins(machine: Machine) -> None:
    ours, theirs = machine.home / "ours", machine.home / "theirs"
    named = index(machine.home / "named", torch_wheel(ours, PINNED, "named"))
    configured = index(machine.home / "mirror", torch_wheel(theirs, PINNED, "configured"), uv_wheel(theirs))
    done = machine.install(PIP_INDEX_URL=configured, TORCH_INDEX=named, PIP_NO_INDEX="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert machine.torch == [PINNED] and machine.uv_arguments is None
    assert "named" in (machine.site / "torch" / "__init__.py").read_text()


def test_a_torch_index_without_the_build_is_an_error(machine: Machine, pypi: str) -> None:
    torch_wheel(machine.home / "pytorch", PINNED)
    named = index(machine.home / "named", torch_wheel(machine.home / "wheels", CUDA))
    done = machine.install(PIP_INDEX_URL=pypi, TORCH_INDEX=named)
    assert done.returncode == 1
    assert f"TORCH_INDEX={named}" in done.stderr and "https://pytorch.org/" in done.stderr
    assert machine.uv_arguments is None and machine.torch == []


# -- make -------------------------------------------------------------------------------------------------------------


def make(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", *map(str, arguments)]
    # Make below make would take over the flags and the variables of the outer one.
    environ = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """What make looks at in an environment that is set up."""
    last = tmp_path / SITE / f"torch-{PINNED}.dist-info" / "INSTALLER"
    last.parent.mkdir(parents=True)
    last.touch()
    (tmp_path / ".ready").touch()
    return tmp_path


@pytest.mark.parametrize("other", ["CUDA build", "interrupted"])
def test_make_repeats_setup_for_another_torch_build(finished: Path, other: str) -> None:
    assert make("--question", finished / ".ready", f"VENV={finished}").returncode == 0
    info = finished / SITE / f"torch-{PINNED}.dist-info"
    if other == "interrupted":
        (info / "INSTALLER").unlink()
    else:
        info.rename(info.with_name(f"torch-{CUDA}.dist-info"))
    assert make("--question", finished / ".ready", f"VENV={finished}").returncode == 1


def test_make_setup_says_how_to_activate(finished: Path) -> None:
    done = make("setup", f"VENV={finished}")
    assert done.returncode == 0, done.stderr
    assert f". {finished}/bin/activate" in done.stdout


def test_make_hands_the_index_over(finished: Path) -> None:
    planned = make("--dry-run", "--always-make", "setup", f"VENV={finished}", "TORCH_INDEX=https://mirror.test/cpu")
    assert f'TORCH_INDEX="https://mirror.test/cpu" requirements/install_torch_cpu.sh {finished}' in planned.stdout


def test_make_help_has_a_line_for_every_target() -> None:
    text = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (help .*)$", text, re.M)
    targets = re.findall(r"^([a-z-]+):(?!=)", text, re.M)
    assert sorted(phony.split()) == sorted(targets)
    shown = make("help").stdout
    assert re.findall(r"^  make ([a-z-]+) +\S", shown, re.M) == targets
    for variable in re.findall(r"^([A-Z_]+) \?=", text, re.M):
        assert re.search(rf"\b{variable}\b", shown), variable


def test_test_time_measures_what_make_test_runs() -> None:
    planned = make("--dry-run", "test").stdout
    # Lint's own is `pytest -qq`.
    runs = [shlex.split(line)[1:] for line in planned.splitlines() if "/pytest -q " in line]
    source = ast.parse((ROOT / "benchmarks" / "test_time.py").read_text())
    (parts,) = [n.value for n in source.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "PARTS"]
    assert [["-q", *part] for part in ast.literal_eval(parts)] == runs


# -- habits -------------------------------------------------------------------------------------------------------


def test_pre_commit_hooks_have_the_pinned_versions() -> None:
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    pinned = pins(ROOT / "requirements" / "cpu.txt")
    found = [package for hook in local["hooks"] for package in hook["additional_dependencies"]]
    assert found == [f"{name}=={pinned[name]}" for name in ("ruff", "ruff", "codespell")]


def test_ci_runs_check_and_test_on_python_3_11() -> None:
    (job,) = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"].values()
    assert job["strategy"]["matrix"] == {"target": ["check", "test"]}
    assert {"run": "make ${{ matrix.target }}"} in job["steps"]
    assert [step["with"]["python-version"] for step in job["steps"] if "with" in step] == ["3.11"]


@pytest.mark.parametrize("form", ["bug", "feature", "method"])
def test_issue_forms_are_whole(form: str) -> None:
    parsed = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{form}.yml").read_text())
    assert parsed["name"] and parsed["description"]
    fields = [field["id"] for field in parsed["body"]]
    assert len(set(fields)) == len(fields) > 0
    assert any(field.get("validations", {}).get("required") for field in parsed["body"])


def test_shellcheck_finds_nothing() -> None:
    tool = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or shutil.which("shellcheck")
    if tool is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run([tool, SCRIPT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
