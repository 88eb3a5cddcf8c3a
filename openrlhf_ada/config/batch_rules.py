"""How many rollouts a step trains, and whether batches, micro-batches and processes divide them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

from openrlhf_ada.config.flags import Problem
from openrlhf_ada.config.host_values import as_policy, check_micro_batches, models_in_use, processes_of
from openrlhf_ada.config.settings import Settings
from openrlhf_ada.core.batches import BatchPlan


def batch_plan(host: SimpleNamespace, settings: Settings) -> BatchPlan:
    """The run's batch sizes."""
    return BatchPlan(
        prompts=host.rollout.batch_size,
        group_size=host.rollout.n_samples_per_prompt,
        train_batch=host.train.batch_size,
        micro_batch=host.rollout.micro_batch_size,
        processes=math.lcm(*processes_by_model(host).values()),
        varies=settings.trains_varying,
    )


def processes_by_model(host: SimpleNamespace) -> dict[str, int]:
    """How many processes of each model in use see different data."""
    return {name: processes_of(host, name) for name in models_in_use(host)}


def _varying(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    """What needs to know how many rollouts a step trains."""
    if not s.trains_varying:
        return
    plan = batch_plan(host, s)
    why = "--ada_select all trains as many rollouts as the outcomes ask for"
    least = plan.prompts * plan.group_size
    if least < plan.unit:
        rule = (
            f"{why}, which may be only --rollout.batch_size {plan.prompts} x n {plan.group_size} = {least}, and "
            f"{plan.unit} are the fewest that can be trained by {plan.processes} processes in micro-batches of "
            f"{plan.micro_batch}"
        )
        remedy = f"Use {least} at most; the smaller, the fewer rollouts of a step are left out"
        yield "--train.batch_size", plan.train_batch, rule, remedy
    for name in (name for name in ("actor", "critic") if name in models_in_use(host)):
        scheduler = getattr(host, name).lr_scheduler
        if not scheduler.startswith("constant"):
            rule = f"{why}, so nobody knows when the last update comes"
            yield f"--{name}.lr_scheduler", scheduler, rule, "Use constant_with_warmup"
    if host.train.dynamic_batch_enable:
        rule = f"{why}, and OpenRLHF would train --rollout.batch_size x n of them"
        yield "--train.dynamic_batch_enable", True, rule, "Leave it out"


def _batches(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    """Every kept rollout must be trained: OpenRLHF's loader drops an incomplete last batch without a word.

    A pass-rate critic trains too, with the same batch sizes, on prompts that it deals out itself.
    """
    plan = batch_plan(host, s)
    total = plan.prompts * plan.group_size
    if not plan.fills_batches(plan.prompts):
        rule = (
            f"a step trains --rollout.batch_size {plan.prompts} x n {plan.group_size} = {total} rollouts, and what "
            "does not fill a training batch would be lost"
        )
        yield "--train.batch_size", plan.train_batch, rule, f"Use a divisor of {total}"
    processes = processes_by_model(host)
    if host.train.dynamic_batch_enable:
        yield from _dynamic_batches(host, processes)
        return
    if s.own_critic:
        check_micro_batches(host, "critic")
    if not plan.is_even(plan.prompts):
        yield _uneven(plan, host, processes)


def _uneven(plan: BatchPlan, host: SimpleNamespace, processes: dict[str, int]) -> Problem:
    total = plan.prompts * plan.group_size
    counts = ", ".join(f"{name} {count}" for name, count in processes.items())
    rule = (
        f"the {total} rollouts of a step are not so many full micro-batches of --rollout.micro_batch_size "
        f"{plan.micro_batch} that all processes get equally many ({counts}): one would wait for the others for ever"
    )
    other = next((name for name, count in processes.items() if count != processes["actor"]), None)
    if other is not None and replace(plan, processes=processes["actor"]).is_even(plan.prompts):
        count = getattr(host, other).num_gpus_per_node
        return f"--{other}.num_gpus_per_node", count, *as_policy(host, other, rule)
    remedy = f"Let --rollout.micro_batch_size x {plan.processes} divide {total}"
    return "--rollout.micro_batch_size", plan.micro_batch, rule, remedy


def _dynamic_batches(host: SimpleNamespace, processes: dict[str, int]) -> Iterator[Problem]:
    """OpenRLHF deals samples out among the policy's processes; another model's get whole shares of these."""
    policy, batch = processes["actor"], host.train.batch_size
    if batch % policy:
        rule = (
            f"with --train.dynamic_batch_enable each of the policy's {policy} processes trains {batch // policy} "
            "rollouts of a batch, and the rest would be lost"
        )
        yield "--train.batch_size", batch, rule, f"Use a multiple of {policy}"
    for name, count in processes.items():
        if policy % count:
            rule = (
                f"with --train.dynamic_batch_enable its {count} processes share what is made for the policy's "
                f"{policy}, and would get unequal numbers of micro-batches"
            )
            gpus, remedy = getattr(host, name).num_gpus_per_node, f"Use a number of processes that divides {policy}"
            yield f"--{name}.num_gpus_per_node", gpus, rule, remedy


BATCH_RULES = (_varying, _batches)
"""Of the adaptive modes."""
