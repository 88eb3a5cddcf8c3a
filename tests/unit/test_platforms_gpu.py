"""GPUs that torch cannot use: which, why, and what to do. The GPUs are not there; see tests/support/nvml.py."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from nvml import NVMLError, NVMLError_LibraryNotFound, bindings, driver, gpu

from openrlhf_ada.platforms import gpu as gpu_module
from openrlhf_ada.platforms import nvml as nvml_module
from openrlhf_ada.platforms.gpu import (
    Torch,
    Trouble,
    check_machine,
    check_nodes,
    explain,
    look_at_driver,
    look_at_torch,
    trouble,
    unreadable_architectures,
)
from openrlhf_ada.platforms.nvml import Driver, NoNvmlError, NvmlError, read_driver
from openrlhf_ada.platforms.resources import MissingResourcesError

pytestmark = pytest.mark.rehearsal

ROOT = Path(__file__).parents[2]

NO_LIBRARY = NoNvmlError("libnvidia-ml.so.1: cannot open shared object file")
USABLE = Torch("2.13.0+cu130", "13.0", "")
UNUSABLE = Torch("2.13.0+cu130", "13.0", "The NVIDIA driver on your system is too old")
CPU_BUILD = Torch("2.13.0+cpu", "", "no CUDA")


# -- NVIDIA's library -------------------------------------------------------------------------------------------------


def read(monkeypatch: pytest.MonkeyPatch, found: Driver, error: NVMLError | None = None) -> Driver:
    monkeypatch.setattr(nvml_module, "nvml_bindings", lambda: bindings(found, error))
    return read_driver()


def test_the_driver_is_read_with_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    two = driver(gpu(free=30), gpu(index=1), version="535.104.05", cuda=(12, 2))
    assert read(monkeypatch, two) == two


def test_errors_of_the_library_are_told_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NvmlError, match="Driver/library version mismatch") as error:
        read(monkeypatch, driver(), NVMLError("Driver/library version mismatch"))
    assert not isinstance(error.value, NoNvmlError)
    with pytest.raises(NoNvmlError, match="not found"):
        read(monkeypatch, driver(), NVMLError_LibraryNotFound("NVML Shared Library not found"))


# -- the machine ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_module", [False, True])
def test_a_gpu_shows_in_the_library_or_in_the_kernel(tmp_path: Path, has_module: bool) -> None:
    if has_module:
        (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
        (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version: NVIDIA UNIX  570.86.15\n")

    def look(found: Driver | NvmlError) -> Driver | NvmlError | None:
        def read() -> Driver:
            if isinstance(found, NvmlError):
                raise found
            return found

        return look_at_driver(tmp_path, read)

    lost, one = NvmlError("GPU is lost"), driver(gpu())
    assert (look(lost), look(one)) == (lost, one)
    assert (look(NO_LIBRARY), look(driver())) == ((NO_LIBRARY, driver()) if has_module else (None, None))


@pytest.mark.parametrize(
    ("found", "build", "named", "do"),
    [
        (
            driver(gpu(), gpu(), version="535.104.05", cuda=(12, 2)),
            UNUSABLE,
            [
                "2 NVIDIA GPUs (NVIDIA H100 80GB HBM3)",
                "torch 2.13.0+cu130",
                "CUDA 13.0",
                "driver on your system is too",
            ],
            "CUDA 13.0 or newer",
        ),
        (
            driver(gpu()),
            CPU_BUILD,
            ["1 NVIDIA GPU (NVIDIA H100 80GB HBM3)", "torch 2.13.0+cpu"],
            "requirements/setup.sh --gpu",
        ),
        (NvmlError("Driver/library version mismatch"), UNUSABLE, ["(Driver/library version mismatch)"], "nvidia-smi"),
        (NO_LIBRARY, UNUSABLE, ["libnvidia-ml.so.1"], "docker run --gpus all"),
        (driver(), UNUSABLE, ["580.65.06"], "--device nvidia.com/gpu=all"),
        (
            driver(gpu()),
            dataclasses.replace(UNUSABLE, reason="CUDA error 802: system not yet initialized"),
            ["torch 2.13.0+cu130", "CUDA error 802: system not yet initialized"],
            "nvidia-fabricmanager",
        ),
        (driver(gpu("Tesla T4", (7, 5))), USABLE, ["Tesla T4", "7.5", "8.0"], "Ampere"),
    ],
    ids=["driver too old", "CPU build", "mismatch", "no library", "no GPU", "torch says why", "old GPU"],
)
def test_each_trouble_is_named_with_its_remedy(found: Any, build: Torch, named: list[str], do: str) -> None:
    said = explain(found, build)
    assert said is not None
    assert all(part in said.what for part in named) and do in said.remedy
    assert said.is_cpu_build == (build is CPU_BUILD)
    assert "\n" not in str(said)


@pytest.mark.parametrize(
    "found",
    [
        driver(gpu()),
        driver(gpu("Tesla T4", (7, 5)), gpu()),
        # With NVIDIA's package for newer CUDA on an older driver, torch works: it knows better than the versions.
        driver(gpu(), version="535.104.05", cuda=(12, 2)),
        NvmlError("no permission"),
    ],
    ids=["all right", "one of two kinds", "forward compatible", "NVML is forbidden"],
)
def test_a_gpu_that_torch_uses_is_all_right(found: Any) -> None:
    assert explain(found, USABLE) is None


@pytest.mark.parametrize("hidden", ["", " ", "-1", "-1,0", ",0", "NoDevFiles"])
def test_gpus_that_the_user_hides_are_no_trouble(monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    monkeypatch.setattr(gpu_module, "look_at_driver", lambda: pytest.fail("nobody is to look"))
    assert trouble() is None


@pytest.mark.parametrize("value", ["", "NoDevFiles", "-1", "0", None])
def test_slots_in_the_place_of_gpus_are_as_many_as_ray_is_to_count(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    """With the real Ray: tests/contract/test_ray_facts.py."""
    if value is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    with gpu_module.hidden_as_slots(3):
        inside = os.environ.get("CUDA_VISIBLE_DEVICES")
    assert inside == (value if value in ("0", None) else "-1,-1,-1")
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == value


@pytest.mark.parametrize("named", ["7", "0,0", "GPU-of-another-machine"])
def test_a_variable_that_names_no_gpu_of_this_machine_is_shown(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    monkeypatch.setattr(gpu_module, "look_at_driver", lambda: driver(gpu()))
    build = dataclasses.replace(UNUSABLE, reason="No CUDA GPUs are available")
    monkeypatch.setattr(gpu_module, "look_at_torch", lambda: build)
    found = trouble()
    assert found is not None
    assert f"CUDA_VISIBLE_DEVICES='{named}': No CUDA GPUs are available" in found.what
    assert "CUDA_VISIBLE_DEVICES" in found.remedy and "nvidia-smi -L" in found.remedy


def test_torch_is_asked_only_where_a_gpu_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpu_module, "look_at_driver", lambda: None)
    monkeypatch.setattr(gpu_module, "look_at_torch", lambda: pytest.fail("torch is slow to import"))
    assert trouble() is None
    monkeypatch.setattr(gpu_module, "look_at_driver", lambda: driver(gpu()))
    monkeypatch.setattr(gpu_module, "look_at_torch", lambda: CPU_BUILD)
    found = trouble()
    assert found is not None and found.is_cpu_build


def read_by_deepspeed(listed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As its own builder does before it compiles. Raises ValueError."""
    from deepspeed.ops.op_builder.builder import CUDAOpBuilder
    from deepspeed.ops.op_builder.fused_adam import FusedAdamBuilder

    assert issubclass(FusedAdamBuilder, CUDAOpBuilder)
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", listed)
    builder = FusedAdamBuilder()
    builder.jit_mode = True
    builder.compute_capability_args()


