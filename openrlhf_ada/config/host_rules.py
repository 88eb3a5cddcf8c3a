"""Which values of OpenRLHF's flags, and which combinations with ours, have no meaning, would lose rollouts, or would
fail minutes later with an error that names no flag. Checked before any start.

`host` is everywhere OpenRLHF's parsed namespace, nested by dots (`host.rollout.n_samples_per_prompt`). A rule yields
what is wrong; the first of all that is yielded is raised.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

from openrlhf_ada.config.flags import Problem, raise_first
from openrlhf_ada.config.host_values import (
    batch_plan,
    gpus_of,
    models_in_use,
    processes_of,
    scored_by_model,
    shares_gpus,
    wrong_values,
)
from openrlhf_ada.config.loss_rules import averages, lengths
from openrlhf_ada.config.method_rules import check_settings
from openrlhf_ada.config.schema import FACTORS
from openrlhf_ada.config.settings import Settings
from openrlhf_ada.core.advantages import BASELINES, ESTIMATORS
from openrlhf_ada.core.corrections import CORRECTIONS
from openrlhf_ada.core.pieces import Need

LEAVE_OUT, ONE_OF_TWO = "Leave it out", "Leave one of the two out"


def check_against_host(s: Settings, host: SimpleNamespace) -> None:
    """Refuse values and combinations that have no meaning; raises ConfigError."""
    every_mode = (wrong_values, _shared_gpus, _processes, _weights, _unit_threshold, averages)
    adaptive = (_scores, _reward_model, _raw_scores, _host_modes, _asynchronous)
    of_method = (lengths, _engine_restarts, _critic, _unshaped_rewards, _varying, _batches)
    of_training = (_zeros, _wrong_epochs, _factor)
    raise_first(problem for rule in every_mode for problem in rule(s, host))
    if s.mode != "off":
        raise_first(problem for rule in adaptive for problem in rule(s, host))
        check_settings(s)
        raise_first(problem for rule in (*of_method, *of_training) for problem in rule(s, host))


# -- GPUs, processes and batches --------------------------------------------------------------------------------------


def _shared_gpus(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    """Models that share GPUs must have equally many."""
    train, gpus, workers = host.train, gpus_of(host, "actor"), host.vllm.tensor_parallel_size
    for is_shared, name, other in (
        ((train.colocate_actor_ref or train.colocate_all) and host.algo.kl.init_coef > 0, "ref", "actor"),
        (train.colocate_critic_reward and (s.in_ppo or s.own_critic), "reward", "critic"),
    ):
        ours, theirs = getattr(host, name), getattr(host, other)
        if is_shared and (ours.num_nodes, ours.num_gpus_per_node) != (theirs.num_nodes, theirs.num_gpus_per_node):
            rule = f"it shares GPUs with the {other}, which has {theirs.num_nodes} x {theirs.num_gpus_per_node}"
            remedy = "Give both the same nodes and GPUs, or leave out the --train.colocate... flag"
            yield f"--{name}.num_gpus_per_node", ours.num_gpus_per_node, rule, remedy
    engines = (host.vllm.num_engines or 0) * workers
    if shares_gpus(host) and engines != gpus:
        rule = f"the policy's {gpus} GPUs are shared with {engines} of the engines (--vllm.num_engines x size)"
        fits = gpus % workers == 0
        use = f"Use --vllm.num_engines {gpus // workers}" if fits else "Let --vllm.tensor_parallel_size divide them"
        yield "--train.colocate_all", True, rule, f"{use}, or leave it out"


def _processes(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    """DeepSpeed wants whole micro-batches for every process of every model, also of one that only computes."""
    batch, micro = host.train.batch_size, host.train.micro_batch_size
    together = host.ds.ring_attn_size * host.ds.tensor_parallel_size
    others = {"critic": s.own_critic, "reward": scored_by_model(host)}
    for name in (*models_in_use(host), *(name for name, is_used in others.items() if is_used)):
        flag, value = f"--{name}.num_gpus_per_node", getattr(host, name).num_gpus_per_node
        if gpus_of(host, name) % together:
            rule = f"--ds.ring_attn_size x --ds.tensor_parallel_size = {together} processes have the same samples"
            yield flag, value, rule, f"Use a multiple of {together}"
        count = processes_of(host, name)
        trains_by_tokens = name in ("actor", "critic") and host.train.dynamic_batch_enable
        if trains_by_tokens or batch % (micro * count) == 0:
            continue
        if count != processes_of(host, "actor"):
            rule = f"its {count} processes x --train.micro_batch_size {micro} must divide --train.batch_size {batch}"
            yield flag, value, *_as_policy(host, name, rule)
        rule = f"times the {count} processes of the {name} it must divide --train.batch_size {batch}"
        yield "--train.micro_batch_size", micro, rule, f"Use a divisor of {batch} / {count}"


_WITHOUT = {
    "ref": ", or --algo.kl.init_coef 0 to train without a KL penalty, which is what needs the reference model",
    "critic": ", or leave out what needs a critic (--algo.advantage.estimator gae, --ada_estimator critic)",
}


def _as_policy(host: SimpleNamespace, name: str, rule: str) -> tuple[str, str]:
    """(rule, remedy) where a model has another number of processes than the policy, perhaps OpenRLHF's default."""
    policy = host.actor.num_gpus_per_node
    remedy = f"Use --{name}.num_gpus_per_node {policy}, as the policy has{_WITHOUT.get(name, '')}"
    return f"{rule}, and the policy has {processes_of(host, 'actor')}", remedy


