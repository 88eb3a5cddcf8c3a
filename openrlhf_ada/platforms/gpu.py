"""Why a run cannot use a GPU that this machine has, and refusals before any actor starts. Without a GPU there is
nothing to say: then the CPU is meant."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_ada.config.flags import ConfigError, raise_all
from openrlhf_ada.config.installed import SETUP_FOR_GPUS
from openrlhf_ada.host import engine_options
from openrlhf_ada.platforms.nvml import Driver, Gpu, NoNvmlError, NvmlError, read_driver
from openrlhf_ada.platforms.resources import MissingResourcesError

logger = logging.getLogger(__name__)

VISIBLE = "CUDA_VISIBLE_DEVICES"
ARCHITECTURES = "TORCH_CUDA_ARCH_LIST"

LEAST_CAPABILITY = (8, 0)
"""Of flash-attn and bfloat16."""

AS_THE_NODE = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Ray hides all GPUs from a task that asks for none, unless this is set."""


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


def trouble() -> Trouble | None:
    """What keeps a run from a GPU of this machine; None where nothing does, or there is none to have.

    Torch is imported only where something shows a GPU.
    """
    visible = os.environ.get(VISIBLE)
    if visible is not None and hides_all(visible):
        # The user's wish, or Slurm's.
        return None
    driver = look_at_driver()
    if driver is None:
        return None
    return explain(driver, look_at_torch(), visible) or unreadable_architectures(os.environ.get(ARCHITECTURES, ""))


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


def look_at_driver(root: Path = Path("/"), read: Callable[[], Driver] = read_driver) -> Driver | NvmlError | None:
    """What it says, or why it says nothing; None where nothing shows a GPU. `root`: of the file system."""
    has_module = (root / "proc/driver/nvidia/version").is_file()
    try:
        driver = read()
    except NoNvmlError as error:
        return error if has_module else None
    except NvmlError as error:
        return error
    return driver if driver.gpus or has_module else None


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


def explain(driver: Driver | NvmlError, torch: Torch, visible: str | None = None) -> Trouble | None:
    """For a machine that shows a GPU: what is wrong, and what to do; None where nothing is.

    `visible`: the value of CUDA_VISIBLE_DEVICES, None where it is not set.
    """
    if not torch.reason:
        return _too_old_gpus(driver.gpus) if isinstance(driver, Driver) else None
    if isinstance(driver, NvmlError):
        found = f"NVIDIA's driver, which does not answer ({driver})"
    else:
        names = ", ".join(sorted({gpu.name for gpu in driver.gpus})) or f"driver {driver.version}"
        found = f"{len(driver.gpus)} NVIDIA GPU{'s' * (len(driver.gpus) != 1)} ({names})"
    if not torch.cuda:
        return Trouble(
            f"this machine has {found}, and torch {torch.version} is a build for CPUs",
            f"Install what GPUs need into an environment of its own: {SETUP_FOR_GPUS} in a copy of the source",
            is_cpu_build=True,
        )
    named = "" if visible is None else f" with {VISIBLE}={visible!r}"
    return Trouble(
        f"this machine has {found}, and torch {torch.version}, built for CUDA {torch.cuda}, cannot use them{named}: "
        f"{torch.reason}",
        (f"{VISIBLE} must name GPUs that nvidia-smi -L shows, each once. " if named else "")
        + f"nvidia-smi must answer here, with CUDA {torch.cuda} or newer. In a container: docker run --gpus all ... "
        "(podman: --device nvidia.com/gpu=all). On machines with NVSwitch, nvidia-fabricmanager must run",
    )


def _too_old_gpus(gpus: tuple[Gpu, ...]) -> Trouble | None:
    """Where none can do what a run needs. Of several kinds, the user chooses by CUDA_VISIBLE_DEVICES."""
    if not gpus or any(gpu.capability >= LEAST_CAPABILITY for gpu in gpus):
        return None
    return Trouble(
        f"the GPU {gpus[0].name} has compute capability {'.'.join(map(str, gpus[0].capability))}, and flash-attn and "
        f"bfloat16 need {'.'.join(map(str, LEAST_CAPABILITY))}",
        "Use an Ampere GPU or a newer one",
    )


# -- a run ------------------------------------------------------------------------------------------------------------
#
# Without these checks it would start on the CPU, or its workers would fail minutes later, with the reason in a log.


def check_machine(args: SimpleNamespace) -> None:
    """For a run on this machine alone; raises MissingResourcesError. `args`: OpenRLHF's namespace, nested by dots."""
    found = trouble()
    if found is None:
        return
    if not _cpu_is_meant(args, [found]):
        raise MissingResourcesError(
            f"{found}. To use the CPU all the same, hide the GPUs: {VISIBLE}= openrlhf-ada ..."
        )
    logger.warning("%s. This run uses the CPU", found.what)