@pytest.mark.parametrize("listed", ["9.0a", "8.0;9.0a", "8.0 10.0f+PTX", "Hopper"])
def test_architectures_that_deepspeed_cannot_read_are_named(listed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As images set them: on an H200 such a run failed a minute after its start, with `invalid literal for int()`."""
    found = str(unreadable_architectures(listed))
    assert found.startswith(f"TORCH_CUDA_ARCH_LIST={listed!r} has {re.split('[ ;]', listed)[-1]},")
    assert "unset TORCH_CUDA_ARCH_LIST" in found
    with pytest.raises(ValueError, match="invalid literal"):
        read_by_deepspeed(listed, monkeypatch)


@pytest.mark.parametrize("listed", ["9.0", "8.0;9.0+PTX", "8.0 8.6 9.0 10.0 12.0+PTX"])
def test_architectures_that_deepspeed_reads_are_no_trouble(listed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert unreadable_architectures("") is None
    assert unreadable_architectures(listed) is None
    read_by_deepspeed(listed, monkeypatch)


def test_a_usable_gpu_with_unreadable_architectures_is_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_module, "look_at_driver", lambda: driver(gpu()))
    monkeypatch.setattr(gpu_module, "look_at_torch", lambda: USABLE)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0a")
    assert "9.0a" in str(trouble())
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    assert trouble() is None


@pytest.mark.skipif(bool(torch.version.cuda), reason="of the CPU build")
def test_this_torch_is_a_cpu_build() -> None:
    found = look_at_torch()
    assert (found.version, found.cuda) == (torch.__version__, "")
    assert found.reason


@pytest.mark.slow
def test_first_lines_of_a_command_are_not_torchs_complaint_of_a_package_that_openrlhf_needs(tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text(
        "import warnings\nwarnings.warn('The pynvml package is deprecated. Please ...', FutureWarning, stacklevel=2)\n"
    )
    for look, told in (("import torch", True), ("import openrlhf_ada.platforms.gpu as m; m.look_at_torch()", False)):
        done = subprocess.run(
            [sys.executable, "-c", look],
            capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        )  # fmt: skip
        assert ("pynvml" in done.stderr) is told


def test_torch_says_itself_why_it_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("CUDA driver initialization failed\nmore lines")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", fail)
    assert look_at_torch().reason == "CUDA driver initialization failed"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert look_at_torch().reason == ""


# -- a run ------------------------------------------------------------------------------------------------------------

OLD = Trouble("old driver", "Install another")
BUILD = Trouble("CPU build", "Install another", is_cpu_build=True)


def flags(*, for_cpu: bool) -> SimpleNamespace:
    """As far as `check_cpu_limits` reads them."""
    return SimpleNamespace(
        ds=SimpleNamespace(
            packing_samples=False, ring_attn_size=1, load_in_4bit=False,
            attn_implementation="sdpa" if for_cpu else "flash_attention_2",
        ),
        train=SimpleNamespace(dynamic_batch_enable=False, colocate_all=False),
        ada=SimpleNamespace(engine_args=None, device="gpu"),
        vllm=SimpleNamespace(
            tensor_parallel_size=1, enable_sleep=False, sync_backend="gloo" if for_cpu else "nccl"
        ),
    )  # fmt: skip


@pytest.mark.parametrize(("found", "for_cpu"), [(OLD, True), (OLD, False), (BUILD, False)])
def test_a_run_beside_an_unusable_gpu_is_refused(
    monkeypatch: pytest.MonkeyPatch, found: Trouble, for_cpu: bool
) -> None:
    monkeypatch.setattr(gpu_module, "trouble", lambda: found)
    with pytest.raises(MissingResourcesError) as error:
        check_machine(flags(for_cpu=for_cpu))
    assert str(error.value).startswith(f"{found}. ")
    assert "CUDA_VISIBLE_DEVICES= openrlhf-ada" in str(error.value)


def test_a_cpu_environment_with_cpu_flags_trains_on_the_cpu_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gpu_module, "trouble", lambda: BUILD)
    with caplog.at_level(logging.WARNING):
        check_machine(flags(for_cpu=True))
    (warning,) = caplog.messages
    assert warning.startswith(f"{BUILD.what}. ")


def test_a_machine_without_trouble_is_not_spoken_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gpu_module, "trouble", lambda: None)
    check_machine(flags(for_cpu=False))
    assert caplog.messages == []


def cluster_of(monkeypatch: pytest.MonkeyPatch, answers: dict[str, Trouble | None]) -> None:
    """A head without GPUs, a node that is dead, and one with 8 GPUs for each answer."""
    import ray

    nodes = [("10.0.0.1", True, 0), ("10.0.0.9", False, 8), *((address, True, 8) for address in answers)]
    monkeypatch.setattr(
        ray, "nodes",
        lambda: [{"NodeManagerAddress": a, "NodeID": a, "Alive": alive, "Resources": {"GPU": gpus, "CPU": 4}}
                 for a, alive, gpus in nodes],
    )  # fmt: skip
    monkeypatch.setattr(gpu_module, "_ask", lambda node_id: node_id)
    monkeypatch.setattr(ray, "get", lambda ref: answers[ref])


def test_nodes_without_trouble_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head and the driver on it have no GPU, and nobody asks them."""
    cluster_of(monkeypatch, {"10.0.0.2": None, "10.0.0.3": None})
    assert check_nodes(flags(for_cpu=False)) is True


@pytest.mark.parametrize(
    ("answers", "for_cpu", "named"),
    [
        ({"10.0.0.2": None, "10.0.0.3": OLD}, False, f"on 10.0.0.3: {OLD}."),
        ({"10.0.0.2": OLD, "10.0.0.3": OLD}, True, f"on 10.0.0.2, 10.0.0.3: {OLD}."),
        ({"10.0.0.2": BUILD}, False, f"on 10.0.0.2: {BUILD}."),
        ({"10.0.0.2": None, "10.0.0.3": BUILD}, True, f"on 10.0.0.3: {BUILD}."),
    ],
    ids=["one of two", "both", "CPU build", "one environment is another"],
)
def test_a_cluster_with_unusable_gpus_is_refused(
    monkeypatch: pytest.MonkeyPatch, answers: dict[str, Trouble | None], for_cpu: bool, named: str
) -> None:
    cluster_of(monkeypatch, answers)
    with pytest.raises(MissingResourcesError) as error:
        check_nodes(flags(for_cpu=for_cpu))
    assert str(error.value).startswith(named)
    assert "ray stop" in str(error.value)


def test_a_cluster_of_cpu_environments_trains_on_cpus(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster_of(monkeypatch, {"10.0.0.2": BUILD, "10.0.0.3": BUILD})
    assert check_nodes(flags(for_cpu=True)) is False
    (warning,) = caplog.messages
    assert warning.startswith(f"on 10.0.0.2, 10.0.0.3: {BUILD}. ")


def test_a_node_without_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray
    from ray.exceptions import RayTaskError

    cluster_of(monkeypatch, {"10.0.0.2": None})

    def fail(ref: Any) -> Any:
        raise RayTaskError("trouble", "Traceback\nModuleNotFoundError: No module named 'openrlhf_ada'", OSError())

    monkeypatch.setattr(ray, "get", fail)
    with pytest.raises(MissingResourcesError, match=r"on 10\.0\.0\.2: .*No module named"):
        check_nodes(flags(for_cpu=False))
