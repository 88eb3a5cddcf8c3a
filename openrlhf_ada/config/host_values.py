"""Values of OpenRLHF's flags that it accepts, and fails on minutes later with an error that names no flag.

Checked in every mode.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from openrlhf_ada.config.flags import ConfigError, is_within, said_interval

_WITHIN = {
    "[1, inf)": (
        *("rollout.batch_size", "rollout.micro_batch_size", "rollout.n_samples_per_prompt", "rollout.max_new_tokens"),
        *("train.batch_size", "train.micro_batch_size", "train.num_episodes", "train.max_epochs"),
        *("train.max_tokens_per_gpu", "rollout.max_tokens_per_gpu", "data.max_len", "data.max_samples"),
        *("eval.n_samples_per_prompt", "vllm.tensor_parallel_size", "ds.ring_attn_size", "ds.tensor_parallel_size"),
        *(
            f"{model}.{count}"
            for model in ("actor", "critic", "ref", "reward")
            for count in ("num_nodes", "num_gpus_per_node")
        ),
    ),
    "(0, inf)": ("rollout.temperature",),
    "(0, 1]": ("rollout.top_p", "vllm.gpu_memory_utilization"),
    "[0, inf)": ("train.seed", "eval.temperature"),
    "[0, 3]": ("ds.zero_stage",),
}
"""Flags by the interval of their values."""

_EVERY = ("eval.steps", "ckpt.save_steps", "logger.logging_steps")
"""Numbers of steps; -1 is never."""


def check_values(host: SimpleNamespace) -> None:
    """Raises ConfigError for the first value that breaks a rule. `host`: OpenRLHF's namespace, nested by dots."""
    for interval, names in _WITHIN.items():
        for name in names:
            value = _value(host, name)
            if value is not None and not is_within(value, interval):
                raise ConfigError(f"--{name}", value, said_interval(interval), f"Give such a number to --{name}")
    for name in _EVERY:
        value = _value(host, name)
        if value == 0 or value < -1:
            raise ConfigError(f"--{name}", value, "it is a number of steps", "Use 1 or more, or -1 for never")
    _check_template(host)
    _check_overlong(host)
    _check_colocation(host)
    for name in models_in_use(host):
        check_shared_samples(host, name)
    for name in (*models_in_use(host), *(["reward"] if scored_by_model(host) else [])):
        check_micro_batches(host, name)
    if host.ds.enable_sleep and host.ds.zero_stage == 0:
        raise ConfigError(
            "--ds.enable_sleep", True, "DeepSpeed moves its states out of the GPU from ZeRO stage 1 on", "Use stage 2"
        )


def _check_template(host: SimpleNamespace) -> None:
    """OpenRLHF would go on without it."""
    template = host.data.input_template
    if template and "{}" not in template:
        raise ConfigError("--data.input_template", template, "it has no {}, where the prompt goes", "Add it")
    if template and host.data.apply_chat_template:
        rule = "with --data.apply_chat_template the prompt is a message of the user, and this is not read"
        raise ConfigError("--data.input_template", template, rule, "Leave one of the two out")


def _check_overlong(host: SimpleNamespace) -> None:
    length = host.reward.overlong_buffer_len
    if length is not None and not 0 < length <= (host.rollout.max_new_tokens or host.data.max_len):
        raise ConfigError(
            "--reward.overlong_buffer_len",
            length,
            f"it is the end of an answer, which has --rollout.max_new_tokens {host.rollout.max_new_tokens} at most",
            "Use a length between 1 and that",
        )


