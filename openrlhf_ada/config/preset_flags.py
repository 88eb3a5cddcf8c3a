"""A preset on a command line: which one is named, and where the flags differ from it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from openrlhf_ada.config.flags import ConfigError, words_by_flag
from openrlhf_ada.config.presets import METHODS


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

_NOT_THE_METHOD = (
    *("ada.method", "ada.run_dir", "ada.log_texts", "ada.eval_ends", "ada.verbose"),
    *("ada.mlflow", "ada.mlflow_experiment"),
)


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