def check_nodes(args: SimpleNamespace) -> bool:
    """For a run on the cluster that Ray has joined: each node with GPU slots looks at itself. May a run use its GPUs?

    False where all nodes with GPUs have an environment for CPUs, and the flags are for a CPU. Raises
    MissingResourcesError, which names the nodes.
    """
    import ray

    asked = {
        node["NodeManagerAddress"]: _ask(node["NodeID"])
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("GPU", 0) > 0
    }
    answers = {address: _answer(ref) for address, ref in sorted(asked.items())}
    # Nodes of a cluster mostly have the same trouble: that is said once.
    found: dict[Trouble, list[str]] = {}
    for address, answer in answers.items():
        if answer is not None:
            found.setdefault(answer, []).append(address)
    if not found:
        return True
    text = "; ".join(f"on {', '.join(addresses)}: {answer}" for answer, addresses in found.items())
    if None in answers.values() or not _cpu_is_meant(args, found):
        raise MissingResourcesError(f"{text}. Mend it, or take the node out of the cluster (ray stop)")
    logger.warning("%s. This run uses the CPU", text)
    return False


def _ask(node_id: str) -> Any:
    """Also a node whose slots are all taken."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    on_node = NodeAffinitySchedulingStrategy(node_id, soft=False)
    environment = {"env_vars": AS_THE_NODE}
    return ray.remote(trouble).options(num_cpus=0, scheduling_strategy=on_node, runtime_env=environment).remote()


def _answer(ref: Any) -> Trouble | None:
    import ray
    from ray.exceptions import RayError

    try:
        return ray.get(ref)
    except RayError as error:
        last_line = str(error).strip().splitlines()[-1]
        return Trouble(
            f"it cannot run openrlhf_ada ({last_line})", "Install the same packages on every node of the cluster"
        )


def _cpu_is_meant(args: SimpleNamespace, found: Collection[Trouble]) -> bool:
    """An environment for CPUs with flags for a CPU is meant; everything else is a mistake."""
    if not all(each.is_cpu_build for each in found):
        return False
    try:
        check_cpu_limits(args)
    except ConfigError:
        return False
    return True


def check_cpu_limits(args: SimpleNamespace) -> None:
    """Raises ConfigError for all flags that need a GPU. `args`: OpenRLHF's namespace, nested by dots."""
    ds, sleeps = args.ds, args.vllm.enable_sleep and args.train.colocate_all
    no_flash, leave_out = "there is no flash-attn", "Leave the flag out"
    sets = leave_out if args.ada.device == "cpu" else "Use --ada_device cpu, which sets all that a CPU needs"
    attention, sync = ds.attn_implementation, args.vllm.sync_backend
    limits = [
        ("--ds.attn_implementation", attention, ("sdpa", "eager"), no_flash, sets),
        ("--vllm.sync_backend", sync, ("gloo",), "weights go through gloo", sets),
        ("--ds.packing_samples", ds.packing_samples, (False,), no_flash, leave_out),
        ("--train.dynamic_batch_enable", args.train.dynamic_batch_enable, (False,), no_flash, leave_out),
        ("--ds.ring_attn_size", ds.ring_attn_size, (1,), no_flash, leave_out),
        ("--ds.load_in_4bit", ds.load_in_4bit, (False,), "there are no 4-bit kernels", leave_out),
        ("--vllm.enable_sleep", sleeps, (False,), "engines cannot sleep", leave_out),
    ]
    chosen, gpu_only = engine_options.options_of(args.ada.engine_args), engine_options.reasons("needs_gpu").items()
    limits += [(engine_options.FLAG, name, (), why, "Leave it out") for name, why in gpu_only if name in chosen]
    raise_all(
        (flag, value, f"this machine has no GPU, and on a CPU {reason}", remedy)
        for flag, value, allowed, reason, remedy in limits
        if value not in allowed
    )


def check_gpu_limits(args: SimpleNamespace) -> None:
    """Raises ConfigError for the first flag whose package is missing. `args`: OpenRLHF's namespace, nested by dots."""
    ds = args.ds
    if args.ada.device == "cpu":
        remedy = f"Leave it out, or hide the GPUs: {VISIBLE}= openrlhf-ada ..."
        raise ConfigError("--ada_device", "cpu", "this machine has a GPU, which would be used", remedy)
    needs = [
        # OpenRLHF imports it at module top, whatever attention is used.
        ("--ds.attn_implementation", ds.attn_implementation, True, "flash_attn", "OpenRLHF needs"),
        ("--ds.ring_attn_size", ds.ring_attn_size, ds.ring_attn_size > 1, "ring_flash_attn", "it needs"),
        ("--ds.load_in_4bit", ds.load_in_4bit, ds.load_in_4bit, "bitsandbytes", "it needs"),
        ("--ds.use_liger_kernel", ds.use_liger_kernel, ds.use_liger_kernel, "liger_kernel", "it needs"),
    ]
    for flag, value, is_used, package, who in needs:
        if is_used and importlib.util.find_spec(package) is None:
            rule = f"on GPUs {who} the package {package}, which is not installed"
            raise ConfigError(flag, value, rule, f"Install {package} (docs/install.md)")
