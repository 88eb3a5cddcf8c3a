"""Which combinations of our flags with OpenRLHF's have no meaning or would lose rollouts, checked before any start.

`host` is everywhere the host's parsed namespace, nested by dots (`host.rollout.n_samples_per_prompt`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

from openrlhf_ada.config.flags import ConfigError, check_read
from openrlhf_ada.config.host_values import as_policy, check_equal, check_micro_batches, models_in_use, processes_of
from openrlhf_ada.config.loss_rules import check_loss
from openrlhf_ada.config.method_rules import check_settings
from openrlhf_ada.config.score_rules import check_scores
from openrlhf_ada.config.settings import Settings
from openrlhf_ada.config.skip_rules import check_skip_zeros
from openrlhf_ada.config.weight_rules import check_weights
from openrlhf_ada.core.advantages import BASELINES, ESTIMATORS, GROUP_ESTIMATORS
from openrlhf_ada.core.batches import BatchPlan
from openrlhf_ada.core.corrections import CORRECTIONS
from openrlhf_ada.core.pieces import Need


def check_against_host(settings: Settings, host: SimpleNamespace) -> None:
    """Refuse combinations of our flags with the host's that have no meaning; raises ConfigError.

    `host` is the host's parsed namespace, nested by dots (`host.rollout.n_samples_per_prompt`).
    """
    n = settings.group_size
    estimator = settings.advantage
    if n < 2 and estimator in GROUP_ESTIMATORS:
        raise ConfigError(
            "--rollout.n_samples_per_prompt",
            n,
            f"--algo.advantage.estimator {estimator} compares the samples of one prompt and needs at least 2",
            "Use --rollout.n_samples_per_prompt 4",
        )
    check_weights(settings, host)
    check_scores(settings, host)
    if settings.mode == "off":
        check_read(settings.given, "candidates", "choice", "choice_weight")
        check_loss(settings, host)
        return
    _check_host_modes(host, settings)
    check_settings(settings)
    check_loss(settings, host)
    _check_asynchronous(host, settings)
    if settings.engine_restarts:
        _check_engines_can_return(host)
    if settings.reads_critic and estimator == "gae":
        _check_value_is_pass_rate(host)
    if settings.own_critic:
        _check_own_critic(host)
    if settings.reads_critic and host.train.async_enable:
        _check_critic_answers_alone(host)
    _check_pieces_unshaped(host, settings)
    if settings.trains_varying:
        _check_varying(host, settings)
    _check_batches(host, settings)
    if settings.skips_zeros:
        check_skip_zeros(settings, host)


def _check_host_modes(host: SimpleNamespace, settings: Settings) -> None:
    estimator = settings.advantage
    known = [name for name in ESTIMATORS if name != "flash_reinforce" or settings.needs_no_others]
    if estimator not in known:
        raise ConfigError(
            "--algo.advantage.estimator",
            estimator,
            f"it takes its baseline from the whole batch, which adaptive sampling (--ada_mode {settings.mode}) biases",
            f"Use one of {', '.join(known)}",
        )
    if host.algo.dynamic_filtering_enable:
        raise ConfigError(
            "--algo.dynamic_filtering_enable",
            True,
            f"--ada_mode {settings.mode} already decides what happens to prompts without signal",
            "Leave it out; --ada_unresolved refill does the same",
        )
    if host.rollout.top_p < 1:
        raise ConfigError(
            "--rollout.top_p",
            host.rollout.top_p,
            "it cuts off tokens to which training gives a probability, so the policy that is trained would not be the "
            "one that samples",
            "Leave it out",
        )


def _check_asynchronous(host: SimpleNamespace, settings: Settings) -> None:
    partial = host.train.async_enable and host.train.partial_rollout_enable
    if partial and host.algo.advantage.is_correction_level == "off":
        raise ConfigError(
            "--train.partial_rollout_enable",
            True,
            f"weights change while prompts are sampled, so that a pool of --ada_mode {settings.mode} mixes policies, "
            f"and nothing corrects for that",
            "Add --algo.advantage.is_correction_level token, or leave --train.partial_rollout_enable out",
        )
    generated = host.rollout.vllm_generate_batch_size
    if generated is not None and generated != host.rollout.batch_size:
        raise ConfigError(
            "--rollout.vllm_generate_batch_size",
            generated,
            f"--ada_mode {settings.mode} decides itself how much to sample for a batch",
            "Leave it out",
        )


def _check_engines_can_return(host: SimpleNamespace) -> None:
    """An engine that was started again needs the policy's weights in the middle of a step."""
    otherwise = "or give --ada_engine_restarts 0: the death of an engine then ends the run"
    several = host.actor.num_nodes * host.actor.num_gpus_per_node > 1
    for name, value, in_parts in (
        ("--ds.zero_stage", host.ds.zero_stage, host.ds.zero_stage == 3),
        ("--ds.tensor_parallel_size", host.ds.tensor_parallel_size, host.ds.tensor_parallel_size > 1),
    ):
        if host.train.async_enable and several and in_parts:
            raise ConfigError(
                name,
                value,
                "with --train.async_enable an engine that was started again gets its weights while the policy trains, "
                "and processes that hold them in parts would wait for each other in different calls",
                f"Leave it out, {otherwise}",
            )


