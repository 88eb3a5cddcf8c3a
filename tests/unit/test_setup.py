"""The set-up on a machine without a GPU: torch's CPU build, whatever pip's index has. Stand-in wheels, no network."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from dockerfiles import pins
from set_ups import (
    CUDA,
    PINNED,
    ROOT,
    SITE,
    Machine,
    index,
    others_wheel,
    torch_wheel,
    uv_wheel,
    wheel,
)


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
def test_a_cuda_build_is_replaced(machine: Machine, pypi: str) -> None:
    machine.pip_install(torch_wheel(machine.home / "wheels", CUDA))
    assert machine.torch == [CUDA] and (machine.site / "torch" / "cuda.py").exists()
    torch_wheel(machine.home / "pytorch", PINNED)
    done = machine.install(PIP_INDEX_URL=pypi)
    assert done.returncode == 0, done.stderr
    assert machine.torch == [PINNED] and machine.uv_calls
    assert not (machine.site / "torch" / "cuda.py").exists()


GRID = [(CUDA, "INSTALLER"), (PINNED, "INSTALLER RECORD")]


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
def test_uv_is_not_called_where_pip_finds_all(machine: Machine) -> None:
    wheels = machine.home / "wheels"
    torch_wheel(wheels, CUDA)
    torch_wheel(wheels, PINNED)
    uv_wheel(wheels)
    others_wheel(wheels)
    done = machine.install(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheels))
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
    assert "pip: " in done.stderr and "uv: " in done.stderr and "run it again" in done.stderr


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
    assert "TORCH_INDEX=<index> make setup" in done.stderr and "https://pytorch.org/" in done.stderr


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
        "PYTHON=/path/to/python3.11 make setup",
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
    assert job["strategy"]["matrix"] == {"target": ["check", "test", "test-long"], "python": ["3.11", "3.12"]}
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
