"""The set-up for GPUs without one: flash-attn's own set-up runs, with a torch that looks like CUDA's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from dockerfiles import pins
from set_ups import PINNED, ROOT, UV, Machine, torch_wheel, wheel

LOCK = ROOT / "requirements" / "gpu.txt"
VERSIONS = pins(LOCK)
TOOLS = ("ninja", "packaging", "psutil", "setuptools", "wheel")
"""What flash-attn's set-up imports or calls, beside torch."""

# Of versions that no index has. Its extension is one of plain C, which needs ninja as CUDA's does.
TORCH, NVCC = f"torch=={VERSIONS['torch']}+stand.in", f"nvidia-cuda-nvcc=={VERSIONS['nvidia-cuda-nvcc']}+stand.in"
TORCH_FILES = {
    "torch/__init__.py": "__version__ = '2.13.0'\nclass version: cuda, hip = '13.0', None\n",
    "torch/utils/__init__.py": "",
    "torch/utils/cpp_extension.py": """
import os, pathlib, subprocess
from setuptools import Extension as CppExtension
from setuptools.command.build_ext import build_ext

CUDA_HOME, ROCM_HOME, IS_HIP_EXTENSION = os.environ["CUDA_HOME"], None, False

def CUDAExtension(name, **others):
    pathlib.Path("played.c").write_text(
        '#include <Python.h>\\nstatic struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "played"};'
        "PyMODINIT_FUNC PyInit_" + name + "(void) { return PyModule_Create(&module); }"
    )
    return CppExtension(name, ["played.c"])

class BuildExtension(build_ext):
    def run(self):
        subprocess.run(["ninja", "--version"], check=True)
        super().run()
""",
}


def write_cuda(folder: Path, release: str) -> str:
    """A toolkit of this release; returns where it is."""
    (folder / "bin").mkdir(parents=True)
    (folder / "include").mkdir()
    (folder / "include" / "cuda_runtime.h").touch()
    nvcc = folder / "bin" / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.88'\n")
    nvcc.chmod(0o755)
    return str(folder)


def write_lock(machine: Machine, tools: Iterable[str] = ()) -> None:
    lines = [f"{name}=={VERSIONS[name]}" for name in (*tools, "flash-attn")]
    (machine.script.parent / "gpu.txt").write_text("\n".join([TORCH, NVCC, *lines]) + "\n")
    wheel(machine.home / "wheels", *TORCH.split("=="), TORCH_FILES)
    wheel(machine.home / "wheels", *NVCC.replace("-cuda-", "_cuda_").replace("nvidia-", "nvidia_").split("=="), {})


@pytest.fixture(scope="module")
def package_index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips where no package index is reached."""
    small = ["packaging==" + VERSIONS["packaging"], "--dest", str(tmp_path_factory.mktemp("small"))]
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--retries", "1", "--timeout", "15", *small]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no package index is reached")


@pytest.mark.slow
@pytest.mark.usefixtures("package_index")
@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("missing", ["nothing", "ninja"])
def test_flash_attn_finds_what_it_is_built_with(machine: Machine, missing: str) -> None:
    """Without ninja one file would be compiled after the other."""
    write_lock(machine, [tool for tool in TOOLS if tool != missing])
    # PIP_NO_INDEX=0: pip, which knows of the stand-ins, comes before uv.
    own = {"PIP_FIND_LINKS": str(machine.home / "wheels"), "PIP_NO_INDEX": "0", "MAX_JOBS": ""}
    own["CUDA_HOME"] = write_cuda(machine.home / "cuda", "13.0")
    no_ninja = machine.home / "ninja"
    no_ninja.write_text("#!/bin/sh\necho there is no ninja >&2\nexit 1\n")
    no_ninja.chmod(0o755)
    own["PATH"] = f"{machine.home}:{os.environ['PATH']}"
    command = [machine.script, "--gpu", machine.venv]
    done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, check=False)
    assert machine.has("flash_attn") == (missing == "nothing"), done.stderr
    assert done.returncode == (0 if missing == "nothing" else 1)
    assert missing == "nothing" or missing in done.stderr.partition("flash-attn is not installed")[2], done.stderr


@pytest.mark.slow
def test_another_environment_than_that_of_a_cpu(machine: Machine) -> None:
    write_lock(machine)
    machine.pip_install(torch_wheel(machine.home / "cpu", PINNED))
    done = machine.install("--gpu", PIP_NO_INDEX="1")
    assert done.returncode == 1 and f"{machine.venv} has torch's build for CPUs" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("release", ["", "12.8"])
def test_compilers_are_looked_for_before_anything_is_downloaded(machine: Machine, release: str) -> None:
    write_lock(machine)
    home = write_cuda(machine.home / "cuda", release) if release else str(machine.home / "nowhere")
    done = machine.install("--gpu", CUDA_HOME=home, PIP_NO_INDEX="1")
    assert done.returncode == 1 and not machine.torch
    assert f"not in: {home}" in done.stderr and "CUDA_HOME=<folder>" in done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("package_index")
def test_the_lock_is_what_the_extra_resolves_to(tmp_path: Path) -> None:
    """So it is whole, and no package of it forbids another: CUDA's parts are those that torch requires."""
    target = tmp_path / "uv"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), f"uv=={UV}"]
    subprocess.run(command, check=True)
    # Else uv would build it to learn this.
    known = f'[[dependency-metadata]]\nname = "flash-attn"\nversion = "{VERSIONS["flash-attn"]}"\n'
    (tmp_path / "uv.toml").write_text(known + 'requires-dist = ["torch", "einops"]\n')
    machine_like = ["--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28"]
    shown = ["--quiet", "--no-header", "--no-annotate", "--config-file", str(tmp_path / "uv.toml")]
    command = [str(target / "bin" / "uv"), "pip", "compile", "--system-certs", *shown, *machine_like, "--extra", "gpu"]
    done = subprocess.run(
        [*command, "--constraint", str(LOCK), str(ROOT / "pyproject.toml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    resolved = [
        line.partition("[")[0] + line[line.index("==") :] if "[" in line else line for line in done.stdout.split()
    ]
    assert sorted(resolved) == sorted(f"{name}=={version}" for name, version in VERSIONS.items())
