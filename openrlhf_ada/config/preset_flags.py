"""A preset on a command line: which one is named, and where the flags differ from it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from openrlhf_ada.config.flags import ConfigError, words_by_flag
from openrlhf_ada.config.nearest import nearest
from openrlhf_ada.config.presets import METHODS


def named_method(argv: Sequence[str]) -> str | None:
    """The name after --ada_method on a command line; raises ConfigError for an unknown one."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    finder.add_argument("--ada_method", "--ada.method", dest="name", nargs="?")
    name: str | None = finder.parse_known_args(list(argv))[0].name
    if name is not None and name not in METHODS:
        near = nearest(name, METHODS)
        remedy = f"Try --ada_method {near}" if near else "Leave it out for your own"
        raise ConfigError("--ada_method", name, f"expected one of: {', '.join(METHODS)}", remedy)
    return name


def apply_method(parser: argparse.ArgumentParser, name: str | None) -> None:
    """Let a preset be the defaults of a parser that has all flags."""
    if name is not None:
        parser.set_defaults(**METHODS[name].flags)


def check_with_method(
    flags: SimpleNamespace, argv: Sequence[str], name: str | None, check: Callable[[SimpleNamespace], None]
) -> None:
    """`check` the flags. Raises ConfigError as it does, and for several rollouts where the preset trains one of each
    prompt; the first remedy is to leave out what the preset sets: who adds --ada_method keeps flags of another one."""
    if name is None:
        check(flags)
        return
    flag, preset = "rollout.n_samples_per_prompt", METHODS[name].flags
    try:
        if preset[flag] == 1 != (n := _value(flags, flag)):
            raise ConfigError(f"--{flag}", n, f"--ada_method {name} trains one rollout of each prompt", _LEAVE_OUT)
        check(flags)
    except ConfigError as error:
        given = [flag for flag in dict.fromkeys(_given(argv)) if flag in preset and _differs(flags, flag, preset)]
        its_own = {f"--{flag.replace('ada.', 'ada_')}" for flag in preset} | {f"--{flag}" for flag in preset}
        raise _without(error, name, given) if given and error.flag in its_own else error from None


_LEAVE_OUT = "Leave it out"


def _without(error: ConfigError, name: str, given: Sequence[str]) -> ConfigError:
    """The same error, whose first remedy is to leave out `given`, or the one of them that it is about."""
    own = [flag for flag in given if error.flag in (f"--{flag}", f"--{flag.replace('ada.', 'ada_')}")]
    words = ", ".join(f"--{flag} (it has {METHODS[name].flags[flag]})" for flag in own or given)
    remedy = f"Leave out what --ada_method {name} sets itself: {words}"
    if own and not error.remedy.startswith(_LEAVE_OUT):
        remedy += f"; or {error.remedy[0].lower()}{error.remedy[1:]}"
    return ConfigError(error.flag, error.value, error.rule, remedy)


def deviations(flags: SimpleNamespace, argv: Sequence[str], name: str | None) -> list[str]:
    """Where flags (nested by dots) differ from the preset, or change what it leaves alone: one line for each."""
    if name is None:
        return []
    preset = METHODS[name].flags
    lines: list[str] = []
    for dotted, published in preset.items():
        if _differs(flags, dotted, preset):
            lines.append(f"--{dotted} is {_value(flags, dotted)}, {name} has {published}")
    for dotted in _given(argv):
        if dotted not in preset and dotted.startswith(_METHOD_FLAGS) and dotted not in _NOT_THE_METHOD:
            lines.append(f"--{dotted} is {_value(flags, dotted)}, {name} leaves it alone")
    return lines


def _differs(flags: SimpleNamespace, dotted: str, preset: Mapping[str, Any]) -> bool:
    """From the preset. A parser reads several numbers as a list."""
    value, published = _value(flags, dotted), preset[dotted]
    return value != published and not (isinstance(published, tuple) and tuple(value) == published)


_METHOD_FLAGS = (
    "ada.",
    "algo.",
    "actor.entropy_coef",
    "actor.optim",
    "actor.policy_loss_type",
)
"""Flags that change what is optimised, by prefix."""

_NOT_THE_METHOD = (*("ada.method", "ada.run_dir", "ada.log_texts", "ada.eval_ends", "ada.verbose"),)


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
