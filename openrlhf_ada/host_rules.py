"""Which combinations of our flags with OpenRLHF's have no meaning or would lose rollouts, checked before any start.

`host` is everywhere the host's parsed namespace, nested by dots (`host.rollout.n_samples_per_prompt`).
"""

from __future__ import annotations

import math
from dataclasses import fields
from types import SimpleNamespace

from openrlhf_ada.config import AdaConfig, ConfigError
from openrlhf_ada.core.batches import BatchPlan
from openrlhf_ada.core.grouping import POOL_ESTIMATORS

GROUP_ESTIMATORS = ("group_norm", "dr_grpo", "rloo", "reinforce_baseline")
"""Host estimators whose baseline is the prompt's group: they need at least two samples of a prompt."""


def check_against_host(config: AdaConfig, host: SimpleNamespace) -> None:
    """Refuse combinations of our flags with the host's that have no meaning; raises ConfigError.

    `host` is the host's parsed namespace, nested by dots (`host.rollout.n_samples_per_prompt`).
    """
    n = host.rollout.n_samples_per_prompt
    estimator = host.algo.advantage.estimator
    if n < 2 and estimator in GROUP_ESTIMATORS:
        raise ConfigError(
            "--rollout.n_samples_per_prompt",
            n,
            f"--algo.advantage.estimator {estimator} compares the samples of one prompt and needs at least 2",
            "Use --rollout.n_samples_per_prompt 4",
        )
    if config.mode == "off":
        return
    if n < 2:
        raise ConfigError(
            "--rollout.n_samples_per_prompt",
            n,
            f"--ada_mode {config.mode} trains a group that shows more than one outcome",
            "Use --rollout.n_samples_per_prompt 4",
        )
    if config.max_samples < n:
        raise ConfigError(
            "--ada_max_samples",
            config.max_samples,
            f"a group of --rollout.n_samples_per_prompt {n} samples is trained, so N_max must be at least {n}",
            f"Use --ada_max_samples {4 * n} (four times the group is a good start)",
        )
    k_pos, k_neg = config.exit_counts(n)
    if k_pos + k_neg > config.max_samples:
        raise ConfigError(
            "--ada_max_samples",
            config.max_samples,
            f"exit {config.exit!r} waits for {k_pos} positives and {k_neg} negatives, {k_pos + k_neg} in all",
            f"Use --ada_max_samples {4 * (k_pos + k_neg)} or lower --ada_k_pos / --ada_k_neg",
        )
    _check_host_modes(config, host, estimator)
    _check_batches(host)


def _check_host_modes(config: AdaConfig, host: SimpleNamespace, estimator: str) -> None:
    if estimator not in POOL_ESTIMATORS:
        raise ConfigError(
            "--algo.advantage.estimator",
            estimator,
            f"it takes its baseline from the whole batch, which adaptive sampling (--ada_mode {config.mode}) biases",
            f"Use one of {', '.join(POOL_ESTIMATORS)}",
        )
    if host.algo.dynamic_filtering_enable:
        raise ConfigError(
            "--algo.dynamic_filtering_enable",
            True,
            f"--ada_mode {config.mode} already decides what happens to prompts without signal",
            "Leave out one of the two",
        )
    if host.train.async_enable:
        raise ConfigError(
            "--train.async_enable",
            True,
            f"--ada_mode {config.mode} runs in the synchronous trainer only",
            "Leave out --train.async_enable, or use --ada_mode off",
        )
    if not host.reward.remote_url and not host.train.agent_func_path:
        raise ConfigError(
            "--reward.remote_url",
            None,
            f"--ada_mode {config.mode} decides on verdicts while sampling, so they must come with the rollouts",
            "Give a reward file or URL (--reward.remote_url), or an agent (--train.agent_func_path)",
        )


_RECORD_FLAGS = ("run_dir", "log_texts", "eval_ends")
_IN_EVERY_MODE = (*_RECORD_FLAGS, "mode", "verbose")


def without_effect(config: AdaConfig, host: SimpleNamespace) -> str | None:
    """A warning if some of our flags were set and change nothing in this run, else None."""
    changed = [f.name for f in fields(config) if getattr(config, f.name) != f.default]
    ignored = [name for name in changed if config.mode == "off" and name not in _IN_EVERY_MODE]
    reason = "--ada_mode is off (adaptive sampling: --ada_mode seq)"
    if host.train.async_enable:
        ignored += [name for name in changed if name in _RECORD_FLAGS]
        reason = "--train.async_enable runs OpenRLHF's own trainer, without our record"
    if not ignored:
        return None
    return f"{', '.join(f'--ada_{name}' for name in ignored)}: without effect, since {reason}"


def batch_plan(host: SimpleNamespace) -> BatchPlan:
    """The run's batch sizes."""
    return BatchPlan(
        prompts=host.rollout.batch_size,
        group_size=host.rollout.n_samples_per_prompt,
        train_batch=host.train.batch_size,
        micro_batch=host.rollout.micro_batch_size,
        processes=math.lcm(*processes_by_model(host).values()),
    )


def processes_by_model(host: SimpleNamespace) -> dict[str, int]:
    """For every model in use, how many of its processes see different data. Keys are the flags' prefixes.

    A reward model has no part in an adaptive mode, whose verdicts come with the rollouts.
    """
    used = {
        "actor": True,
        "critic": host.algo.advantage.estimator == "gae",
        "ref": host.algo.kl.init_coef > 0,
    }
    shared = host.ds.ring_attn_size * host.ds.tensor_parallel_size
    groups = {name: getattr(host, name) for name, is_used in used.items() if is_used}
    return {name: max(group.num_nodes * group.num_gpus_per_node // shared, 1) for name, group in groups.items()}


def _check_batches(host: SimpleNamespace) -> None:
    """Every kept rollout must be trained: the host's loader drops an incomplete last batch without a word."""
    plan = batch_plan(host)
    total = plan.prompts * plan.group_size
    if not plan.fills_batches(plan.prompts):
        raise ConfigError(
            "--train.batch_size",
            plan.train_batch,
            f"a step trains --rollout.batch_size {plan.prompts} x n {plan.group_size} = {total} rollouts, and what "
            f"does not fill a training batch would be lost",
            f"Use a divisor of {total}",
        )
    if host.train.dynamic_batch_enable:
        return
    processes = processes_by_model(host)
    for name in processes.keys() & {"actor", "critic"}:
        count = processes[name]
        if plan.train_batch % (host.train.micro_batch_size * count):
            raise ConfigError(
                "--train.micro_batch_size",
                host.train.micro_batch_size,
                f"times the {count} processes of the {name} it must divide --train.batch_size {plan.train_batch}",
                f"Use a divisor of {plan.train_batch} / {count}",
            )
    if not plan.is_even(plan.prompts):
        raise ConfigError(
            "--rollout.micro_batch_size",
            plan.micro_batch,
            f"the {total} rollouts of a step are not so many full micro-batches that all processes get equally many "
            f"({_list(processes)}): one would wait for the others for ever",
            f"Let --rollout.micro_batch_size x {plan.processes} divide {total}",
        )


def _list(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
