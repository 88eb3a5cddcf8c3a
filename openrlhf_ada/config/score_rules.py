"""Where scores come from and which of them are positive: what cannot work is refused before any start."""

from __future__ import annotations

from types import SimpleNamespace

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.host_values import check_shared_samples
from openrlhf_ada.config.settings import Settings

SERVE = (
    "serve the model on other GPUs (python -m openrlhf.cli.serve_rm --reward.model_name_or_path MODEL --port 5000) "
    "and give its address instead: --reward.remote_url http://HOST:5000/get_reward --ada_scores raw"
)


def scored_by_model(host: SimpleNamespace) -> bool:
    """Does the host start its reward model? Not where a function, a server or an agent gives rewards."""
    elsewhere = host.reward.remote_url or host.train.agent_func_path
    return host.reward.model_name_or_path is not None and not elsewhere


def check_scores(settings: Settings, host: SimpleNamespace) -> None:
    """Raises ConfigError. `host`: the host's parsed namespace, nested by dots."""
    if settings.scores == "unit":
        _check_unit_threshold(settings)
    if settings.mode == "off":
        return
    _check_source(settings, host)
    if scored_by_model(host):
        _check_reward_model(settings, host)
    _check_quantile(settings)
    if settings.scores == "raw":
        _check_raw(settings)


def _check_unit_threshold(settings: Settings) -> None:
    if not 0.0 <= settings.positive_above < 1.0:
        raise ConfigError(
            "--ada_positive_threshold",
            settings.positive_above,
            "the score lies in [0, 1] and must exceed the threshold, so the threshold lies in [0, 1)",
            "0.5 is right for scores of 0 and 1; scores that are any number need --ada_scores raw",
        )


def _check_source(settings: Settings, host: SimpleNamespace) -> None:
    """Exactly one thing scores rollouts."""
    model, mode = host.reward.model_name_or_path, settings.mode
    elsewhere = host.reward.remote_url or host.train.agent_func_path
    if not (elsewhere or model):
        raise ConfigError(
            "--reward.remote_url",
            None,
            f"--ada_mode {mode} decides on scores while sampling, so something must score every rollout",
            "Give a reward file or URL (--reward.remote_url), a reward model (--reward.model_name_or_path), or an "
            "agent (--train.agent_func_path)",
        )
    if elsewhere and model:
        other = "--train.agent_func_path" if host.train.agent_func_path else "--reward.remote_url"
        raise ConfigError(
            "--reward.model_name_or_path",
            model,
            f"{other} already gives scores, and OpenRLHF would not start this model",
            f"Leave it or {other} out (a critic starts from --critic.model_name_or_path)",
        )


def _check_reward_model(settings: Settings, host: SimpleNamespace) -> None:
    """It computes while the engines sample, and in asynchronous training also while the policy trains."""
    flag, model = "--reward.model_name_or_path", host.reward.model_name_or_path
    if settings.scores == "unit":
        raise ConfigError("--ada_scores", "unit", "scores of a reward model are any number", "Leave it out")
    if host.train.colocate_all:
        raise ConfigError(
            "--train.colocate_all",
            True,
            "the reward model scores while the engines sample, and on shared GPUs their memory is not free for it",
            f"Leave it out (--train.colocate_actor_ref stays possible), or {SERVE}",
        )
    has_critic = settings.in_ppo or settings.own_critic
    if has_critic and host.train.async_enable and host.train.colocate_critic_reward:
        raise ConfigError(
            "--train.colocate_critic_reward",
            True,
            "with --train.async_enable the reward model scores while the critic trains on the same GPUs",
            f"Leave it out, or {SERVE}",
        )
    check_shared_samples(host, "reward")
    if host.data.max_images_per_prompt > 0:
        raise ConfigError(
            flag,
            model,
            "OpenRLHF's reward model is not shown images",
            "Give a reward file or URL (--reward.remote_url)",
        )
    if host.eval.dataset:
        raise ConfigError(
            "--eval.dataset",
            host.eval.dataset,
            "OpenRLHF evaluates with --reward.remote_url or an agent, not with a reward model of its own",
            f"Leave it out, or {SERVE}",
        )


def _check_quantile(settings: Settings) -> None:
    if settings.positive_quantile is not None and settings.scores == "unit":
        raise ConfigError(
            "--ada_positive_quantile",
            settings.positive_quantile,
            "--ada_scores unit keeps scores as they are, and a quantile makes each of them 0 or 1",
            "Leave one of the two out",
        )
    if settings.quantile_steps is not None and settings.positive_quantile is None:
        raise ConfigError(
            "--ada_quantile_steps",
            settings.quantile_steps,
            "there is no quantile to follow",
            "Add --ada_positive_quantile 0.5, or leave it out",
        )


def _check_raw(settings: Settings) -> None:
    """Policies see 0 or 1; what reads more than that out of a score has no meaning."""
    if settings.positive_threshold is None:
        when = " in the first step, before --ada_positive_quantile knows any" if settings.positive_quantile else ""
        raise ConfigError(
            "--ada_positive_threshold",
            None,
            f"raw scores have no fixed scale, so the run must say which scores are positive{when}",
            "Use a middling score of your model, such as --ada_positive_threshold 0 where scores are normalised",
        )
    if settings.known_counts:
        raise ConfigError(
            "--ada_known_counts",
            True,
            "prepare-data counted positives by another score than the raw one of this run",
            "Leave it out",
        )
    if settings.reads_critic and settings.in_ppo:
        raise ConfigError(
            "--ada_estimator",
            "critic",
            "PPO's critic learns the raw reward, and its value of a prompt is no pass rate",
            "Use --ada_estimator ema",
        )
