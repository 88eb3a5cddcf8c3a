"""Published settings by name (`--ada_method`): defaults of our flags and of OpenRLHF's, with their source.

A preset only moves defaults, so whatever is given on the command line wins; `deviations` says where it did.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from openrlhf_ada.config.flags import ConfigError, words_by_flag

Flags = dict[str, Any]
"""By the flag's name without dashes, sections separated by dots: "ada.mode", "rollout.batch_size"."""


def _ada(**flags: Any) -> Flags:
    """Flags of ours."""
    return {f"ada.{name}": value for name, value in flags.items()}


def nested(flags: Flags) -> dict[str, Any]:
    """The same by section, as in a run's config.json: {"ada": {"mode": ...}}."""
    record: dict[str, Any] = {}
    for dotted, value in flags.items():
        *sections, name = dotted.split(".")
        section = record
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value
    return record


RECIPE: Flags = {
    "rollout.batch_size": 512,
    "rollout.n_samples_per_prompt": 4,
    "rollout.temperature": 1.0,
    "rollout.top_p": 1.0,
    "train.batch_size": 512,
    "train.max_epochs": 1,
    "actor.adam.lr": 1e-6,
    "actor.adam.betas": (0.9, 0.999),
    "actor.adam.weight_decay": 0.0,
    "actor.lr_scheduler": "constant_with_warmup",
    "actor.lr_warmup_ratio": 0.025,
    "actor.max_norm": 1.0,
    "actor.eps_clip_low_high": (0.2, 0.28),
    "actor.dual_clip": 10.0,
    "actor.loss_agg_mode": "token-mean",
    "algo.advantage.estimator": "dr_grpo",
    "algo.kl.init_coef": 0.0,
}
"""What Reinforce-Ada's run script sets (RLHFlow/Reinforce-Ada 05be605, scripts/run_reinforce_ada.sh).

512 prompts a step in mini-batches of 128, no division by the std, no KL, no entropy bonus, a constant learning rate.
Betas, the schedule and one epoch per batch are defaults of the verl version that it uses. The warm-up is 10 of 400
steps, here as a share of all steps. All methods have this recipe, so that they can be compared. docs/migrating.md says
where the published GRPO script and the paper's text differ. A critic's flags keep OpenRLHF's defaults.
"""

SEQ = _ada(mode="seq", wave=8, max_samples=32, positive_threshold=0.7)
"""The rest is the default of mode seq: `balanced` groups, baseline `pool`, no correction."""

EST = _ada(
    mode="est", budget=8.0, allocation="inverse_sqrt", objective="log", correction="paper", baseline="pool",
    select="all", positive_threshold=0.7,
) | {"rollout.n_samples_per_prompt": 8, "train.batch_size": 1024}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Method:
    """One named setting. `source`: what it reproduces. `note`: where it differs, or what the source does not say."""

    summary: str
    source: str
    flags: Flags
    note: str = field(default="")


