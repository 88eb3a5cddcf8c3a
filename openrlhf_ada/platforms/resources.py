"""How many Ray slots a command line needs. OpenRLHF asks for placement groups and waits for ever if there are none."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

logger = logging.getLogger(__name__)

CONTROLLER_CPUS = 4
"""CPU slots besides one per GPU slot: the trainer, the event queue, and the asynchronous trainer's helpers."""

POLL_S = 1.0


class MissingResourcesError(RuntimeError):
    """The cluster has fewer slots than the flags ask for."""


@dataclass(frozen=True, slots=True)
class Slots:
    """Ray "GPU" slots by role. Every slot also takes one Ray "CPU"."""

    by_role: dict[str, int]

    @property
    def gpus(self) -> int:
        return sum(self.by_role.values())

    @property
    def cpus(self) -> int:
        return self.gpus + CONTROLLER_CPUS

    def describe(self) -> str:
        return " + ".join(f"{count} {role}" for role, count in self.by_role.items())

    def check(self, total: dict[str, Any], *, free: dict[str, Any]) -> None:
        """Raise MissingResourcesError, naming what is missing, if Ray's `total` is not enough.

        If only `free` is not, other jobs hold the rest and the run waits for them: a warning says so.
        """
        missing = self._missing(total, "present")
        if missing:
            raise MissingResourcesError(
                f"the Ray cluster is too small: {'; '.join(missing)}. The flags ask for {self.describe()}. Lower "
                f"--vllm.num_engines or --<model>.num_gpus_per_node, share (--train.colocate_all or "
                f"--train.colocate_actor_ref), or add nodes."
            )
        held = self._missing(free, "free")
        if held:
            logger.warning("other jobs hold slots of this Ray cluster: %s. Waiting for them", "; ".join(held))

    def await_in(self, total: Callable[[], dict[str, Any]], *, seconds: float) -> None:
        """Return when `total` is enough, or after so many seconds: nodes of a cluster join one after the other."""
        deadline = time.monotonic() + seconds
        last_noted = ""
        while (missing := "; ".join(self._missing(total(), "present"))) and time.monotonic() < deadline:
            if missing != last_noted:
                logger.warning("waiting for nodes to join the Ray cluster: %s", missing)
                last_noted = missing
            time.sleep(POLL_S)

    def _missing(self, slots: dict[str, Any], word: str) -> list[str]:
        return [
            f"{kind} {needed} needed, {int(slots.get(kind, 0))} {word}"
            for kind, needed in (("GPU", self.gpus), ("CPU", self.gpus + 1))
            if slots.get(kind, 0) < needed
        ]


def required_slots(args: SimpleNamespace) -> Slots:
    """Slots that OpenRLHF's `train` will ask for, following its rules of colocation."""
    actor = args.actor.num_nodes * args.actor.num_gpus_per_node
    engines = (args.vllm.num_engines or 0) * args.vllm.tensor_parallel_size
    reference = args.ref.num_nodes * args.ref.num_gpus_per_node if args.algo.kl.init_coef > 0 else 0
    critic = args.critic.num_nodes * args.critic.num_gpus_per_node if args.critic.model_name_or_path else 0
    reward = 0 if args.reward.remote_url else args.reward.num_nodes * args.reward.num_gpus_per_node
    roles = {"policy": actor}
    if args.train.colocate_all:
        # One placement group holds every model; asynchronous training keeps the engines apart.
        if args.train.async_enable:
            roles["vLLM engine"] = engines
        if critic and args.train.colocate_critic_reward:
            roles["critic and reward"] = critic
        return Slots(roles)
    roles["vLLM engine"] = engines
    if not args.train.colocate_actor_ref:
        roles["reference"] = reference
    if critic and args.train.colocate_critic_reward:
        roles["critic and reward"] = critic
    else:
        roles |= {"critic": critic, "reward model": reward}
    return Slots({role: count for role, count in roles.items() if count})


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
