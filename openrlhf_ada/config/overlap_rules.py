"""--ada_overlap: where gradients that are computed before all samples are there are those of the whole step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.loss_rules import averages_over_tokens
from openrlhf_ada.config.settings import Settings
from openrlhf_ada.config.weight_rules import shares_gpus
from openrlhf_ada.core.advantages import WHITENED
from openrlhf_ada.core.batches import BatchPlan

STAGES = (2, 3)
"""Of ZeRO: whose optimizers let an accumulated gradient be scaled."""

Refusal = tuple[str, object, str, str]
"""Flag, value, rule, what to do: see ConfigError."""


def groups_of_a_part(host: SimpleNamespace, plan: BatchPlan, policy_processes: int) -> int:
    """The fewest groups of which every process of every model gets equally many full micro-batches."""
    trained = host.train.micro_batch_size * policy_processes
    passed = plan.micro_batch * plan.processes
    return math.lcm(plan.group_size, trained, passed) // plan.group_size


def check_overlap(host: SimpleNamespace, settings: Settings, plan: BatchPlan, policy_processes: int) -> None:
    """Raises ConfigError. `host`: the host's parsed namespace, nested by dots."""
    for refusals in (_of_the_trainer(host), _of_the_step(host, settings, plan), _of_the_loss(host, settings)):
        for name, value, rule, remedy in refusals:
            raise ConfigError(name, value, rule, remedy)
    part = groups_of_a_part(host, plan, policy_processes)
    if 2 * part > plan.prompts:
        raise ConfigError(
            "--ada_overlap",
            True,
            f"micro-batches for all processes need the groups of {part} prompts, and a step of --rollout.batch_size "
            f"{plan.prompts} has not twice as many: nothing could be trained early",
            f"Use --rollout.batch_size {2 * part} or more, or smaller micro-batches (--train.micro_batch_size, "
            f"--rollout.micro_batch_size)",
        )


def _of_the_trainer(host: SimpleNamespace) -> Iterator[Refusal]:
    leave_out = "Leave one of the two out"
    if host.train.async_enable:
        yield "--train.async_enable", True, "sampling and training overlap there already (--ada_overlap)", leave_out
    shared = "with --ada_overlap policy and engines work at the same time, so they cannot take turns on a GPU"
    if shares_gpus(host):
        yield "--train.colocate_all", True, shared, leave_out
    if host.vllm.enable_sleep:
        yield "--vllm.enable_sleep", True, shared, leave_out
    if host.ds.enable_sleep:
        yield "--ds.enable_sleep", True, shared, leave_out
    if host.ds.zero_stage not in STAGES:
        rule = "--ada_overlap scales accumulated gradients, which DeepSpeed offers with ZeRO stages 2 and 3"
        yield "--ds.zero_stage", host.ds.zero_stage, rule, "Use --ds.zero_stage 2"


def _of_the_step(host: SimpleNamespace, settings: Settings, plan: BatchPlan) -> Iterator[Refusal]:
    total = plan.prompts * plan.group_size
    if plan.train_batch != total:
        yield (
            "--train.batch_size",
            plan.train_batch,
            "--ada_overlap computes gradients before the optimizer steps, so a batch of rollouts can have one step",
            f"Use --train.batch_size {total}, all rollouts of a step",
        )
    if host.train.max_epochs > 1:
        rule = "--ada_overlap trains a group once, before the optimizer steps"
        yield "--train.max_epochs", host.train.max_epochs, rule, "Use 1"
    if host.train.dynamic_batch_enable:
        rule = "it deals all samples of a step out to micro-batches, and --ada_overlap trains some before others exist"
        yield "--train.dynamic_batch_enable", True, rule, "Leave one of the two out"
    if settings.trains_all and (settings.config.mode == "est" or settings.waits):
        rule = "prompts train different numbers of rollouts, and --ada_overlap counts in groups of one size"
        yield "--ada_select", settings.select, rule, "Use --ada_select balanced, or leave --ada_overlap out"
    if host.critic.freezing_steps >= 0:
        rule = "in its first steps OpenRLHF does not train the policy, and --ada_overlap does"
        yield "--critic.freezing_steps", host.critic.freezing_steps, rule, "Leave one of the two out"
    if settings.refills:
        rule = "prompts with one outcome only are replaced at the end, and --ada_overlap has trained them by then"
        yield "--ada_unresolved", "refill", rule, "Use --ada_unresolved keep, or leave --ada_overlap out"


def _of_the_loss(host: SimpleNamespace, settings: Settings) -> Iterator[Refusal]:
    advantage = host.algo.advantage
    if advantage.estimator == "gae":
        rule = "--ada_overlap is for training without a critic, and gae has one"
        yield "--algo.advantage.estimator", "gae", rule, "Use dr_grpo or group_norm, or leave --ada_overlap out"
    if advantage.estimator in WHITENED and not advantage.no_std_norm:
        rule = "advantages are divided by their size over the whole step, which is known only at its end"
        yield "--algo.advantage.estimator", advantage.estimator, rule, "Add --algo.advantage.no_std_norm"
    if host.actor.optim != "adam":
        rule = "this optimizer reads gradients before DeepSpeed scales what --ada_overlap has accumulated"
        yield "--actor.optim", host.actor.optim, rule, "Use adam, or leave --ada_overlap out"
    if host.actor.aux_loss_coef > 1e-8:
        rule = "this loss is not divided by a total of the step, as --ada_overlap needs it"
        yield "--actor.aux_loss_coef", host.actor.aux_loss_coef, rule, "Use 0, or leave --ada_overlap out"
    if averages_over_tokens(settings, host):
        return
    mixed = "it is a mean over tokens and the policy's loss one over samples, which --ada_overlap cannot scale alike"
    remedy = "Use --actor.loss_agg_mode token-mean with --ada_loss host, or leave --ada_overlap out"
    if host.algo.kl.use_loss and host.algo.kl.init_coef > 0:
        yield "--algo.kl.use_loss", True, mixed, remedy
    if host.actor.entropy_coef is not None:
        yield "--actor.entropy_coef", host.actor.entropy_coef, mixed, remedy
