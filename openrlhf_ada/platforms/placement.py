"""On which node of the cluster an actor runs."""

from __future__ import annotations

from typing import Any


def on_this_node() -> dict[str, Any]:
    """Options for actors that a run cannot do without and that take no GPU, where this node has room.

    Beside the driver, with which the run ends anyway, the loss of an engine's node cannot take them along. Ray itself
    would spread them.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    node = ray.get_runtime_context().get_node_id()
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True)}
