"""How the policy's weights can reach the engines, and which of OpenRLHF's flags that rules out."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.settings import Settings

BACKENDS = ("nccl", "gloo")

EXPERTS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
"""Where a model's config.json says how many experts a layer has: the names that vLLM reads."""


def shares_gpus(host: SimpleNamespace) -> bool:
    """Policy and engines lie on the same GPUs."""
    return host.train.colocate_all and not host.train.async_enable


def goes_over_ipc(host: SimpleNamespace) -> bool:
    """Weights go through GPU memory that policy and engines share (CUDA IPC)."""
    return host.vllm.sync_backend == "nccl" and shares_gpus(host)


def has_experts(config: Mapping[str, Any]) -> bool:
    """Is a model a mixture of experts? `config`: its config.json."""
    text: Any = config.get("text_config") or config
    # Models whose layers differ say it per layer.
    sections: list[Any] = [text, *(text.get("block_configs") or [])]
    return any(section.get(name) for section in sections for name in EXPERTS)


def check_weights(settings: Settings, host: SimpleNamespace) -> None:
    """Raises ConfigError."""
    if host.vllm.sync_backend not in BACKENDS:
        raise ConfigError(
            "--vllm.sync_backend", host.vllm.sync_backend, "weights travel by nccl or gloo", "Use nccl on GPUs"
        )
    if host.vllm.sync_with_ray:
        raise ConfigError(
            "--vllm.sync_with_ray", True, "weights are sent by a process group of our own, without Ray", "Leave it out"
        )
    if host.train.async_enable and host.train.partial_rollout_enable and host.vllm.enable_prefix_caching:
        raise ConfigError(
            "--vllm.enable_prefix_caching",
            True,
            "with --train.partial_rollout_enable weights change while rollouts are running, which would go on with a "
            "cache that the old weights computed",
            "Leave one of the two out",
        )
    if host.ds.param_dtype == "fp16":
        raise ConfigError(
            "--ds.param_dtype",
            "fp16",
            "OpenRLHF's engines compute in bfloat16, and would round the policy's weights",
            "Leave it out",
        )
    if host.ds.lora.rank > 0 and host.ds.load_in_4bit:
        raise ConfigError(
            "--ds.load_in_4bit",
            True,
            "engines get the weights with the adapters of --ds.lora.rank merged in, and 4-bit weights cannot hold "
            "what an adapter adds",
            "Leave it out",
        )
    if settings.logprob_stop < settings.logprob_warn:
        raise ConfigError(
            "--ada_logprob_stop",
            settings.logprob_stop,
            f"a run would end before anybody is warned (--ada_logprob_warn {settings.logprob_warn:g})",
            "Use a larger one",
        )
