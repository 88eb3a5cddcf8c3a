"""OpenRLHF's rollout actor: one vLLM engine, and the executor that asks for rewards.

Contract: test_engine_batch.test_vllms_graphs_end_at_half_of_an_h100s_slots
Contract: test_engine_batch.test_engines_compute_as_much_at_a_time_as_vllms_llm_class
Contract: test_openrlhf_objects.test_every_override_overrides_something
Contract: test_openrlhf_objects.test_executor_has_the_rewards_that_are_replaced
Contract: test_openrlhf_objects.test_names_that_training_substitutes_are_the_hosts
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import vllm
from openrlhf.trainer.ray import vllm_engine
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM

from openrlhf_ada.host.classes import substituted, unwrap_ray_class


class _FullBatchEngine:
    """In place of `vllm.AsyncLLMEngine`, whose 128 requests and 2,048 tokens a step leave most of a GPU idle. vLLM has
    figures by device for its class LLM. What the arguments name themselves stays."""

    @staticmethod
    def from_engine_args(engine_args: AsyncEngineArgs) -> AsyncLLM:
        # On a CPU a step takes as long as all of its requests do, and answers are the same with fewer at a time.
        context = UsageContext.ENGINE_CONTEXT if current_platform.is_cpu() else UsageContext.LLM_CLASS
        if not current_platform.is_cpu():
            _capture_all_slots(engine_args)
        return AsyncLLM.from_engine_args(engine_args, usage_context=context)


def _capture_all_slots(engine_args: AsyncEngineArgs) -> None:
    """Let CUDA graphs cover all requests that decode at a time, up to 1,024. Drafts have sizes of their own."""
    slots = engine_args.max_num_seqs or engine_args.get_batch_defaults(1)[1][UsageContext.LLM_CLASS]
    given = (engine_args, engine_args.compilation_config)
    named = [size for of in given for size in (of.cudagraph_capture_sizes, of.max_cudagraph_capture_size)]
    if slots > 512 and not any([*named, engine_args.speculative_config, engine_args.spec_method]):
        engine_args.max_cudagraph_capture_size = min(slots, 1024)


class HostRolloutActor(unwrap_ray_class(vllm_engine.RolloutRayActor)):
    """OpenRLHF's, with a place to act before vLLM starts. On a CPU it has the CPU platform's settings."""

    async def __init__(self, *args: Any, **kwargs: Any) -> None:
        """vLLM's statistics, which nobody reads, cost the actor's process as much as the tokens themselves."""
        with substituted(vllm, AsyncLLMEngine=_FullBatchEngine):
            await super().__init__(*args, **{"disable_log_stats": True} | kwargs)

    def prepare_environment(self) -> None:
        """Called when OpenRLHF has set vLLM's environment variables. To be overridden."""

    def _configure_vllm_env(self, *args: Any, **kwargs: Any) -> None:
        """The constructor calls it right before it starts vLLM, which reads its environment once."""
        super()._configure_vllm_env(*args, **kwargs)
        self.prepare_environment()


def replace_rewards(executor: Any, wrap: Callable[[Any], Any]) -> None:
    """Put `wrap(function)` in place of both ways in which OpenRLHF's executor asks for a reward: it logs why one
    failed, and goes on without. Agents of users may have neither."""
    for name in ("reward_func", "_fetch_rewards_via_http"):
        function = getattr(executor, name, None)
        if function is not None:
            setattr(executor, name, wrap(function))


def create_engines(actor: Any, *args: Any, **kwargs: Any) -> list[Any]:
    """OpenRLHF's `create_vllm_engines(*args, **kwargs)`, of this Ray-wrapped actor."""
    with substituted(vllm_engine, RolloutRayActor=actor):
        return vllm_engine.create_vllm_engines(*args, **kwargs)