def _check_own_critic(host: SimpleNamespace) -> None:
    """What the host checks for PPO's critic alone."""
    if host.data.max_images_per_prompt > 0:
        raise ConfigError(
            "--data.max_images_per_prompt",
            host.data.max_images_per_prompt,
            "OpenRLHF has no critic for prompts with images, and --ada_estimator critic needs one",
            "Use --ada_estimator ema",
        )
    if host.train.colocate_critic_reward:
        check_equal("--reward.num_gpus_per_node", host.reward, host.critic, "the critic (--critic...)")


def _check_critic_answers_alone(host: SimpleNamespace) -> None:
    """The generator asks it while the trainer trains it, so no process of it may wait for another to answer."""
    shared = [
        ("--ds.zero_stage", host.ds.zero_stage, host.ds.zero_stage == 3, "2"),
        ("--ds.ring_attn_size", host.ds.ring_attn_size, host.ds.ring_attn_size > 1, "1"),
        ("--ds.tensor_parallel_size", host.ds.tensor_parallel_size, host.ds.tensor_parallel_size > 1, "1"),
    ]
    for name, value, waits, instead in shared:
        if waits:
            raise ConfigError(
                name,
                value,
                "with --train.async_enable the critic of --ada_estimator critic is asked while it trains, and its "
                "processes would wait for each other in different calls",
                f"Use {name} {instead}, --ada_estimator ema, or leave --train.async_enable out",
            )


def _check_value_is_pass_rate(host: SimpleNamespace) -> None:
    """PPO's critic predicts rewards: a pass rate only where nothing else is in them."""
    rule = "with --ada_estimator critic PPO's value of a prompt must be its pass rate"
    kl, gamma = host.algo.kl, host.algo.advantage.gamma
    if kl.init_coef > 0 and not kl.use_loss:
        raise ConfigError(
            "--algo.kl.init_coef", kl.init_coef, rule, "Use 0, --algo.kl.use_loss, or --ada_estimator ema"
        )
    if gamma != 1.0:
        raise ConfigError("--algo.advantage.gamma", gamma, rule, "Use 1, or --ada_estimator ema")
    _check_unshaped(host, rule)


def _check_pieces_unshaped(host: SimpleNamespace, settings: Settings) -> None:
    needs = {f"--ada_correction {settings.correction}": CORRECTIONS[settings.correction].needs}
    if not settings.in_ppo:
        needs[f"--ada_baseline {settings.baseline}"] = BASELINES[settings.baseline].needs
    for flag, of_piece in needs.items():
        if Need.UNSHAPED_REWARDS in of_piece:
            _check_unshaped(host, f"{flag} needs {Need.UNSHAPED_REWARDS.value}")


def _check_unshaped(host: SimpleNamespace, rule: str) -> None:
    """Raises ConfigError where length penalties add to the score to make the reward."""
    for name in ("overlong_buffer_len", "stop_properly_penalty_coef"):
        value = getattr(host.reward, name)
        if value is not None:
            raise ConfigError(
                f"--reward.{name}", value, f"it shapes the reward, but {rule}", "Leave one of the two out"
            )


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


