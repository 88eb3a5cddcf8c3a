"""Refuses, before any actor starts, a run whose machines have GPUs that torch cannot use, and OpenRLHF flags that ask
for something that is not there.

Without this, the run would start on the CPU, or its workers would fail minutes later, with the reason in their logs.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.platforms.gpu import VISIBLE, Trouble, trouble
from openrlhf_ada.platforms.resources import MissingResourcesError

logger = logging.getLogger(__name__)

AS_THE_NODE = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Ray hides all GPUs from a task that asks for none, unless this is set."""


def check_machine(args: SimpleNamespace) -> None:
    """For a run on this machine alone; raises MissingResourcesError. `args`: the host's namespace, nested by dots."""
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
    """Raises ConfigError for the first flag that needs a GPU. `args`: the host's namespace, nested by dots."""
    ds, sleeps = args.ds, args.vllm.enable_sleep and args.train.colocate_all
    no_flash, leave_out = "there is no flash-attn", "Leave the flag out"
    attention, sync = ds.attn_implementation, args.vllm.sync_backend
    limits = [
        ("--ds.packing_samples", ds.packing_samples, (False,), no_flash, leave_out),
        ("--train.dynamic_batch_enable", args.train.dynamic_batch_enable, (False,), no_flash, leave_out),
        ("--ds.ring_attn_size", ds.ring_attn_size, (1,), no_flash, leave_out),
        ("--ds.load_in_4bit", ds.load_in_4bit, (False,), "there are no 4-bit kernels", leave_out),
        ("--vllm.enable_sleep", sleeps, (False,), "engines cannot sleep", leave_out),
        ("--ds.attn_implementation", attention, ("sdpa", "eager"), no_flash, "Use --ds.attn_implementation sdpa"),
        ("--vllm.sync_backend", sync, ("gloo",), "weights go through gloo", "Use --vllm.sync_backend gloo"),
    ]
    for flag, value, allowed, reason, remedy in limits:
        if value not in allowed:
            raise ConfigError(flag, value, f"this machine has no GPU, and on a CPU {reason}", remedy)


def check_gpu_limits(args: SimpleNamespace) -> None:
    """Raises ConfigError for the first flag whose package is missing. `args`: the host's namespace, nested by dots."""
    ds = args.ds
    needs = [
        # OpenRLHF imports it at module top, whatever attention is used.
        ("--ds.attn_implementation", ds.attn_implementation, True, "flash_attn", "OpenRLHF needs"),
        ("--ds.ring_attn_size", ds.ring_attn_size, ds.ring_attn_size > 1, "ring_flash_attn", "it needs"),
        ("--ds.load_in_4bit", ds.load_in_4bit, ds.load_in_4bit, "bitsandbytes", "it needs"),
        ("--ds.use_liger_kernel", ds.use_liger_kernel, ds.use_liger_kernel, "liger_kernel", "it needs"),
    ]
    for flag, value, is_used, package, who in needs:
        if is_used and importlib.util.find_spec(package) is None:
            raise ConfigError(
                flag,
                value,
                f"on GPUs {who} the package {package}, which is not installed",
                f"Install {package}; docs/install.md says how to install what every run needs",
            )
