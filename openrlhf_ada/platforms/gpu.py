"""Why a run cannot use a GPU that this machine has. Without a GPU there is nothing to say: then the CPU is meant."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from openrlhf_ada.config.installed import SETUP_FOR_GPUS
from openrlhf_ada.platforms.nvml import Driver, Gpu, NoNvmlError, NvmlError, read_driver

VISIBLE = "CUDA_VISIBLE_DEVICES"
ARCHITECTURES = "TORCH_CUDA_ARCH_LIST"

LEAST_CAPABILITY = (8, 0)
"""Of flash-attn and bfloat16."""

OLDEST_DRIVER = {12: "525", 13: "580"}
"""By major version of CUDA, from NVIDIA's table of compatible drivers."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """`is_cpu_build`: torch was installed for a CPU, which may well be meant."""

    what: str
    remedy: str
    is_cpu_build: bool = False

    def __str__(self) -> str:
        return f"{self.what}. {self.remedy}"


@dataclass(frozen=True, slots=True)
class Torch:
    """A build of torch. `cuda`: the version that it is built for, "" for a CPU build. `reason`: why it has no GPU, in
    its own words; empty where it has one."""

    version: str
    cuda: str
    reason: str


@dataclass(frozen=True, slots=True)
class Machine:
    """What shows a GPU without torch. `kernel_driver`: version of the loaded kernel module. `on_bus`: an NVIDIA GPU is
    among the PCI devices."""

    driver: Driver | NvmlError
    kernel_driver: str
    on_bus: bool
    in_container: bool

    @property
    def shows_gpu(self) -> bool:
        if isinstance(self.driver, Driver):
            return bool(self.driver.gpus) or bool(self.kernel_driver)
        return bool(self.kernel_driver) or self.on_bus or not isinstance(self.driver, NoNvmlError)


def trouble() -> Trouble | None:
    """What keeps a run from a GPU of this machine; None where nothing does, or there is none to have.

    Torch is imported only where something shows a GPU.
    """
    visible = os.environ.get(VISIBLE)
    if visible is not None and hides_all(visible):
        # The user's wish, or Slurm's.
        return None
    machine = look_at_machine()
    if not machine.shows_gpu:
        return None
    return explain(machine, look_at_torch(), visible) or unreadable_architectures(os.environ.get(ARCHITECTURES, ""))


def unreadable_architectures(listed: str) -> Trouble | None:
    """Of a value of TORCH_CUDA_ARCH_LIST. Images set it for torch, which reads more than DeepSpeed does (DeepSpeed's
    op_builder/builder.py): with `9.0a` its optimizer would fail to compile once the engines are up."""
    unread = [name for name in re.split(r"[\s;]+", listed) if name and not re.fullmatch(r"\d+\.\d+(\+PTX)?", name)]
    if not unread:
        return None
    return Trouble(
        f"{ARCHITECTURES}={listed!r} has {', '.join(unread)}, and DeepSpeed, which compiles its optimizer for these "
        f"architectures, reads only numbers such as 9.0 or 9.0+PTX",
        f"Leave the letters out, or unset {ARCHITECTURES}: DeepSpeed then asks the GPU",
    )


def hides_all(visible: str) -> bool:
    """Of a value of CUDA_VISIBLE_DEVICES. CUDA reads GPUs up to the first entry that names none; Slurm gives a job
    without GPUs NoDevFiles."""
    first = visible.partition(",")[0].strip()
    return not first or first.startswith("-") or first == "NoDevFiles"


@contextmanager
def hidden_as_slots(count: int) -> Iterator[None]:
    """While a Ray starts that has so many slots in the place of GPUs.

    It refuses more slots than CUDA_VISIBLE_DEVICES names. One that hides all GPUs gets as many entries, each of which
    hides them as well; Ray's processes inherit it.
    """
    visible = os.environ.get(VISIBLE)
    if visible is None or not hides_all(visible):
        yield
        return
    os.environ[VISIBLE] = ",".join(["-1"] * count)
    try:
        yield
    finally:
        os.environ[VISIBLE] = visible


def look_at_machine(root: Path = Path("/"), read: Callable[[], Driver] = read_driver) -> Machine:
    """`root`: of the file system."""
    driver: Driver | NvmlError
    try:
        driver = read()
    except NvmlError as error:
        driver = error
    # `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat ...`
    told = root / "proc/driver/nvidia/version"
    version = re.search(r" (\d+\.[\d.]+)|$", told.read_text(encoding="utf-8")) if told.is_file() else None
    return Machine(
        driver,
        "" if version is None else version[1] or "of an unknown version",
        any(_is_gpu(device) for device in (root / "sys/bus/pci/devices").glob("*")),
        any((root / name).exists() for name in (".dockerenv", "run/.containerenv")),
    )


def _is_gpu(device: Path) -> bool:
    """NVIDIA's, and a display controller of some kind."""
    vendor, kind = device / "vendor", device / "class"
    if not vendor.is_file() or not kind.is_file():
        return False
    return vendor.read_text().strip() == "0x10de" and kind.read_text().startswith("0x03")


