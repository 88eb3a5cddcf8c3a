"""AdaConfig: the one place where our flags, their defaults, help texts and rules live.

Flags, `--help` and the docs are generated from this dataclass. The host's flags are declared nowhere in this package.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class ConfigError(ValueError):
    """Bad configuration, found before any engine starts. The message names flag, value, rule and remedy."""

    def __init__(self, flag: str, value: object, rule: str, remedy: str) -> None:
        super().__init__(f"{flag} is {value!r}: {rule}. {remedy}.")
        self.flag = flag


def _flag(
    default: Any,
    help_text: str,
    *,
    choices: Sequence[str] | None = None,
    metavar: str | None = None,
    aliases: Sequence[str] = (),
    kind: type = str,
) -> Any:
    metadata = {"help": help_text, "choices": choices, "metavar": metavar, "aliases": tuple(aliases), "kind": kind}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class AdaConfig:
    """Settings of adaptive sampling. Defaults are the published setting of Reinforce-Ada (arXiv 2510.04996)."""

    mode: str = _flag(
        "off",
        "How many rollouts a prompt gets. off: OpenRLHF unchanged. seq: sample each prompt in waves until its exit "
        "rule holds, then down-sample to --rollout.n_samples_per_prompt (Ada-Seq).",
        choices=("off", "seq"),
    )
    exit: str = _flag(
        "balance",
        "When a prompt of mode seq is done. pos: enough positives. balance: enough positives and enough negatives.",
        choices=("pos", "balance"),
    )
    wave: int = _flag(8, "M: rollouts added to every open prompt per wave (mode seq).", metavar="M", kind=int)
    max_samples: int = _flag(
        32, "N_max: rollouts of one prompt in one step, at most (mode seq).", metavar="N_MAX", kind=int
    )
    k_pos: int | None = _flag(
        None,
        "Positives that end sampling. Default: 1 for exit pos, half of n (rounded down) for exit balance.",
        metavar="K",
        kind=int,
    )
    k_neg: int | None = _flag(
        None,
        "Negatives that end sampling (exit balance only). Default: n minus the default of --ada_k_pos.",
        metavar="K",
        kind=int,
    )
    positive_threshold: float = _flag(
        0.5,
        "A rollout is positive if its metric is greater. The metric is 'scores' of the reward function (or 'rewards' "
        "where it returns none), in [0, 1], before any shaping.",
        metavar="T",
        kind=float,
    )
    unresolved: str = _flag(
        "keep",
        "A prompt whose rollouts all have the same outcome at N_max. keep: it stays in the batch with zero advantage.",
        choices=("keep",),
    )
    scheduler: str = _flag(
        "rounds",
        "Order of work in mode seq. rounds: all open prompts get one wave, then all are waited for (the published "
        "algorithm).",
        choices=("rounds",),
    )
    eval_ends: bool = _flag(
        False, "Evaluate on --eval.dataset before the first and after the last step as well.", kind=bool
    )
    run_dir: str | None = _flag(
        None,
        "Run directory: config.json, metrics.jsonl, samples.jsonl, summary.json, report.html. Default: "
        "runs/<--logger.wandb.run_name>.",
        metavar="DIR",
    )
    log_texts: int = _flag(
        4, "Prompts per step whose full texts go to samples.jsonl (0: none, numbers only).", metavar="COUNT", kind=int
    )
    verbose: bool = _flag(
        False,
        "Show everything the host, vLLM and Ray print. Without it: one line per step; their logs stay in files.",
        aliases=("--verbose",),
        kind=bool,
    )

    def __post_init__(self) -> None:
        for f in fields(self):
            _check_choice(f, getattr(self, f.name))
        check_minimum("--ada_wave", self.wave, 1)
        check_minimum("--ada_max_samples", self.max_samples, 1)
        check_minimum("--ada_log_texts", self.log_texts, 0)
        for flag, value in (("--ada_k_pos", self.k_pos), ("--ada_k_neg", self.k_neg)):
            if value is not None:
                check_minimum(flag, value, 1)
                self._check_reachable(flag, value)
        if self.k_neg is not None and self.exit != "balance":
            raise ConfigError(
                "--ada_k_neg",
                self.k_neg,
                f"negatives are counted by exit 'balance' only, and --ada_exit is {self.exit!r}",
                "Use --ada_exit balance or leave --ada_k_neg out",
            )
        if not 0.0 <= self.positive_threshold < 1.0:
            raise ConfigError(
                "--ada_positive_threshold",
                self.positive_threshold,
                "the metric lies in [0, 1] and must exceed the threshold, so the threshold lies in [0, 1)",
                "0.5 is right for 0/1 verdicts",
            )

    def _check_reachable(self, flag: str, value: int) -> None:
        if value > self.max_samples:
            raise ConfigError(
                flag,
                value,
                f"no prompt can reach it within --ada_max_samples {self.max_samples}",
                f"Lower it to {self.max_samples} or less, or raise --ada_max_samples",
            )

    def exit_counts(self, n: int) -> tuple[int, int]:
        """(K_pos, K_neg) for a trained group of n samples; K_neg is 0 for exit `pos`."""
        if self.exit == "pos":
            return (1 if self.k_pos is None else self.k_pos), 0
        default_pos = max(1, n // 2)
        k_pos = default_pos if self.k_pos is None else self.k_pos
        return k_pos, (max(1, n - default_pos) if self.k_neg is None else self.k_neg)

    def resolved_run_dir(self, run_name: str) -> Path:
        """The run directory: --ada_run_dir, or runs/<run name> with ':' made file-system safe."""
        return Path(self.run_dir) if self.run_dir else Path("runs") / run_name.replace(":", "-")


def _check_choice(f: Field[Any], value: object) -> None:
    choices = f.metadata["choices"]
    if choices and value not in choices:
        raise ConfigError(
            f"--ada_{f.name}", value, f"expected one of: {', '.join(choices)}", f"Try --ada_{f.name} {choices[-1]}"
        )


def check_minimum(flag: str, value: int, minimum: int) -> None:
    """Raises ConfigError for a value below the minimum."""
    if value < minimum:
        raise ConfigError(flag, value, f"it must be at least {minimum}", f"Try {flag} {max(minimum, 1)}")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add one argument group with every AdaConfig field, in both spellings (--ada_mode and --ada.mode).

    Choices are checked by AdaConfig, not by argparse, so that the error has our form.
    """
    group = parser.add_argument_group("Reinforce-Ada", "Adaptive sampling (each flag also as --ada.<name>)")
    for f in fields(AdaConfig):
        names = [f"--ada_{f.name}", f"--ada.{f.name}", *f.metadata["aliases"]]
        options: dict[str, Any] = {"dest": f"ada.{f.name}", "default": f.default, "help": _help(f)}
        if f.metadata["kind"] is bool:
            options["action"] = "store_true"
        else:
            options["type"] = f.metadata["kind"]
            options["metavar"] = f.metadata["metavar"] or _choices_metavar(f)
        group.add_argument(*names, **options)


def _help(f: Field[Any]) -> str:
    text = f.metadata["help"].replace("%", "%%")
    return text if f.default in (None, False) else f"{text} Default: {f.default}."


def _choices_metavar(f: Field[Any]) -> str:
    choices = f.metadata["choices"]
    return "{" + ",".join(choices) + "}" if choices else f.name.upper()


def from_namespace(ada: SimpleNamespace) -> AdaConfig:
    """Build and validate the configuration from the `ada` part of the parsed namespace; raises ConfigError."""
    return AdaConfig(**vars(ada))
