"""OpenRLHF's rollout actor: one vLLM engine, and the executor that asks for rewards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from openrlhf.trainer.ray import vllm_engine

from openrlhf_ada.host.classes import substituted, unwrap_ray_class


class HostRolloutActor(unwrap_ray_class(vllm_engine.RolloutRayActor)):
    """OpenRLHF's, with a place to act before vLLM starts. On a CPU it has the CPU platform's settings."""

    def prepare_environment(self) -> None:
        """Called when OpenRLHF has set vLLM's environment variables. To be overridden."""

    def _configure_vllm_env(self, *args: Any, **kwargs: Any) -> None:
        """The constructor calls it right before it starts vLLM, which reads its environment once.

        Contract: test_openrlhf_objects.test_every_override_overrides_something
        """
        super()._configure_vllm_env(*args, **kwargs)
        self.prepare_environment()


def replace_rewards(executor: Any, wrap: Callable[[Any], Any]) -> None:
    """Put `wrap(function)` in place of both ways in which OpenRLHF's executor asks for a reward.

    It logs why a reward failed, and goes on without: the executor offers no other place to learn the reason. Agents of
    users may have neither.
    Contract: test_openrlhf_objects.test_executor_has_the_rewards_that_are_replaced
    """
    for name in ("reward_func", "_fetch_rewards_via_http"):
        function = getattr(executor, name, None)
        if function is not None:
            setattr(executor, name, wrap(function))


def create_engines(actor: Any, *args: Any, **kwargs: Any) -> list[Any]:
    """OpenRLHF's `create_vllm_engines(*args, **kwargs)`, of this Ray-wrapped actor.

    Contract: test_openrlhf_objects.test_names_that_training_substitutes_are_the_hosts
    """
    with substituted(vllm_engine, RolloutRayActor=actor):
        return vllm_engine.create_vllm_engines(*args, **kwargs)