def look_at_torch() -> Torch:
    with warnings.catch_warnings():
        # OpenRLHF requires this package, so its user can do nothing about it.
        warnings.filterwarnings("ignore", "The pynvml package is deprecated", FutureWarning)
        import torch

    reason = ""
    if torch.version.cuda and not torch.cuda.is_available():
        reason = "it gives no reason"
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:
            reason = str(error).strip().partition("\n")[0]
    elif not torch.version.cuda:
        reason = "a build for CPUs"
    return Torch(torch.__version__, torch.version.cuda or "", reason)


def explain(machine: Machine, torch: Torch, visible: str | None = None) -> Trouble | None:
    """For a machine that shows a GPU: what is wrong, and what to do; None where nothing is.

    `visible`: the value of CUDA_VISIBLE_DEVICES, None where it is not set.
    """
    driver = machine.driver
    if not torch.reason:
        return _too_old_gpus(driver.gpus) if isinstance(driver, Driver) else None
    if not torch.cuda:
        return Trouble(
            f"this machine has {_gpus(machine)}, and torch {torch.version} is a build for CPUs",
            f"Install what GPUs need into an environment of its own: {SETUP_FOR_GPUS} in a copy of the source",
            is_cpu_build=True,
        )
    if isinstance(driver, NvmlError):
        return _no_driver(machine, driver)
    if not driver.gpus:
        return Trouble(
            f"NVIDIA's driver {driver.version} is loaded and shows no GPU"
            + (" in this container" if machine.in_container else ""),
            _START_WITH_GPUS if machine.in_container else _LOOK,
        )
    needed = int(torch.cuda.partition(".")[0])
    if driver.cuda[0] < needed:
        return Trouble(
            f"this machine has {_gpus(machine)}, and its driver {driver.version} is too old: it serves CUDA up to "
            f"{driver.cuda[0]}.{driver.cuda[1]}, and torch {torch.version} is built for CUDA {torch.cuda}",
            f"Install driver {OLDEST_DRIVER.get(needed, 'of a newer version')} or newer on the machine (in a "
            f"container: on its host)",
        )
    named = "" if visible is None else f" with {VISIBLE}={visible!r}"
    return Trouble(
        f"this machine has {_gpus(machine)} with driver {driver.version}, and torch {torch.version} cannot use it"
        f"{named}: {torch.reason}",
        (f"{VISIBLE} must name GPUs that nvidia-smi -L shows, each once. " if named else "")
        + "Look at nvidia-smi; on machines with NVSwitch, nvidia-fabricmanager must run; in a container, "
        "NVIDIA_DRIVER_CAPABILITIES must hold compute",
    )


_LOOK = "Look at nvidia-smi, and at the kernel's log (dmesg)"

_START_WITH_GPUS = (
    "Start it with GPUs: docker run --gpus all ... (the host needs the NVIDIA Container Toolkit; with podman: "
    "--device nvidia.com/gpu=all)"
)


def _no_driver(machine: Machine, error: NvmlError) -> Trouble:
    if "mismatch" in str(error).lower():
        return Trouble(
            f"NVIDIA's driver does not answer ({error})", "It was updated while it ran: restart the machine"
        )
    if not isinstance(error, NoNvmlError):
        return Trouble(f"NVIDIA's driver does not answer ({error})", _LOOK)
    if not machine.kernel_driver:
        return Trouble(
            "this machine has an NVIDIA GPU, and no driver is loaded for it",
            f"Install NVIDIA's driver, {OLDEST_DRIVER[13]} or newer",
        )
    if machine.in_container:
        return Trouble(
            f"the host of this container has NVIDIA's driver {machine.kernel_driver}, and the container has no GPU",
            _START_WITH_GPUS,
        )
    return Trouble(
        f"NVIDIA's kernel driver {machine.kernel_driver} is loaded, and its libraries are missing ({error})",
        "Install the libraries of the same version",
    )


def _too_old_gpus(gpus: tuple[Gpu, ...]) -> Trouble | None:
    """Where none can do what a run needs. Of several kinds, the user chooses by CUDA_VISIBLE_DEVICES."""
    if not gpus or any(gpu.capability >= LEAST_CAPABILITY for gpu in gpus):
        return None
    major, minor = gpus[0].capability
    return Trouble(
        f"the GPU {gpus[0].name} has compute capability {major}.{minor}, and flash-attn and bfloat16 need "
        f"{LEAST_CAPABILITY[0]}.{LEAST_CAPABILITY[1]}",
        "Use an Ampere GPU or a newer one",
    )


def _gpus(machine: Machine) -> str:
    gpus = machine.driver.gpus if isinstance(machine.driver, Driver) else ()
    if not gpus:
        return "an NVIDIA GPU"
    return f"{len(gpus)} NVIDIA GPU{'s' * (len(gpus) > 1)} ({', '.join(sorted({gpu.name for gpu in gpus}))})"
