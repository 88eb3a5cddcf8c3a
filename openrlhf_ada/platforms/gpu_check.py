"""Refuses a run whose machines have GPUs that torch cannot use, before any actor starts.

Without this, the run would start on the CPU, or its workers would fail one after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.platforms.gpu import VISIBLE, Trouble, trouble
from openrlhf_ada.platforms.limits import check_cpu_limits
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

    nodes = {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes() if _has_slots(node)}
    asked = {address: _ask(node_id) for address, node_id in nodes.items()}
    answers = {address: _answer(ref) for address, ref in sorted(asked.items())}
    found = {address: answer for address, answer in answers.items() if answer is not None}
    if not found:
        return True
    text = _by_node(found)
    if len(found) < len(answers) or not _cpu_is_meant(args, list(found.values())):
        raise MissingResourcesError(f"{text}. Mend it, or take the node out of the cluster (ray stop)")
    logger.warning("%s. This run uses the CPU", text)
    return False


def _by_node(found: Mapping[str, Trouble]) -> str:
    """Nodes of a cluster mostly have the same trouble: that is said once."""
    nodes: dict[Trouble, list[str]] = {}
    for address, answer in found.items():
        nodes.setdefault(answer, []).append(address)
    return "; ".join(f"on {', '.join(addresses)}: {answer}" for answer, addresses in nodes.items())


def _has_slots(node: dict[str, Any]) -> bool:
    return node["Alive"] and node["Resources"].get("GPU", 0) > 0


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


def _cpu_is_meant(args: SimpleNamespace, found: list[Trouble]) -> bool:
    """An environment for CPUs with flags for a CPU is meant; everything else is a mistake."""
    if not all(each.is_cpu_build for each in found):
        return False
    try:
        check_cpu_limits(args)
    except ConfigError:
        return False
    return True