def _check_varying(host: SimpleNamespace, settings: Settings) -> None:
    """What needs to know how many rollouts a step trains."""
    plan = batch_plan(host, settings)
    rule = "--ada_select all trains as many rollouts as the outcomes ask for"
    least = plan.prompts * plan.group_size
    if least < plan.unit:
        raise ConfigError(
            "--train.batch_size",
            plan.train_batch,
            f"{rule}, which may be only --rollout.batch_size {plan.prompts} x n {plan.group_size} = {least}, and "
            f"{plan.unit} are the fewest that can be trained by {plan.processes} processes in micro-batches of "
            f"{plan.micro_batch}",
            f"Use {least} at most; the smaller, the fewer rollouts of a step are left out",
        )
    for name in ("actor", "critic"):
        scheduler = getattr(host, name).lr_scheduler
        if name in models_in_use(host) and not scheduler.startswith("constant"):
            raise ConfigError(
                f"--{name}.lr_scheduler",
                scheduler,
                f"{rule}, so nobody knows when the last update comes",
                "Use constant_with_warmup",
            )
    if host.train.dynamic_batch_enable:
        raise ConfigError(
            "--train.dynamic_batch_enable",
            True,
            f"{rule}, and OpenRLHF would train --rollout.batch_size x n of them",
            "Leave it out",
        )
    if settings.loss == "prompt-mean":
        raise ConfigError("--ada_loss", settings.loss, f"it divides by n, and {rule}", "Leave it out")


def _check_batches(host: SimpleNamespace, settings: Settings) -> None:
    """Every kept rollout must be trained: the host's loader drops an incomplete last batch without a word.

    A pass-rate critic trains too, with the same batch sizes, on prompts that it deals out itself.
    """
    plan = batch_plan(host, settings)
    total = plan.prompts * plan.group_size
    if not plan.fills_batches(plan.prompts):
        raise ConfigError(
            "--train.batch_size",
            plan.train_batch,
            f"a step trains --rollout.batch_size {plan.prompts} x n {plan.group_size} = {total} rollouts, and what "
            f"does not fill a training batch would be lost",
            f"Use a divisor of {total}",
        )
    processes = processes_by_model(host)
    if host.train.dynamic_batch_enable:
        _check_dynamic_batches(host, processes)
        return
    if settings.own_critic:
        check_micro_batches(host, "critic")
    if not plan.is_even(plan.prompts):
        rule = (
            f"the {total} rollouts of a step are not so many full micro-batches of --rollout.micro_batch_size "
            f"{plan.micro_batch} that all processes get equally many ({_list(processes)}): one would wait for the "
            f"others for ever"
        )
        other = next((name for name, count in processes.items() if count != processes["actor"]), None)
        if other is not None and replace(plan, processes=processes["actor"]).is_even(plan.prompts):
            raise ConfigError(
                f"--{other}.num_gpus_per_node", getattr(host, other).num_gpus_per_node, *as_policy(host, other, rule)
            )
        raise ConfigError(
            "--rollout.micro_batch_size",
            plan.micro_batch,
            rule,
            f"Let --rollout.micro_batch_size x {plan.processes} divide {total}",
        )


def _check_dynamic_batches(host: SimpleNamespace, processes: dict[str, int]) -> None:
    """The host deals samples out among the policy's processes; another model's get whole shares of these."""
    policy, batch = processes["actor"], host.train.batch_size
    if batch % policy:
        raise ConfigError(
            "--train.batch_size",
            batch,
            f"with --train.dynamic_batch_enable each of the policy's {policy} processes trains {batch // policy} "
            f"rollouts of a batch, and the rest would be lost",
            f"Use a multiple of {policy}",
        )
    for name, count in processes.items():
        if policy % count:
            raise ConfigError(
                f"--{name}.num_gpus_per_node",
                getattr(host, name).num_gpus_per_node,
                f"with --train.dynamic_batch_enable its {count} processes share what is made for the policy's "
                f"{policy}, and would get unequal numbers of micro-batches",
                f"Use a number of processes that divides {policy}",
            )


def _list(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