def _varying(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    """What needs to know how many rollouts a step trains."""
    if not s.trains_varying:
        return
    plan, why = batch_plan(host, s), "--ada_select all trains as many rollouts as the outcomes ask for"
    least = plan.prompts * plan.group_size
    if least < plan.unit:
        rule = f"{why}, which may be only {least}, and {plan.unit} are the fewest that all processes can train"
        remedy = f"Use {least} at most; the smaller, the fewer rollouts of a step are left out"
        yield "--train.batch_size", plan.train_batch, rule, remedy
    for name in (name for name in models_in_use(host) if name != "ref"):
        scheduler = getattr(host, name).lr_scheduler
        if not scheduler.startswith("constant"):
            rule = f"{why}, so nobody knows when the last update comes"
            yield f"--{name}.lr_scheduler", scheduler, rule, "Use constant_with_warmup"
    if host.train.dynamic_batch_enable:
        rule = f"{why}, and OpenRLHF would train --rollout.batch_size x n of them"
        yield "--train.dynamic_batch_enable", True, rule, LEAVE_OUT


def _batches(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    """Every kept rollout must be trained: OpenRLHF's loader drops an incomplete last batch without a word."""
    plan = batch_plan(host, s)
    total = plan.prompts * plan.group_size
    if not plan.fills_batches(plan.prompts):
        rule = f"a step trains --rollout.batch_size x n = {total} rollouts, and what fills no batch would be lost"
        yield "--train.batch_size", plan.train_batch, rule, f"Use a divisor of {total}"
    processes = {name: processes_of(host, name) for name in models_in_use(host)}
    if host.train.dynamic_batch_enable:
        yield from _dynamic_batches(host, processes)
    elif not plan.is_even(plan.prompts):
        counts = ", ".join(f"{name} {count}" for name, count in processes.items())
        rule = (
            f"the {total} rollouts of a step are not so many full micro-batches of {plan.micro_batch} that all "
            f"processes get equally many ({counts}): one would wait for the others for ever"
        )
        other = next((name for name, count in processes.items() if count != processes["actor"]), None)
        if other is not None and replace(plan, processes=processes["actor"]).is_even(plan.prompts):
            count = getattr(host, other).num_gpus_per_node
            yield f"--{other}.num_gpus_per_node", count, *_as_policy(host, other, rule)
        remedy = f"Let --rollout.micro_batch_size x {plan.processes} divide {total}"
        yield "--rollout.micro_batch_size", plan.micro_batch, rule, remedy


def _dynamic_batches(host: SimpleNamespace, processes: dict[str, int]) -> Iterator[Problem]:
    """OpenRLHF deals samples out among the policy's processes; another model's get whole shares of these."""
    policy, batch, why = processes["actor"], host.train.batch_size, "with --train.dynamic_batch_enable"
    if batch % policy:
        rule = f"{why} each of the policy's {policy} processes trains {batch // policy}, and the rest would be lost"
        yield "--train.batch_size", batch, rule, f"Use a multiple of {policy}"
    for name, count in processes.items():
        if policy % count:
            rule = f"{why} its {count} processes would get unequal shares of what is made for the policy's {policy}"
            gpus, remedy = getattr(host, name).num_gpus_per_node, f"Use a number of processes that divides {policy}"
            yield f"--{name}.num_gpus_per_node", gpus, rule, remedy


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
        rule = "tokens that it cuts off are trained, so the policy that is trained would not be the one that samples"
        yield "--rollout.top_p", host.rollout.top_p, rule, LEAVE_OUT


def _asynchronous(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    flag = "--train.partial_rollout_enable"
    partial = host.train.async_enable and host.train.partial_rollout_enable
    if partial and host.algo.advantage.is_correction_level == "off":
        rule = "weights change while prompts are sampled, so that a pool mixes policies, and nothing corrects for that"
        yield flag, True, rule, f"Add --algo.advantage.is_correction_level token, or leave {flag} out"
    generated = host.rollout.vllm_generate_batch_size
    if generated is not None and generated != host.rollout.batch_size:
        rule = f"--ada_mode {s.mode} decides itself how much to sample for a batch"
        yield "--rollout.vllm_generate_batch_size", generated, rule, LEAVE_OUT


def _zeros(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    """--ada_zeros skip: rollouts of coefficient 0 must have no part in any gradient."""
    kl, entropy, experts = host.algo.kl.init_coef, host.actor.entropy_coef, host.actor.aux_loss_coef
    for is_on, flag, value, why in (
        (s.in_ppo, "--algo.advantage.estimator", "gae", "the critic learns from every rollout"),
        (kl > 0, "--algo.kl.init_coef", kl, "the KL penalty counts every rollout"),
        (entropy is not None, "--actor.entropy_coef", entropy, "the entropy is that of every rollout"),
        (experts > 1e-8, "--actor.aux_loss_coef", experts, "this loss counts every rollout"),
    ):
        if s.skips_zeros and is_on:
            rule = f"{why}, so rollouts of coefficient 0 must be computed too"
            yield flag, value, rule, "Leave it out, or use --ada_zeros compute"


def _wrong_epochs(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    """The sign of a rollout's coefficient must be that of the advantage of each of its tokens."""
    kl = host.algo.kl
    for is_on, flag, value, why, instead in (
        (s.in_ppo, "--algo.advantage.estimator", "gae", "the critic gives each token one of its own", "dr_grpo"),
        (
            kl.init_coef > 0 and not kl.use_loss,
            *("--algo.kl.init_coef", kl.init_coef, "the KL penalty adds to that of each token"),
            f"{kl.init_coef:g} with --algo.kl.use_loss",
        ),
    ):
        if s.wrong_epochs and is_on:
            rule = f"--ada_wrong_epochs needs the same advantage for all tokens of a rollout, and {why}"
            yield flag, value, rule, f"Use {flag} {instead}, or --ada_wrong_epochs 0"


def _factor(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    agent = host.train.agent_func_path
    if s.measures_factor and agent:
        rule = (
            "--ada_baseline_factor least_noise needs log-probabilities, and an agent may sample without asking for any"
        )
        yield "--train.agent_func_path", agent, rule, "Leave one of the two out"


# -- weights: from the policy to the engines --------------------------------------------------------------------------


def _weights(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    backend = host.vllm.sync_backend
    if backend not in ("nccl", "gloo"):
        yield "--vllm.sync_backend", backend, "weights travel by nccl or gloo", "Use nccl on GPUs"
    if host.vllm.sync_with_ray:
        rule = "weights are sent by a process group of our own, without Ray"
        yield "--vllm.sync_with_ray", True, rule, LEAVE_OUT
    if host.ds.param_dtype == "fp16":
        rule = "OpenRLHF's engines compute in bfloat16, and would round the policy's weights"
        yield "--ds.param_dtype", "fp16", rule, LEAVE_OUT
    if host.ds.lora.rank > 0 and host.ds.load_in_4bit:
        rule = "engines get weights with the adapters of --ds.lora.rank merged in, which 4-bit weights cannot hold"
        yield "--ds.load_in_4bit", True, rule, LEAVE_OUT


def _engine_restarts(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    """An engine that was started again needs the policy's weights in the middle of a step."""
    if not (s.engine_restarts and host.train.async_enable and gpus_of(host, "actor") > 1):
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
    """At most one thing scores rollouts."""
    model, agent = host.reward.model_name_or_path, host.train.agent_func_path
    if model and (agent or host.reward.remote_url):
        other = "--train.agent_func_path" if agent else "--reward.remote_url"
        rule = f"{other} already gives scores, and OpenRLHF would not start this model"
        remedy = f"Leave it or {other} out (a critic starts from --critic.model_name_or_path)"
        yield "--reward.model_name_or_path", model, rule, remedy
    if s.positive_quantile is not None and s.scores == "unit":
        rule = "--ada_scores unit keeps scores as they are, and a quantile makes each of them 0 or 1"
        yield "--ada_positive_quantile", s.positive_quantile, rule, ONE_OF_TWO


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
    if (s.in_ppo or s.own_critic) and host.train.async_enable and host.train.colocate_critic_reward:
        rule = "with --train.async_enable the reward model scores while the critic trains on the same GPUs"
        yield "--train.colocate_critic_reward", True, rule, f"{LEAVE_OUT}, or {SERVE}"
    if host.data.max_images_per_prompt > 0:
        rule, remedy = "OpenRLHF's reward model is not shown images", "Give a reward file or URL (--reward.remote_url)"
        yield "--reward.model_name_or_path", host.reward.model_name_or_path, rule, remedy


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
    if s.measures_factor:
        pieces[f"--ada_baseline_factor {s.baseline_factor}"] = FACTORS[s.baseline_factor].needs
    for flag, needs in pieces.items():
        if Need.UNSHAPED_REWARDS in needs:
            yield from _shaped(host, f"{flag} needs {Need.UNSHAPED_REWARDS.value}")


def _shaped(host: SimpleNamespace, rule: str) -> Iterator[Problem]:
    for name in ("overlong_buffer_len", "stop_properly_penalty_coef"):
        value = getattr(host.reward, name)
        if value is not None:
            yield f"--reward.{name}", value, f"it shapes the reward, but {rule}", ONE_OF_TWO


def _critic(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    """A critic that predicts pass rates. PPO's predicts rewards: a pass rate only where nothing else is in them."""
    if s.reads_critic and s.in_ppo:
        rule = "with --ada_estimator critic PPO's value of a prompt must be its pass rate"
        kl, gamma = host.algo.kl, host.algo.advantage.gamma
        if kl.init_coef > 0 and not kl.use_loss:
            remedy = "Use 0, --algo.kl.use_loss, or --ada_estimator ema"
            yield "--algo.kl.init_coef", kl.init_coef, rule, remedy
        if gamma != 1.0:
            yield "--algo.advantage.gamma", gamma, rule, "Use 1, or --ada_estimator ema"
        yield from _shaped(host, rule)
    if s.own_critic and host.data.max_images_per_prompt > 0:
        rule = "OpenRLHF has no critic for prompts with images, and --ada_estimator critic needs one"
        yield "--data.max_images_per_prompt", host.data.max_images_per_prompt, rule, "Use --ada_estimator ema"
    if s.reads_critic and host.train.async_enable:
        # The generator asks it while the trainer trains it, so no process of it may wait for another to answer.
        rule = "with --train.async_enable it is asked while it trains, and its processes would wait for each other"
        for name, most in (("zero_stage", 2), ("ring_attn_size", 1), ("tensor_parallel_size", 1)):
            if (value := getattr(host.ds, name)) > most:
                remedy = f"Use --ds.{name} {most}, --ada_estimator ema, or leave --train.async_enable out"
                yield f"--ds.{name}", value, f"a critic predicts pass rates (--ada_estimator critic); {rule}", remedy
