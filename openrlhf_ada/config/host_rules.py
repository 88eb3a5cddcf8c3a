"""Which combinations of our flags with OpenRLHF's have no meaning or would lose rollouts, checked before any start.

`host` is everywhere OpenRLHF's parsed namespace, nested by dots (`host.rollout.n_samples_per_prompt`). A rule yields
what is wrong; the first of all that is yielded is raised.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

from openrlhf_ada.config.batch_rules import BATCH_RULES
from openrlhf_ada.config.flags import ConfigError, Problem
from openrlhf_ada.config.host_values import (
    check_equal,
    check_shared_samples,
    scored_by_model,
)
from openrlhf_ada.config.method_rules import check_settings
from openrlhf_ada.config.settings import Settings
from openrlhf_ada.core.advantages import BASELINES, ESTIMATORS
from openrlhf_ada.core.corrections import CORRECTIONS
from openrlhf_ada.core.pieces import Need

LEAVE_OUT, ONE_OF_TWO = "Leave it out", "Leave one of the two out"


def check_against_host(s: Settings, host: SimpleNamespace) -> None:
    """Refuse combinations of our flags with OpenRLHF's that have no meaning; raises ConfigError."""
    every_mode = (_weights, _unit_threshold)
    adaptive = (_scores, _reward_model, _quantile, _raw_scores, _host_modes, _asynchronous)
    for rule in (*every_mode, *(adaptive if s.mode != "off" else ())):
        _raise_first(rule(s, host))
    if s.mode != "off":
        check_settings(s)
    _raise_first(_loss(s, host))
    if s.mode == "off":
        return
    for rule in (_engine_restarts, _critic, _unshaped_rewards, *BATCH_RULES, _zeros):
        _raise_first(rule(s, host))


def _raise_first(problems: Iterator[Problem]) -> None:
    for problem in problems:
        raise ConfigError(*problem)


