"""How token losses are averaged, and which averages a correction can work with.

A sample's coefficient multiplies the loss of each of its tokens. The sum over the tokens of a sample is an unbiased
estimate of its share of the gradient; a mean over them divides that share by the sample's length, which depends on the
outcome. See docs/algorithms.md for the resulting weights.
"""

from __future__ import annotations

from types import SimpleNamespace

from openrlhf_ada.config.flags import ConfigError, check_read
from openrlhf_ada.config.settings import Settings
from openrlhf_ada.core.corrections import CORRECTIONS
from openrlhf_ada.core.pieces import Need

POLICY_LOSSES = {"ppo": False, "gspo": True}
"""The host's --actor.policy_loss_type: does it divide by a sample's length whatever --actor.loss_agg_mode says?"""

_BY_SAMPLE = "this loss divides a sample's gradient by its length"

_BY_PROMPT = "this loss divides a prompt's gradient by the tokens of its group"

_EXAMPLE = (
    "With right answers of 100 tokens and wrong ones of 400, {samples} weigh a prompt of pass rate 0.1 by {low} and "
    "one of 0.9 by {high} (1 at 0.5)"
)

_SAMPLE_EXAMPLE = _EXAMPLE.format(samples="uniform samples", low=1.48, high=0.52)

_POSITIVES_EXAMPLE = "A right answer of 400 tokens counts a quarter of one of 100"

_PROMPT_EXAMPLE = _EXAMPLE.format(samples="four uniform samples", low=0.78, high=1.28)


def check_loss(settings: Settings, host: SimpleNamespace) -> None:
    """Refuse averages that contradict each other or a correction; raises ConfigError.

    `host`: the host's parsed namespace, nested by dots.
    """
    check_read(settings.given, "loss_length")
    loss = settings.loss
    if loss != "host" and host.actor.loss_agg_mode != "token-mean":
        raise ConfigError(
            "--actor.loss_agg_mode",
            host.actor.loss_agg_mode,
            f"--ada_loss {loss} is another way to average the same losses",
            "Leave one of the two out",
        )
    needs = CORRECTIONS[settings.correction].needs
    if settings.mode == "off" or Need.SUMMED_TOKENS not in needs:
        return
    promise = f"so --ada_correction {settings.correction} would miss its objective"
    found = _divides_by_length(settings, host)
    if found is not None:
        name, value, instead = found
        example = _POSITIVES_EXAMPLE if Need.NO_BASELINE in needs else _SAMPLE_EXAMPLE
        raise ConfigError(name, value, f"{_BY_SAMPLE}, {promise}. {example}", f"Use {instead}")
    if loss == "prompt-mean":
        raise ConfigError(
            "--ada_loss",
            loss,
            f"{_BY_PROMPT}, {promise}. {_PROMPT_EXAMPLE}",
            "Use --ada_loss sequence-constant, or --ada_correction none",
        )


def loss_warnings(settings: Settings, host: SimpleNamespace) -> list[str]:
    """What a run without a correction is told at its start: lengths weigh its prompts, too."""
    found = _divides_by_length(settings, host)
    if settings.mode == "off" or found is None:
        return []
    name, value, instead = found
    return [
        f"{name} {value}: {_BY_SAMPLE}, so lengths weigh prompts, too. {_SAMPLE_EXAMPLE}. To leave lengths out, use "
        f"{instead}"
    ]


def loss_length(host: SimpleNamespace) -> int:
    """The constant of --ada_loss sequence-constant, in tokens: given, or the longest response that may be sampled."""
    return host.ada.loss_length or host.rollout.max_new_tokens or host.data.max_len


def _divides_by_length(settings: Settings, host: SimpleNamespace) -> tuple[str, str, str] | None:
    """(flag, value, what to use instead) of a loss that divides by a sample's length; None if there is none."""
    if settings.loss != "host":
        return None
    kind = host.actor.policy_loss_type
    if POLICY_LOSSES[kind]:
        return (
            "--actor.policy_loss_type",
            kind,
            "--ada_loss sequence-constant with it, or --actor.policy_loss_type ppo in its place",
        )
    if host.actor.loss_agg_mode != "token-mean":
        instead = "--actor.loss_agg_mode token-mean, alone or with --ada_loss sequence-constant"
        return "--actor.loss_agg_mode", host.actor.loss_agg_mode, instead
    return None
