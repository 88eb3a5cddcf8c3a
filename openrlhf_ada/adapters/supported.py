"""Which of our settings another trainer can carry out: those that need nothing but a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.method_rules import check_settings
from openrlhf_ada.config.presets import method_named
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import Settings, resolve

CARRIED_OUT = (
    *("mode", "exit", "k_pos", "k_neg", "wave", "pilot", "gate_low", "gate_high", "budget", "allocation", "estimator"),
    *("half_life", "floor", "give_up", "min_samples", "max_samples", "positive_threshold", "scores", "objective"),
    *("correction", "baseline", "baseline_rounding", "select", "scheduler", "max_no_score", "policy"),
)
"""Fields of AdaConfig."""


def settings_for(ada: AdaConfig | str, *, n: int, advantages: Sequence[str], batch: int) -> Settings:
    """The settings of a run under another trainer. Raises ConfigError for what it cannot carry out.

    Args:
        ada: our flags, or the name of a method, whose learning rate and other sizes stay the trainer's own.
        n: rollouts of a prompt that are trained.
        advantages: of OpenRLHF's estimators those that the trainer is set to; the first if `ada` names none.
        batch: prompts of a step.
    """
    advantage = advantages[0]
    if isinstance(ada, str):
        flags = method_named(ada).flags
        advantage = flags.get("algo.advantage.estimator", advantage)
        epochs, trained = flags.get("train.max_epochs", 1), flags.get("rollout.n_samples_per_prompt", n)
        if advantage not in advantages or epochs != 1 or trained != n:
            rule = f"it trains {trained} rollouts of a prompt for {epochs} epochs with the advantages of {advantage}"
            here = f"{n} rollouts for 1 epoch, and {' or '.join(advantages)}"
            raise ConfigError("--ada_method", ada, f"{rule}; the trainer is set to {here}", "Set the trainer likewise")
        ada = AdaConfig(**{name[4:]: value for name, value in flags.items() if name.startswith("ada.")})
    if ada.mode == "off":
        raise ConfigError("--ada_mode", "off", "nothing is decided then", "Use the trainer without an adapter")
    for f in fields(AdaConfig):
        if f.name not in CARRIED_OUT and (value := getattr(ada, f.name)) != f.default:
            raise ConfigError(f"--ada_{f.name}", value, "only training with OpenRLHF carries it out", "Leave it out")
    settings = resolve(ada, n=n, advantage=advantage, batch=batch)
    if settings.reads_critic:
        raise ConfigError("--ada_estimator", "critic", "this trainer has no critic", "Use --ada_estimator ema")
    if settings.scores == "raw" and settings.positive_threshold is None:
        rule = "raw scores are compared with --ada_positive_threshold, which is not given"
        raise ConfigError("--ada_scores", "raw", rule, "Give a threshold in units of the score")
    check_settings(settings)
    return settings