METHODS: dict[str, Method] = {
    "reinforce-ada-pos": Method(
        "waves of 8, at most 32, until one positive; 4 are trained",
        "Reinforce-Ada (arXiv 2510.04996), Algorithm 2, positive-focused, and its code",
        RECIPE | SEQ | _ada(exit="pos"),
    ),
    "reinforce-ada-balance": Method(
        "waves of 8, at most 32, until two positives and two negatives; 4 are trained",
        "Reinforce-Ada (arXiv 2510.04996), Algorithm 2, balanced, and its code",
        RECIPE | SEQ | _ada(exit="balance"),
    ),
    "reinforce-ada-est": Method(
        "8 rollouts a prompt on average, in proportion to 1/√p, gradient times 1/√p; all are trained",
        "Reinforce-Ada (arXiv 2510.04996v3), Algorithm 1, hybrid",
        RECIPE | EST | _ada(estimator="ema"),
        "the paper gives no bounds, prior or decay; ours are the defaults",
    ),
    "reinforce-ada-est-critic": Method(
        "the same with pass rates from a critic",
        "Reinforce-Ada (arXiv 2510.04996v3), Algorithm 1, value estimator",
        RECIPE | EST | _ada(estimator="critic"),
        "the paper gives no architecture, loss or learning rate; OpenRLHF's critic is used",
    ),
    "grpo": Method(
        "4 rollouts a prompt, advantages divided by the group's standard deviation",
        "DeepSeekMath (arXiv 2402.03300) for the estimator, the recipe of Reinforce-Ada for the rest",
        RECIPE | _ada(mode="off") | {"algo.advantage.estimator": "group_norm"},
    ),
    "ppo": Method(
        "4 rollouts a prompt, a critic and GAE",
        "PPO (arXiv 1707.06347) for the estimator, the recipe of Reinforce-Ada for the rest",
        RECIPE | _ada(mode="off") | {"algo.advantage.estimator": "gae"},
    ),
    "raft": Method(
        "4 rollouts a prompt, the positives are trained with equal weight",
        "RAFT (arXiv 2304.06767; arXiv 2504.11343), the recipe of Reinforce-Ada for the rest",
        RECIPE | _ada(mode="seq", exit="fixed", max_samples=4, select="all", baseline="none", positive_threshold=0.7),
        "for rewards of 0 and 1; negatives stay in the batch with weight 0, so the loss is averaged over them too",
    ),
}


def named_method(argv: Sequence[str]) -> str | None:
    """The name after --ada_method on a command line; raises ConfigError for an unknown one."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    finder.add_argument("--ada_method", "--ada.method", dest="name", nargs="?")
    name: str | None = finder.parse_known_args(list(argv))[0].name
    if name is not None and name not in METHODS:
        raise ConfigError("--ada_method", name, f"expected one of: {', '.join(METHODS)}", "Leave it out for your own")
    return name


def apply_method(parser: argparse.ArgumentParser, name: str | None) -> None:
    """Let a preset be the defaults of a parser that has all flags."""
    if name is not None:
        parser.set_defaults(**METHODS[name].flags)


def deviations(flags: SimpleNamespace, argv: Sequence[str], name: str | None) -> list[str]:
    """Where flags (nested by dots) differ from the preset, or change what it leaves alone: one line for each."""
    if name is None:
        return []
    preset = METHODS[name].flags
    lines: list[str] = []
    for dotted, published in preset.items():
        value = _value(flags, dotted)
        if value != published and not (isinstance(published, tuple) and tuple(value) == published):
            lines.append(f"--{dotted} is {value}, {name} has {published}")
    for dotted in _given(argv):
        if dotted not in preset and dotted.startswith(_METHOD_FLAGS) and dotted not in _NOT_THE_METHOD:
            lines.append(f"--{dotted} is {_value(flags, dotted)}, {name} leaves it alone")
    return lines


_METHOD_FLAGS = (
    "ada.",
    "algo.",
    "actor.entropy_coef",
    "actor.optim",
    "actor.policy_loss_type",
)
"""Flags that change what is optimised, by prefix."""

_NOT_THE_METHOD = ("ada.method", "ada.run_dir", "ada.log_texts", "ada.eval_ends", "ada.verbose")


def is_given(dotted: str, argv: Sequence[str]) -> bool:
    """Does a flag, such as "ada.mode", stand on a command line?"""
    return dotted in _given(argv)


def _given(argv: Sequence[str]) -> list[str]:
    """Names of the flags on a command line, with a dot after the section."""
    names = [flag.removeprefix("--") for flag, _ in words_by_flag(argv) if flag]
    return [name.replace("ada_", "ada.", 1) if name.startswith("ada_") else name for name in names]


def _value(flags: SimpleNamespace, dotted: str) -> Any:
    value: Any = flags
    for part in dotted.split("."):
        value = getattr(value, part)
    return value