def _check_colocation(host: SimpleNamespace) -> None:
    """Models that share GPUs must have equally many."""
    actor = _gpus(host.actor)
    train = host.train
    if (train.colocate_actor_ref or train.colocate_all) and host.algo.kl.init_coef > 0:
        check_equal("--ref.num_gpus_per_node", host.ref, host.actor, "the policy (--actor...)")
    workers = host.vllm.tensor_parallel_size
    engines = (host.vllm.num_engines or 0) * workers
    if shares_gpus(host) and engines != actor:
        rule = f"the policy's {actor} GPUs are shared with {engines} of the engines (--vllm.num_engines x size)"
        fits = actor % workers == 0
        use = f"Use --vllm.num_engines {actor // workers}" if fits else "Let --vllm.tensor_parallel_size divide them"
        raise ConfigError("--train.colocate_all", True, rule, f"{use}, or leave it out")
    if train.colocate_critic_reward and host.algo.advantage.estimator == "gae":
        check_equal("--reward.num_gpus_per_node", host.reward, host.critic, "the critic (--critic...)")


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


def goes_over_ipc(host: SimpleNamespace) -> bool:
    """Weights go through GPU memory that policy and engines share (CUDA IPC)."""
    return host.vllm.sync_backend == "nccl" and shares_gpus(host)


def processes_of(host: SimpleNamespace, name: str) -> int:
    """How many processes of a model see different data."""
    return max(_gpus(getattr(host, name)) // (host.ds.ring_attn_size * host.ds.tensor_parallel_size), 1)


def check_micro_batches(host: SimpleNamespace, name: str) -> None:
    """DeepSpeed wants this of every model, also of one that only computes. Raises ConfigError."""
    batch, micro, count = host.train.batch_size, host.train.micro_batch_size, processes_of(host, name)
    trains_by_tokens = name in ("actor", "critic") and host.train.dynamic_batch_enable
    if trains_by_tokens or batch % (micro * count) == 0:
        return
    if count != processes_of(host, "actor"):
        rule = f"its {count} processes x --train.micro_batch_size {micro} must divide --train.batch_size {batch}"
        raise ConfigError(
            f"--{name}.num_gpus_per_node", getattr(host, name).num_gpus_per_node, *as_policy(host, name, rule)
        )
    raise ConfigError(
        "--train.micro_batch_size",
        micro,
        f"times the {count} processes of the {name} it must divide --train.batch_size {batch}",
        f"Use a divisor of {batch} / {count}",
    )


WITHOUT = {
    "ref": ", or --algo.kl.init_coef 0 to train without a KL penalty, which is what needs the reference model",
    "critic": ", or an --algo.advantage.estimator without a critic, such as dr_grpo",
}


def as_policy(host: SimpleNamespace, name: str, rule: str) -> tuple[str, str]:
    """(rule, remedy) where a model has another number of processes than the policy, perhaps OpenRLHF's default."""
    policy = host.actor.num_gpus_per_node
    remedy = f"Use --{name}.num_gpus_per_node {policy}, as the policy has{WITHOUT.get(name, '')}"
    return f"{rule}, and the policy has {processes_of(host, 'actor')}", remedy


def check_shared_samples(host: SimpleNamespace, name: str) -> None:
    """Ring attention and tensor parallelism: so many processes of a model have the same samples."""
    together, group = host.ds.ring_attn_size * host.ds.tensor_parallel_size, getattr(host, name)
    if _gpus(group) % together:
        raise ConfigError(
            f"--{name}.num_gpus_per_node",
            group.num_gpus_per_node,
            f"{together} processes work on the same samples (--ds.ring_attn_size x --ds.tensor_parallel_size), so "
            f"GPUs come in groups of that",
            f"Use a multiple of {together}",
        )


def check_equal(flag: str, group: SimpleNamespace, other: SimpleNamespace, name: str) -> None:
    """Raises ConfigError unless two models that share GPUs have the same nodes and GPUs."""
    if (group.num_nodes, group.num_gpus_per_node) != (other.num_nodes, other.num_gpus_per_node):
        raise ConfigError(
            flag,
            group.num_gpus_per_node,
            f"it shares its GPUs with {name}, which has {other.num_nodes} x {other.num_gpus_per_node}",
            "Give both the same nodes and GPUs, or leave out the --train.colocate... flag",
        )


def _gpus(group: SimpleNamespace) -> int:
    return group.num_nodes * group.num_gpus_per_node


def _value(host: SimpleNamespace, name: str) -> Any:
    section, field_name = name.split(".")
    return getattr(getattr(host, section), field_name)
