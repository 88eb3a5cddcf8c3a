"""What OpenRLHF's flags come to: models, processes and batches; and which of their values are wrong by themselves.

`host` is everywhere OpenRLHF's parsed namespace, nested by dots (`host.rollout.n_samples_per_prompt`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import attrgetter
from types import SimpleNamespace

from openrlhf_ada.config.flags import Problem, is_within, said_interval
from openrlhf_ada.config.settings import Settings
from openrlhf_ada.core.batches import BatchPlan


def models_in_use(host: SimpleNamespace) -> list[str]:
    """Models that train or compute in micro-batches, by the section of their flags.

    A reward model is asked while sampling, one answer at a time: it has no micro-batches.
    """
    used = {"actor": True, "critic": host.algo.advantage.estimator == "gae", "ref": host.algo.kl.init_coef > 0}
    return [name for name, is_used in used.items() if is_used]


def scored_by_model(host: SimpleNamespace) -> bool:
    """Does OpenRLHF start its reward model? Not where a function, a server or an agent gives rewards."""
    elsewhere = host.reward.remote_url or host.train.agent_func_path
    return host.reward.model_name_or_path is not None and not elsewhere


def shares_gpus(host: SimpleNamespace) -> bool:
    """Policy and engines lie on the same GPUs."""
    return host.train.colocate_all and not host.train.async_enable


def gpus_of(host: SimpleNamespace, name: str) -> int:
    """Of a model, on all nodes."""
    return getattr(host, name).num_nodes * getattr(host, name).num_gpus_per_node


def processes_of(host: SimpleNamespace, name: str) -> int:
    """How many processes of a model see different data."""
    return max(gpus_of(host, name) // (host.ds.ring_attn_size * host.ds.tensor_parallel_size), 1)


def batch_plan(host: SimpleNamespace, settings: Settings) -> BatchPlan:
    """The run's batch sizes."""
    return BatchPlan(
        prompts=host.rollout.batch_size,
        group_size=host.rollout.n_samples_per_prompt,
        train_batch=host.train.batch_size,
        micro_batch=host.rollout.micro_batch_size,
        processes=math.lcm(*(processes_of(host, name) for name in models_in_use(host))),
        varies=settings.trains_varying,
    )


_WITHIN = {
    "[1, inf)": (
        *("rollout.batch_size", "rollout.micro_batch_size", "rollout.n_samples_per_prompt", "rollout.max_new_tokens"),
        *("train.batch_size", "train.micro_batch_size", "train.num_episodes", "train.max_epochs"),
        *("train.max_tokens_per_gpu", "rollout.max_tokens_per_gpu", "data.max_len", "data.max_samples"),
        *("eval.n_samples_per_prompt", "vllm.tensor_parallel_size", "ds.ring_attn_size", "ds.tensor_parallel_size"),
        *(f"{model}.num_nodes" for model in ("actor", "critic", "ref", "reward")),
        *(f"{model}.num_gpus_per_node" for model in ("actor", "critic", "ref", "reward")),
    ),
    "(0, inf)": ("rollout.temperature",),
    "(0, 1]": ("rollout.top_p", "vllm.gpu_memory_utilization"),
    "[0, inf)": ("train.seed", "eval.temperature"),
    "[0, 3]": ("ds.zero_stage",),
}
"""Flags by the interval of their values."""

_EVERY = ("eval.steps", "ckpt.save_steps", "logger.logging_steps")
"""Numbers of steps; -1 is never."""


def wrong_values(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    """Which OpenRLHF accepts; it fails minutes later, or goes on without the template that has no {}."""
    for interval, names in _WITHIN.items():
        for name in names:
            value = attrgetter(name)(host)
            if value is not None and not is_within(value, interval):
                yield f"--{name}", value, said_interval(interval), f"Give such a number to --{name}"
    for name in _EVERY:
        value = attrgetter(name)(host)
        if value == 0 or value < -1:
            yield f"--{name}", value, "it is a number of steps", "Use 1 or more, or -1 for never"
    template, length, most = host.data.input_template, host.reward.overlong_buffer_len, host.rollout.max_new_tokens
    if template and "{}" not in template:
        yield "--data.input_template", template, "it has no {}, where the prompt goes", "Add it"
    if template and host.data.apply_chat_template:
        rule = "with --data.apply_chat_template the prompt is a message of the user, and this is not read"
        yield "--data.input_template", template, rule, "Leave one of the two out"
    if length is not None and not 0 < length <= (most or host.data.max_len):
        rule = f"it is the end of an answer, which has --rollout.max_new_tokens {most} at most"
        yield "--reward.overlong_buffer_len", length, rule, "Use a length between 1 and that"
    if host.ds.enable_sleep and host.ds.zero_stage == 0:
        rule = "DeepSpeed moves its states out of the GPU from ZeRO stage 1 on"
        yield "--ds.enable_sleep", True, rule, "Use --ds.zero_stage 2"