def _host_modes(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    known = [name for name in ESTIMATORS if name != "flash_reinforce" or s.needs_no_others]
    if s.advantage not in known:
        rule = f"it takes its baseline from the whole batch, which adaptive sampling (--ada_mode {s.mode}) biases"
        yield "--algo.advantage.estimator", s.advantage, rule, f"Use one of {', '.join(known)}"
    if host.algo.dynamic_filtering_enable:
        rule = f"--ada_mode {s.mode} already decides what happens to prompts without signal"
        remedy = f"{LEAVE_OUT}; --ada_unresolved refill does the same"
        yield "--algo.dynamic_filtering_enable", True, rule, remedy
    if host.rollout.top_p < 1:
        rule = (
            "it cuts off tokens to which training gives a probability, so the policy that is trained would not be the "
            "one that samples"
        )
        yield "--rollout.top_p", host.rollout.top_p, rule, LEAVE_OUT


def _asynchronous(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    flag = "--train.partial_rollout_enable"
    partial = host.train.async_enable and host.train.partial_rollout_enable
    if partial and host.algo.advantage.is_correction_level == "off":
        rule = (
            f"weights change while prompts are sampled, so that a pool of --ada_mode {s.mode} mixes policies, and "
            "nothing corrects for that"
        )
        yield flag, True, rule, f"Add --algo.advantage.is_correction_level token, or leave {flag} out"
    generated = host.rollout.vllm_generate_batch_size
    if generated is not None and generated != host.rollout.batch_size:
        rule = f"--ada_mode {s.mode} decides itself how much to sample for a batch"
        yield "--rollout.vllm_generate_batch_size", generated, rule, LEAVE_OUT


# -- weights: from the policy to the engines --------------------------------------------------------------------------


def _weights(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    backend = host.vllm.sync_backend
    if backend not in ("nccl", "gloo"):
        yield "--vllm.sync_backend", backend, "weights travel by nccl or gloo", "Use nccl on GPUs"
    if host.vllm.sync_with_ray:
        rule = "weights are sent by a process group of our own, without Ray"
        yield "--vllm.sync_with_ray", True, rule, LEAVE_OUT
    if host.train.async_enable and host.train.partial_rollout_enable and host.vllm.enable_prefix_caching:
        rule = (
            "with --train.partial_rollout_enable weights change while rollouts are running, which would go on with a "
            "cache that the old weights computed"
        )
        yield "--vllm.enable_prefix_caching", True, rule, ONE_OF_TWO
    if host.ds.param_dtype == "fp16":
        rule = "OpenRLHF's engines compute in bfloat16, and would round the policy's weights"
        yield "--ds.param_dtype", "fp16", rule, LEAVE_OUT
    if host.ds.lora.rank > 0 and host.ds.load_in_4bit:
        rule = (
            "engines get the weights with the adapters of --ds.lora.rank merged in, and 4-bit weights cannot hold "
            "what an adapter adds"
        )
        yield "--ds.load_in_4bit", True, rule, LEAVE_OUT


def _engine_restarts(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    """An engine that was started again needs the policy's weights in the middle of a step."""
    several = host.actor.num_nodes * host.actor.num_gpus_per_node > 1
    if not (s.engine_restarts and host.train.async_enable and several):
        return
    rule = (
        "with --train.async_enable an engine that was started again gets its weights while the policy trains, and "
        "processes that hold them in parts would wait for each other in different calls"
    )
    remedy = f"{LEAVE_OUT}, or give --ada_engine_restarts 0: the death of an engine then ends the run"
    if host.ds.zero_stage == 3:
        yield "--ds.zero_stage", 3, rule, remedy
    if host.ds.tensor_parallel_size > 1:
        yield "--ds.tensor_parallel_size", host.ds.tensor_parallel_size, rule, remedy


# -- where scores come from, and which of them are positive -----------------------------------------------------------

SERVE = (
    "serve the model on other GPUs (python -m openrlhf.cli.serve_rm --reward.model_name_or_path MODEL --port 5000) "
    "and give its address instead: --reward.remote_url http://HOST:5000/get_reward --ada_scores raw"
)


def _unit_threshold(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    if s.scores == "unit" and not 0.0 <= s.positive_above < 1.0:
        rule = "the score lies in [0, 1] and must exceed the threshold, so the threshold lies in [0, 1)"
        remedy = "0.5 is right for scores of 0 and 1; scores that are any number need --ada_scores raw"
        yield "--ada_positive_threshold", s.positive_above, rule, remedy


def _scores(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    """Exactly one thing scores rollouts."""
    model, flag = host.reward.model_name_or_path, "--reward.model_name_or_path"
    elsewhere = host.reward.remote_url or host.train.agent_func_path
    if not (elsewhere or model):
        rule = f"--ada_mode {s.mode} decides on scores while sampling, so something must score every rollout"
        remedy = f"Give a reward file or URL, a reward model ({flag}), or an agent (--train.agent_func_path)"
        yield "--reward.remote_url", None, rule, remedy
    if elsewhere and model:
        other = "--train.agent_func_path" if host.train.agent_func_path else "--reward.remote_url"
        remedy = f"Leave it or {other} out (a critic starts from --critic.model_name_or_path)"
        yield flag, model, f"{other} already gives scores, and OpenRLHF would not start this model", remedy


def _reward_model(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    """It computes while the engines sample, and in asynchronous training also while the policy trains."""
    if not scored_by_model(host):
        return
    if s.scores == "unit":
        yield "--ada_scores", "unit", "scores of a reward model are any number", LEAVE_OUT
    if host.train.colocate_all:
        rule = "the reward model scores while the engines sample, and on shared GPUs their memory is not free for it"
        remedy = f"{LEAVE_OUT} (--train.colocate_actor_ref stays possible), or {SERVE}"
        yield "--train.colocate_all", True, rule, remedy
    has_critic = s.in_ppo or s.own_critic
    if has_critic and host.train.async_enable and host.train.colocate_critic_reward:
        rule = "with --train.async_enable the reward model scores while the critic trains on the same GPUs"
        yield "--train.colocate_critic_reward", True, rule, f"{LEAVE_OUT}, or {SERVE}"
    check_shared_samples(host, "reward")
    if host.data.max_images_per_prompt > 0:
        rule, remedy = "OpenRLHF's reward model is not shown images", "Give a reward file or URL (--reward.remote_url)"
        yield "--reward.model_name_or_path", host.reward.model_name_or_path, rule, remedy


def _quantile(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    if s.positive_quantile is not None and s.scores == "unit":
        rule = "--ada_scores unit keeps scores as they are, and a quantile makes each of them 0 or 1"
        yield "--ada_positive_quantile", s.positive_quantile, rule, ONE_OF_TWO


def _raw_scores(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    """Policies see 0 or 1; what reads more than that out of a score has no meaning."""
    if s.scores != "raw":
        return
    if s.positive_threshold is None:
        when = " in the first step, before --ada_positive_quantile knows any" if s.positive_quantile else ""
        rule = f"raw scores have no fixed scale, so the run must say which scores are positive{when}"
        remedy = "Use a middling score of your model, such as --ada_positive_threshold 0 where scores are normalised"
        yield "--ada_positive_threshold", None, rule, remedy
    if s.known_counts:
        rule = "prepare-data counted positives by another score than the raw one of this run"
        yield "--ada_known_counts", True, rule, LEAVE_OUT
    if s.reads_critic and s.in_ppo:
        rule = "PPO's critic learns the raw reward, and its value of a prompt is no pass rate"
        yield "--ada_estimator", "critic", rule, "Use --ada_estimator ema"


def _unshaped_rewards(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    """Length penalties add to the score to make the reward, which some pieces cannot have."""
    pieces = {f"--ada_correction {s.correction}": CORRECTIONS[s.correction].needs}
    if not s.in_ppo:
        pieces[f"--ada_baseline {s.baseline}"] = BASELINES[s.baseline].needs
    for flag, needs in pieces.items():
        if Need.UNSHAPED_REWARDS in needs:
            yield from _shaped(host, f"{flag} needs {Need.UNSHAPED_REWARDS.value}")


def _shaped(host: SimpleNamespace, rule: str) -> Iterator[Problem]:
    for name in ("overlong_buffer_len", "stop_properly_penalty_coef"):
        value = getattr(host.reward, name)
        if value is not None:
            yield f"--reward.{name}", value, f"it shapes the reward, but {rule}", ONE_OF_TWO


# -- critics ----------------------------------------------------------------------------------------------------------


def _critic(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    """A critic that predicts pass rates."""
    if not s.reads_critic:
        return
    if s.in_ppo:
        yield from _value_is_pass_rate(host)
    else:
        if host.data.max_images_per_prompt > 0:
            rule = "OpenRLHF has no critic for prompts with images, and --ada_estimator critic needs one"
            images = host.data.max_images_per_prompt
            yield "--data.max_images_per_prompt", images, rule, "Use --ada_estimator ema"
        if host.train.colocate_critic_reward:
            check_equal("--reward.num_gpus_per_node", host.reward, host.critic, "the critic (--critic...)")
    if host.train.async_enable:
        yield from _critic_answers_alone(host)


def _value_is_pass_rate(host: SimpleNamespace) -> Iterator[Problem]:
    """PPO's critic predicts rewards: a pass rate only where nothing else is in them."""
    rule = "with --ada_estimator critic PPO's value of a prompt must be its pass rate"
    kl, gamma = host.algo.kl, host.algo.advantage.gamma
    if kl.init_coef > 0 and not kl.use_loss:
        remedy = "Use 0, --algo.kl.use_loss, or --ada_estimator ema"
        yield "--algo.kl.init_coef", kl.init_coef, rule, remedy
    if gamma != 1.0:
        yield "--algo.advantage.gamma", gamma, rule, "Use 1, or --ada_estimator ema"
    yield from _shaped(host, rule)


def _critic_answers_alone(host: SimpleNamespace) -> Iterator[Problem]:
    """The generator asks it while the trainer trains it, so no process of it may wait for another to answer."""
    rule = (
        "with --train.async_enable the critic of --ada_estimator critic is asked while it trains, and its processes "
        "would wait for each other in different calls"
    )
    for name, most in (("zero_stage", 2), ("ring_attn_size", 1), ("tensor_parallel_size", 1)):
        value = getattr(host.ds, name)
        if value > most:
            remedy = f"Use --ds.{name} {most}, --ada_estimator ema, or leave --train.async_enable out"
            yield f"--ds.{name}", value, rule, remedy


# -- the average of token losses --------------------------------------------------------------------------------------
#
# A sample's coefficient multiplies the loss of each of its tokens. The sum over the tokens of a sample is an unbiased
# estimate of its share of the gradient; a mean over them divides that share by the sample's length, which depends on
# the outcome. See docs/algorithms.md for the resulting weights.

POLICY_LOSSES = {"ppo": False, "gspo": True}
"""OpenRLHF's --actor.policy_loss_type: does it divide by a sample's length whatever --actor.loss_agg_mode says?"""

_BY_SAMPLE = "this loss divides a sample's gradient by its length"

_EXAMPLE = (
    "With right answers of 100 tokens and wrong ones of 400, {} weigh a prompt of pass rate 0.1 by {} and one of 0.9 "
    "by {} (1 at 0.5)"
)

_SAMPLE_EXAMPLE = _EXAMPLE.format("uniform samples", 1.48, 0.52)

_POSITIVES_EXAMPLE = "A right answer of 400 tokens counts a quarter of one of 100"


def _loss(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    """Averages that contradict each other or a correction."""
    mode = host.actor.loss_agg_mode
    if s.loss != "host" and mode != "token-mean":
        yield (
            "--actor.loss_agg_mode",
            mode,
            f"--ada_loss {s.loss} is another way to average the same losses",
            ONE_OF_TWO,
        )
    needs = CORRECTIONS[s.correction].needs
    if s.mode == "off" or Need.SUMMED_TOKENS not in needs:
        return
    promise = f"so --ada_correction {s.correction} would miss its objective"
    found = _divides_by_length(s, host)
    if found is not None:
        name, value, instead = found
        example = _POSITIVES_EXAMPLE if Need.NO_BASELINE in needs else _SAMPLE_EXAMPLE
        yield name, value, f"{_BY_SAMPLE}, {promise}. {example}", f"Use {instead}"


def loss_warnings(s: Settings, host: SimpleNamespace) -> list[str]:
    """What a run without a correction is told at its start: lengths weigh its prompts, too."""
    found = _divides_by_length(s, host)
    if s.mode == "off" or found is None:
        return []
    name, value, instead = found
    why = f"{_BY_SAMPLE}, so lengths weigh prompts, too. {_SAMPLE_EXAMPLE}"
    return [f"{name} {value}: {why}. To leave lengths out, use {instead}"]


def _divides_by_length(s: Settings, host: SimpleNamespace) -> tuple[str, str, str] | None:
    """(flag, value, what to use instead) of a loss that divides by a sample's length; None if there is none."""
    if s.loss != "host":
        return None
    kind, mode = host.actor.policy_loss_type, host.actor.loss_agg_mode
    if POLICY_LOSSES[kind]:
        instead = "--ada_loss sequence-constant with it, or --actor.policy_loss_type ppo in its place"
        return "--actor.policy_loss_type", kind, instead
    if mode != "token-mean":
        instead = "--actor.loss_agg_mode token-mean, alone or with --ada_loss sequence-constant"
        return "--actor.loss_agg_mode", mode, instead
    return None


def _zeros(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    """--ada_zeros skip: rollouts of coefficient 0 must have no part in any gradient."""
    kl, entropy, experts = host.algo.kl.init_coef, host.actor.entropy_coef, host.actor.aux_loss_coef
    parts = [
        (s.in_ppo, "--algo.advantage.estimator", "gae", "the critic learns from every rollout"),
        (kl > 0, "--algo.kl.init_coef", kl, "the KL penalty counts every rollout"),
        (entropy is not None, "--actor.entropy_coef", entropy, "the entropy is that of every rollout"),
        (experts > 1e-8, "--actor.aux_loss_coef", experts, "this loss counts every rollout"),
    ]
    for is_on, flag, value, why in parts:
        if s.skips_zeros and is_on:
            rule = f"{why}, so rollouts of coefficient 0 must be computed too"
            yield flag, value, rule, "Leave it out, or use --ada_zeros compute"
