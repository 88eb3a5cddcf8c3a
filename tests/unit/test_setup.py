"""The set-up on a machine without a GPU: torch's CPU build, whatever pip's index has. Stand-in wheels, no network."""

from __future__ import annotations

import ast
import compileall
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
SCRIPT = ROOT / "requirements" / "setup.sh"
PINNED = pins(ROOT / "requirements" / "cpu.txt")["torch"]
CUDA = PINNED.removesuffix("+cpu")
UV = next(line for line in SCRIPT.read_text().splitlines() if line.startswith("uv_pin=")).partition("==")[2]
OTHERS = "others==1.0"
"""Stands for all packages but torch."""
SITE = Path("lib") / f"python3.{sys.version_info.minor}" / "site-packages"

# Stands for uv: notes how it was called. Its own folders of wheels stand for PyTorch's index and for PyPI. It makes
# environments with the Python that it brings, which is this test's.
UV_CODE = """
import os, pathlib, shutil, subprocess, sys

def main():
    home = pathlib.Path(os.environ["STAND_INS"])
    with (home / "uv.called").open("a") as called:
        called.write(" ".join(sys.argv[1:]) + "\\n")
    if sys.argv[1] == "venv":
        shutil.copytree(home / "brought", sys.argv[-1], symlinks=True)
        return
    wanted = ["-r", sys.argv[-1]] if sys.argv[-2] == "-r" else [sys.argv[-1]]
    source = "pytorch" if "--torch-backend=cpu" in sys.argv else os.environ.get("UV_DEFAULT_INDEX", "uv-pypi")
    found = ["--no-index", "--find-links", str(home / source)]
    python = sys.argv[sys.argv.index("--python") + 1]
    sys.exit(subprocess.call([python, "-m", "pip", "install", "-q", "--no-deps", *found, *wanted]))
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
            entry = zipfile.ZipInfo(file)
            # Programs stay executable.
            entry.external_attr = 0o100755 << 16
            archive.writestr(entry, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{file},,\n" for file in [*texts, f"{info}/RECORD"]))
    return path


def torch_wheel(folder: Path, version: str, origin: str = "") -> Path:
    own = "cpu.py" if version.endswith("+cpu") else "cuda.py"
    return wheel(folder, "torch", version, {"torch/__init__.py": f"origin = {origin!r}\n", f"torch/{own}": ""})


def uv_wheel(folder: Path) -> Path:
    """Its program needs no other file, as uv's."""
    return wheel(folder, "uv", UV, {f"uv-{UV}.data/scripts/uv": f"#!python\n{UV_CODE}\nmain()\n"})


def others_wheel(folder: Path) -> Path:
    return wheel(folder, *OTHERS.split("=="), {"others.py": ""})


