"""tests/gpu/first_run.sh without a GPU: nvidia-smi and pytest are played by scripts, the rest is as it will be."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from documents import section, spans, tables

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "gpu" / "first_run.sh"
PATHS = re.findall(r'^  "([^|"]+)\|(\d)\|([^"]+)"$', SCRIPT.read_text(encoding="utf-8"), re.M)

pytestmark = pytest.mark.rehearsal

H100 = "NVIDIA H100 80GB HBM3, 81559 MiB, 580.65.06"

SKIPPED = "SKIPPED [1] tests/gpu/test_modes.py:61: needs the weights"

PLAYED_PYTHON = """#!/bin/sh
case "$PLAY $*" in
  failures*gpu/test_packing.py::test_packed*) echo "E   assert 0.2 < 0.1 | a pipe"; echo "1 failed in 3.1s"; exit 1 ;;
  failures*gpu/test_weight_sync.py::test_policy*) sleep 30 ;;
  failures*gpu/test_modes.py::test_off* | skips*-m\\ pytest*) echo "{skipped}"; echo "1 skipped"; exit 0 ;;
  *-m\\ pytest*) echo "1 passed in 2.0s"; exit 0 ;;
  *trouble*) {trouble} ;;
  *) exec {python} "$@" ;;
esac
"""


PROGRAMS = (
    "awk", "bash", "cat", "cut", "dirname", "env", "git", "grep", "head", "mktemp", "nproc", "paste", "rm", "sed",
    "sh", "sleep", "sort", "tail", "tee", "timeout", "uname", "uniq", "wc",
)  # fmt: skip
"""What the script calls, nvidia-smi and Python aside."""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """The script with these GPUs (None: there is no nvidia-smi) and with what NVML's check says."""

    def call(
        *options: str, gpus: list[str] | None, trouble: str = "echo", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        programs = tmp_path / "bin"
        programs.mkdir()
        for name in PROGRAMS:
            found = shutil.which(name)
            assert found, name
            (programs / name).symlink_to(found)
        if gpus is not None:
            lines = "\\n".join(gpus)
            write(programs / "nvidia-smi", f"#!/bin/sh\nprintf '{lines}'\n")
        python = tmp_path / "python"
        write(python, PLAYED_PYTHON.format(trouble=trouble, python=sys.executable, skipped=SKIPPED))
        mine = {
            "PATH": str(programs),
            "PYTHON": str(python),
            "OUT": str(tmp_path / "report.md"),
            "HOME": str(tmp_path),
        }
        return subprocess.run(
            [str(SCRIPT), *options], capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path,
            env=mine | variables,
        )  # fmt: skip

    return call


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def results(report: str) -> dict[str, list[str]]:
    """GPUs, result and seconds by path."""
    (table,) = tables(report)
    return {row[0]: row[1:] for row in table[1:]}


@pytest.mark.parametrize("option", [[], ["--dry-run"]], ids=["run", "dry run"])
def test_without_a_gpu_it_says_so_and_fails(run: Run, option: list[str]) -> None:
    done = run(*option, gpus=None, trouble="echo ' (this machine has an NVIDIA GPU, and no driver is loaded for it)'")
    assert done.returncode == 1
    assert done.stderr.startswith(
        "first_run: no NVIDIA GPU was found: there is no nvidia-smi here (this machine has an NVIDIA GPU, and no "
    )
    assert "make gpu-rehearsal" in done.stderr
    assert done.stdout == ""


def test_a_driver_without_gpus_is_no_gpu(run: Run) -> None:
    done = run(gpus=[])
    assert done.returncode == 1
    assert "no NVIDIA GPU was found: nvidia-smi says: nothing" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_on_this_machine_it_finds_none() -> None:
    done = subprocess.run([str(SCRIPT)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "no NVIDIA GPU was found" in done.stderr


def test_the_plan_names_every_path_and_what_it_needs(run: Run) -> None:
    done = run("--dry-run", gpus=[H100, H100])
    assert done.returncode == 0
    first, *lines = done.stdout.splitlines()
    assert first == f"2 x {H100}"
    assert len(lines) == len(PATHS)
    for line, (name, needs, test) in zip(lines, PATHS, strict=True):
        if int(needs) <= 2:
            assert line.startswith(f"run      {name}: ") and line.endswith(f"-m pytest -m gpu tests/gpu/{test}")
        else:
            assert line == f"skipped  {name}: needs 3 GPUs, here is 2"


@pytest.mark.parametrize(
    ("visible", "count"), [("0", 1), ("GPU-1,GPU-2", 2), ("1,-1,0", 1), ("0,", 1), ("0,1,2,3", 2)]
)
def test_gpus_that_are_hidden_do_not_count(run: Run, visible: str, count: int) -> None:
    done = run("--dry-run", gpus=[H100, H100], CUDA_VISIBLE_DEVICES=visible)
    assert done.stdout.startswith(f"{count} x {H100}\n")


@pytest.mark.parametrize("visible", ["", "-1", "NoDevFiles", "-1,0"])
def test_without_a_visible_gpu_it_says_so_and_fails(run: Run, visible: str) -> None:
    done = run(gpus=[H100], CUDA_VISIBLE_DEVICES=visible)
    assert done.returncode == 1
    assert f"no NVIDIA GPU was found: CUDA_VISIBLE_DEVICES={visible} hides all" in done.stderr


@pytest.mark.parametrize("options", [["--dry"], ["--dry-run", "more"], ["", "more"]])
def test_bad_usage_has_status_2(run: Run, options: list[str]) -> None:
    done = run(*options, gpus=[H100])
    assert (done.returncode, done.stderr) == (2, "usage: tests/gpu/first_run.sh [--dry-run]\n")


def test_gpus_that_torch_cannot_use_end_it_before_any_test(run: Run) -> None:
    done = run(gpus=[H100], trouble="echo 'the driver is too old. Install another'")
    assert done.returncode == 1
    assert done.stderr == "first_run: the driver is too old. Install another\n"


def test_an_installation_that_is_missing_is_named(run: Run) -> None:
    done = run(gpus=[H100], trouble="exit 1")
    assert done.returncode == 1
    assert "cannot import openrlhf_ada" in done.stderr and "docs/gpu.md" in done.stderr


@pytest.mark.slow
def test_the_report_has_machine_versions_paths_and_failures(run: Run, tmp_path: Path) -> None:
    """One path fails, one takes too long, one is skipped by its test, those of two GPUs are skipped, others pass."""
    done = run(gpus=[H100], LIMIT="2", PLAY="failures")
    assert done.returncode == 1, done.stderr
    report = (tmp_path / "report.md").read_text()
    assert done.stdout == report
    assert f"- GPUs: 1 x {H100}" in report
    assert re.search(r"^- Machine: Linux \S+ \S+, \d+ processors, \d+ GiB of memory$", report, re.M)
    assert re.search(
        r"^- Versions: Python 3\.1[12]\.\d+, openrlhf-ada \S+, openrlhf 0\.11\.2, .*torch 2\.13", report, re.M
    )
    assert str(tmp_path) not in report and os.uname().nodename not in report
    found = results(report)
    assert list(found) == [name for name, _, _ in PATHS]
    assert found["flash-attn packing"][1] == "FAIL (status 1)"
    assert found["weights by CUDA IPC, sleep and wake"][1] == "FAIL (not done after 2 s)"
    assert found["mode off beside OpenRLHF"][1] == "skipped: needs the weights"
    assert found["weights by NCCL, CUDA graphs"][1:] == ["skipped: needs 2 GPUs, here is 1", ""]
    passed = [name for name, row in found.items() if row[1] == "pass"]
    assert len(passed) == sum(needs == "1" for _, needs, _ in PATHS) - 3
    assert "**flash-attn packing**, tests/gpu/test_packing.py::test_packed_samples_do_not_see_each_other\n" in report
    assert "E   assert 0.2 < 0.1 | a pipe" in report


@pytest.mark.slow
def test_without_failures_it_succeeds(run: Run) -> None:
    """GPUs that are not alike are named each."""
    a100 = "NVIDIA A100-SXM4-80GB, 81920 MiB, 580.65.06"
    done = run(gpus=[H100, a100, H100])
    assert done.returncode == 0, done.stderr
    assert f"- GPUs: 1 x {a100};2 x {H100}\n" in done.stdout
    assert {row[1] for row in results(done.stdout).values()} == {"pass"}
    assert "paste it into an issue" in done.stderr


@pytest.mark.slow
def test_a_run_in_which_every_path_is_skipped_is_no_success(run: Run) -> None:
    """As where CUDA_VISIBLE_DEVICES is empty, or flash-attn is missing. PYTHON is relative to the caller's folder."""
    done = run(gpus=[H100], PLAY="skips", PYTHON="./python")
    assert done.returncode == 1
    assert {row[1].partition(":")[0] for row in results(done.stdout).values()} == {"skipped"}
    assert done.stderr.splitlines()[-1].startswith("first_run: nothing was run: every path was skipped")


# -- the list of paths ------------------------------------------------------------------------------------------------


def needs_of(test: str) -> int:
    """GPUs by the marker of a test in tests/gpu; a parameter may have a marker of its own."""
    file, _, rest = test.partition("::")
    name = rest.partition("[")[0]
    tree = ast.parse((ROOT / "tests" / "gpu" / file).read_text(encoding="utf-8"))
    (function,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name]
    marked = [ast.unparse(decorator) for decorator in function.decorator_list]
    counts = [int(found[1]) for text in marked if (found := re.fullmatch(r"pytest\.mark\.gpu\((\d)\)", text))]
    return counts[0] if counts else 1


@pytest.mark.parametrize(("name", "needs", "test"), PATHS, ids=[name for name, _, _ in PATHS])
def test_each_path_is_a_test_that_needs_as_many_gpus(name: str, needs: str, test: str) -> None:
    assert needs_of(test) == int(needs)


def test_every_test_file_of_the_page_on_gpus_is_run() -> None:
    text = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    table = next(tables(section(text, "Paths")))
    column = table[0].index("Test")
    named = {span for row in table[1:] for span in spans(row[column])}
    assert named == {test.partition("::")[0] for _, _, test in PATHS}
