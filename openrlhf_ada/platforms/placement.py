"""On which node of the cluster an actor runs."""

from __future__ import annotations

from typing import Any


def on_this_node(*, takes_cpu: bool = True) -> dict[str, Any]:
    """Options for actors that a run cannot do without and that take no GPU.

    They stay beside the driver, with which the run ends anyway, so that the loss of an engine's node does not take
    them along; Ray would spread them. An actor that takes a processor, which Ray asks for when it starts and does not
    keep, goes elsewhere if this node has none.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    node = ray.get_runtime_context().get_node_id()
    if takes_cpu:
        return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True)}
    # Of an actor that takes none Ray does not heed a soft wish (2.55), and a node has always room for it.
    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}