def index(folder: Path, *wheels: Path, others: bool = True) -> str:
    """Address of a package index with these wheels, and with OTHERS."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in (*wheels, others_wheel(folder.parent / "wheels")) if others else wheels:
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
        """This machine's, without its own configuration of pip, and without its uv."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "TORCH_"))}
        folders = os.environ["PATH"].split(os.pathsep)
        kept["PATH"] = os.pathsep.join(folder for folder in folders if not (Path(folder) / "uv").exists())
        kept |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1", "STAND_INS": str(self.home)}
        return kept | variables

    def pip_install(self, path: Path) -> None:
        command = [self.venv / "bin" / "python", "-m", "pip", "install", "-q", "--no-deps", "--no-index", path]
        subprocess.run(command, env=self.environ(), check=True)

    @property
    def script(self) -> Path:
        """A copy of it, beside a short list of packages."""
        copy = self.home / "requirements" / SCRIPT.name
        if not copy.exists():
            copy.parent.mkdir()
            shutil.copy(SCRIPT, copy)
            (copy.parent / "cpu.txt").write_text(f"# as ours\ntorch=={PINNED}\n{OTHERS}\n")
        return copy

    def install(self, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.script, self.venv], env=self.environ(**variables), capture_output=True, text=True, check=False
        )

    def put_on_path(self, path: Path) -> None:
        """A program of the machine's own, from its wheel."""
        target, tools = self.home / "system", self.home / "tools"
        python = next(self.home.glob("*/bin/python"))
        command = [python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", target, path]
        subprocess.run(command, env=self.environ(), check=True)
        tools.mkdir(exist_ok=True)
        (tools / "uv").symlink_to(target / "bin" / "uv")

    @property
    def path_with_tools(self) -> str:
        return f"{self.home / 'tools'}:{self.environ()['PATH']}"

    @property
    def path_of_tools_alone(self) -> str:
        """Without any Python of this test's machine."""
        programs = self.home / "programs"
        programs.mkdir(exist_ok=True)
        for name in ("bash", "sh", "env", "grep", "uname", "dirname", "basename", "rm", "cat", "sed"):
            if not (programs / name).exists():
                (programs / name).symlink_to(shutil.which(name) or name)
        return f"{self.home / 'tools'}:{programs}"

    def has(self, name: str) -> bool:
        return any(self.site.glob(f"{name}-*.dist-info"))

    @property
    def torch(self) -> list[str]:
        """Versions of torch that count as installed."""
        found = self.site.glob("torch-*.dist-info")
        return [path.name.removeprefix("torch-").removesuffix(".dist-info") for path in found]

    @property
    def uv_calls(self) -> list[list[str]]:
        called = self.home / "uv.called"
        return [line.split() for line in called.read_text().splitlines()] if called.exists() else []


@pytest.fixture(scope="module")
def empty_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty") / "venv"
    venv.create(path, symlinks=True)
    # `ensurepip` would take seconds to install the same files.
    installed = Path(pip.__file__).parent
    for folder in (installed, *installed.parent.glob("pip-*.dist-info")):
        shutil.copytree(folder, path / SITE / folder.name)
    # uv leaves pip uncompiled, and every copy of this environment would compile it again.
    compileall.compile_dir(path / SITE / "pip", quiet=1)
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
    assert machine.torch == [PINNED] and machine.has("others")
    (called,) = machine.uv_calls
    assert called[:2] == ["pip", "install"] and called[-1] == f"torch=={PINNED}"
    assert {"--torch-backend=cpu", "--no-deps", "--compile-bytecode"} <= set(called)
    assert called[called.index("--python") + 1] == str(machine.venv / "bin" / "python")
    assert "by uv, from PyTorch's index" in done.stdout


@pytest.mark.slow
def test_a_constraint_on_torch_hides_from_nobody_that_the_build_is_missing(machine: Machine, pypi: str) -> None:
    """pip calls it a conflict then, though the constraint would allow the build."""
    torch_wheel(machine.home / "pytorch", PINNED)
    constraints = machine.home / "constraints.txt"
    constraints.write_text("torch<=2.14.1\n")
    done = machine.install(PIP_INDEX_URL=pypi, PIP_CONSTRAINT=str(constraints))
    assert (done.returncode, done.stderr) == (0, "")
    assert machine.torch == [PINNED] and "by uv, from PyTorch's index" in done.stdout


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
    assert bool(machine.uv_calls) == by_uv


GRID = [(version, missing) for version in (CUDA, PINNED) for missing in ("INSTALLER", "INSTALLER RECORD", "RECORD")]


@pytest.mark.slow
@pytest.mark.parametrize(("version", "missing"), GRID)
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
    assert machine.has("finished") and machine.has("others")
    assert f"torch-{version}" in done.stdout


@pytest.mark.slow
def test_files_of_no_package_are_removed(machine: Machine) -> None:
    """Killed while torch's files were copied, before its metadata."""
    (machine.site / "torch").mkdir()
    (machine.site / "torch" / "cuda.py").touch()
    source = torch_wheel(machine.home / "wheels", PINNED)
    assert machine.install(PIP_INDEX_URL=index(machine.home / "mirror", source)).returncode == 0
    assert machine.torch == [PINNED] and not (machine.site / "torch" / "cuda.py").exists()


@pytest.mark.slow
@pytest.mark.parametrize("configured", ["index", "folder"])
def test_uv_is_not_called_where_pip_finds_all(machine: Machine, configured: str) -> None:
    wheels = machine.home / "wheels"
    mirror = index(machine.home / "mirror", torch_wheel(wheels, CUDA), torch_wheel(wheels, PINNED), uv_wheel(wheels))
    folder = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    done = machine.install(**({"PIP_INDEX_URL": mirror} if configured == "index" else folder))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("by pip") == 2
    assert machine.torch == [PINNED] and machine.has("others") and not machine.uv_calls
    assert not (machine.venv / "bin" / "uv").exists()


@pytest.mark.slow
def test_a_mirror_that_uv_knows_is_enough(machine: Machine) -> None:
    """pip reaches nothing, and uv is on the path."""
    torch_wheel(machine.home / "company", PINNED)
    others_wheel(machine.home / "company")
    machine.put_on_path(uv_wheel(machine.home / "wheels"))
    done = machine.install(
        UV_DEFAULT_INDEX="company", PIP_INDEX_URL=index(machine.home / "empty"), PATH=machine.path_with_tools
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert machine.torch == [PINNED] and machine.has("others")
    assert "from UV_DEFAULT_INDEX" in done.stdout and len(machine.uv_calls) == 2


@pytest.mark.slow
@pytest.mark.parametrize("lacking", ["uv", "pip"])
def test_one_of_pip_and_uv_is_enough_for_the_rest(machine: Machine, lacking: str) -> None:
    """The one that comes first cannot install them, so the other does."""
    torch = torch_wheel(machine.home / "wheels", PINNED)
    if lacking == "uv":
        folder = machine.home / "wheels"
        others_wheel(folder)
        done = machine.install(PIP_FIND_LINKS=str(folder), PIP_INDEX_URL=index(machine.home / "mirror", torch))
    else:
        others_wheel(machine.home / "uv-pypi")
        bare = machine.home / "bare"
        done = machine.install(PIP_INDEX_URL=index(bare, torch, uv_wheel(machine.home / "wheels"), others=False))
    assert (done.returncode, done.stderr) == (0, "")
    assert machine.has("others")
    assert ("by pip" if lacking == "uv" else "by uv") in done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_packages_that_nobody_has_are_an_error_of_both(machine: Machine) -> None:
    wheels = machine.home / "wheels"
    source = index(machine.home / "bare", torch_wheel(wheels, PINNED), uv_wheel(wheels), others=False)
    done = machine.install(PIP_INDEX_URL=source)
    assert done.returncode == 1 and machine.torch == [PINNED]
    assert "pip: " in done.stderr and "uv: " in done.stderr and "run make again" in done.stderr


@pytest.mark.slow
def test_a_finished_installation_asks_no_index(machine: Machine) -> None:
    machine.pip_install(torch_wheel(machine.home / "wheels", PINNED))
    machine.pip_install(others_wheel(machine.home / "wheels"))
    done = machine.install(PIP_INDEX_URL=index(machine.home / "empty", others=False))
    assert (done.returncode, done.stderr) == (0, "")
    assert machine.torch == [PINNED]


@pytest.mark.slow
@pytest.mark.parametrize("uv_is_there", [True, False])
def test_no_source_is_an_error_with_a_remedy(machine: Machine, pypi: str, uv_is_there: bool) -> None:
    done = machine.install(PIP_INDEX_URL=pypi if uv_is_there else index(machine.home / "empty"))
    assert done.returncode == 1
    assert machine.torch == []
    assert bool(machine.uv_calls) == uv_is_there
    assert f"torch=={PINNED} is not installed" in done.stderr
    assert f"No matching distribution found for {'torch' if uv_is_there else 'uv'}==" in done.stderr, "the cause"
    assert "make TORCH_INDEX=<index> setup" in done.stderr and "https://pytorch.org/" in done.stderr


@pytest.mark.slow
def test_another_error_of_pip_is_shown_and_ends_the_setup(machine: Machine) -> None:
    wheels = machine.home / "wheels"
    broken = torch_wheel(wheels, PINNED)
    broken.write_text("an archive that did not arrive whole")
    torch_wheel(machine.home / "pytorch", PINNED)
    done = machine.install(PIP_INDEX_URL=index(machine.home / "mirror", broken, uv_wheel(wheels)))
    assert done.returncode == 1
    assert "is invalid" in done.stderr
    assert not machine.uv_calls and machine.torch == []


@pytest.mark.slow
def test_torch_index_wins(machine: Machine) -> None:
    ours, theirs = machine.home / "ours", machine.home / "theirs"
    named = index(machine.home / "named", torch_wheel(ours, PINNED, "named"))
    configured = index(machine.home / "mirror", torch_wheel(theirs, PINNED, "configured"), uv_wheel(theirs))
    done = machine.install(PIP_INDEX_URL=configured, TORCH_INDEX=named)
    assert (done.returncode, done.stderr) == (0, "")
    assert machine.torch == [PINNED] and not machine.uv_calls
    assert "named" in (machine.site / "torch" / "__init__.py").read_text()


@pytest.mark.slow
def test_a_torch_index_without_the_build_is_an_error(machine: Machine, pypi: str) -> None:
    torch_wheel(machine.home / "pytorch", PINNED)
    named = index(machine.home / "named", torch_wheel(machine.home / "wheels", CUDA))
    done = machine.install(PIP_INDEX_URL=pypi, TORCH_INDEX=named)
    assert done.returncode == 1
    assert f"TORCH_INDEX={named}" in done.stderr and "https://pytorch.org/" in done.stderr
    assert not machine.uv_calls and machine.torch == []


# -- the interpreter -------------------------------------------------------------------------------------------------


@pytest.fixture
def old_machine(machine: Machine) -> Machine:
    """Its only Python is 3.9, which has pip. What uv can bring lies ready."""
    machine.venv.rename(machine.home / "brought")
    old = machine.home / "tools" / "python3"
    old.parent.mkdir()
    asks = f'if [ "$1" = -c ]; then exit 1; fi\nexec {machine.home}/brought/bin/python "$@"\n'
    old.write_text(f"#!/bin/sh\n# Says no when its version is asked for.\n{asks}")
    old.chmod(0o755)
    return machine


@pytest.mark.slow
@pytest.mark.parametrize("uv_is_there", [True, False])
def test_uv_brings_python_where_there_is_none(old_machine: Machine, uv_is_there: bool) -> None:
    wheels = old_machine.home / "wheels"
    uv = uv_wheel(wheels)
    if uv_is_there:
        old_machine.put_on_path(uv)
    mirror = index(old_machine.home / "mirror", torch_wheel(wheels, PINNED), uv)
    done = old_machine.install(PIP_INDEX_URL=mirror, PATH=old_machine.path_of_tools_alone)
    assert done.returncode == 0, done.stderr
    assert old_machine.uv_calls[0] == ["venv", "--quiet", "--seed", "--python", "3.11", str(old_machine.venv)]
    assert old_machine.torch == [PINNED] and old_machine.has("others")
    assert not Path(f"{old_machine.venv}.uv").exists()


@pytest.mark.slow
def test_without_python_and_uv_the_remedies_are_named(old_machine: Machine) -> None:
    done = old_machine.install(PIP_INDEX_URL=index(old_machine.home / "empty"), PATH=old_machine.path_of_tools_alone)
    assert done.returncode == 1 and not old_machine.venv.exists()
    for remedy in (
        "https://docs.astral.sh/uv/",
        "apt install python3.11-venv",
        "make PYTHON=/path/to/python3.11 setup",
    ):
        assert remedy in done.stderr


@pytest.mark.slow
def test_an_interpreter_of_another_version_is_refused(old_machine: Machine) -> None:
    old = old_machine.home / "tools" / "python3"
    done = old_machine.install(PYTHON=str(old))
    assert done.returncode == 1 and f"PYTHON is {old}: Python 3.11 or 3.12 is needed" in done.stderr


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
    assert f'TORCH_INDEX="https://mirror.test/cpu" requirements/setup.sh {finished}' in planned.stdout


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


def test_ci_runs_check_and_test_on_both_versions_of_python() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    job = jobs["make"]
    assert {"run": "make audit"} in jobs["audit"]["steps"] and len(jobs) == 2
    assert job["strategy"]["matrix"] == {"target": ["check", "test"], "python": ["3.11", "3.12"]}
    assert {"run": "make ${{ matrix.target }}"} in job["steps"]
    assert [step["with"]["python-version"] for step in job["steps"] if "setup-python" in step.get("uses", "")] == [
        "${{ matrix.python }}"
    ]


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
