"""On which node of the cluster an actor runs."""

from __future__ import annotations

from typing import Any


def on_this_node(*, num_cpus: int = 1) -> dict[str, Any]:
    """Options for actors that a run cannot do without and that take no GPU.

    They stay beside the driver, with which the run ends anyway, so that the loss of an engine's node does not take
    them along; Ray would spread them. An actor that takes a processor goes elsewhere if this node has none to give.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    node = ray.get_runtime_context().get_node_id()
    # Of an actor that takes none Ray does not heed a soft wish (2.55), and a node has always room for it.
    return {
        "num_cpus": num_cpus,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=num_cpus > 0),
    }
