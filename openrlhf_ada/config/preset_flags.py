"""A method on a command line: which one is named, and where the flags differ from it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from openrlhf_ada.config.flags import ConfigError, dotted, spelt, words_by_flag
from openrlhf_ada.config.nearest import did_you_mean
from openrlhf_ada.config.presets import FLAG, OLD_NAMES, Method, method_named


def named_method(argv: Sequence[str]) -> Method | None:
    """What --ada_method on a command line names; raises ConfigError for what is no method."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    finder.add_argument(FLAG, dest="name", nargs="?")
    name: str | None = finder.parse_known_args(list(argv))[0].name
    return None if name is None else method_named(name)


def apply_method(parser: argparse.ArgumentParser, method: Method | None, actions: Iterable[argparse.Action]) -> None:
    """Let a method be the defaults of a parser that has all flags, which are `actions`. Raises ConfigError for a flag
    that is none, and for a value that its flag does not take."""
    if method is None:
        return
    known = {dotted(name): action for action in actions for name in action.option_strings}
    defaults: dict[str, Any] = {}
    for name, value in method.flags.items():
        action = known.get(name)
        if action is None or name == "ada.method":
            hint = did_you_mean(spelt(name), map(spelt, known)).strip().rstrip("?")
            rule = f"no flag of a method has this name ({_place(method, name)})"
            raise ConfigError(spelt(name), value, rule, hint or "`openrlhf-ada train --help` lists them")
        if reason := _refusal(action, value):
            remedy = "`openrlhf-ada train --help` explains it"
            raise ConfigError(spelt(name), value, f"{reason} ({_place(method, name)})", remedy)
        defaults[name] = float(value) if action.type is float and not isinstance(value, tuple) else value
    parser.set_defaults(**defaults)


_KINDS: dict[Any, tuple[Any, str]] = {
    int: (int, "it is a whole number"),
    float: (int | float, "it is a number"),
    str: (str, "it is a text: write it in quotes"),
    None: (str, "it is a text: write it in quotes"),
}
"""By the type of a flag: what a file's value must be, and the rule."""


def _refusal(action: argparse.Action, value: Any) -> str:
    """Why the flag does not take this value; empty if it does."""
    if action.nargs == 0:
        return "" if isinstance(value, bool) else "it is a switch: true or false"
    several = action.nargs not in (None, "?")
    if several != isinstance(value, tuple):
        return "it takes a list, such as [1, 2]" if several else "it takes one value"
    parts: tuple[Any, ...] = value if several else (value,)
    if isinstance(action.nargs, int) and len(parts) != action.nargs:
        return f"it takes {action.nargs} values"
    kind, rule = _KINDS.get(action.type, (object, ""))
    for part in parts:
        if not isinstance(part, kind) or (isinstance(part, bool) and rule):
            return rule
        if action.choices is not None and part not in action.choices:
            return f"expected one of: {', '.join(map(str, action.choices))}.{did_you_mean(str(part), action.choices)}"
    return ""


def _place(method: Method, name: str) -> str:
    return method.places.get(name, f"in {method.name}")


def check_with_method(
    flags: SimpleNamespace, argv: Sequence[str], method: Method | None, check: Callable[[SimpleNamespace], None]
) -> None:
    """`check` the flags. Raises ConfigError as it does, for what a method sets with the line of a user's own file, or
    with the remedy to leave out what the method sets: who adds --ada_method keeps flags of another one."""
    try:
        check(flags)
    except ConfigError as error:
        about = dotted(error.flag)
        if method is None or about not in method.flags:
            raise
        preset = method.flags
        given = [name for name in given_flags(argv) if name in preset and _differs(flags, name, preset[name])]
        if method.is_own and about not in given:
            rule = f"{error.rule} ({_place(method, about)})"
            raise ConfigError(error.flag, error.value, rule, error.remedy) from None
        if not given:
            raise
        ours = [about] if about in given else given
        words = ", ".join(f"{spelt(name)} (it has {method.flags[name]})" for name in ours)
        remedy = f"Leave out what {FLAG} {method.name} sets itself: {words}"
        if about in given and not error.remedy.startswith("Leave it out"):
            remedy += f"; or {error.remedy[0].lower()}{error.remedy[1:]}"
        raise ConfigError(error.flag, error.value, error.rule, remedy) from None


_METHOD_FLAGS = ("ada.", "algo.", "actor.entropy_coef", "actor.optim", "actor.policy_loss_type")
"""Flags that change what is optimised, by prefix."""

_NOT_THE_METHOD = ("ada.method", "ada.device", "ada.run_dir", "ada.log_texts", "ada.eval_ends", "ada.verbose")


def method_notes(
    flags: SimpleNamespace, argv: Sequence[str], method: Method | None, default: Callable[[str], Any]
) -> list[str]:
    """An old name, and where flags (nested by dots) differ from the method or change what it leaves alone: one line
    for each. `default`: of a flag, by its dotted name."""
    if method is None:
        return []
    lines: list[str] = []
    if flags.ada.method in OLD_NAMES:
        lines.append(f"{FLAG} {flags.ada.method} is now called {method.name}; the old name goes with the next version")
    for name, published in method.flags.items():
        if _differs(flags, name, published):
            lines.append(f"deviation: {spelt(name)} is {_value(flags, name)}, {method.name} has {published}")
    for name in given_flags(argv):
        changes_it = name.startswith(_METHOD_FLAGS) and name not in (*method.flags, *_NOT_THE_METHOD)
        if changes_it and _differs(flags, name, default(name)):
            lines.append(f"deviation: {spelt(name)} is {_value(flags, name)}, {method.name} leaves it alone")
    return lines


def _differs(flags: SimpleNamespace, name: str, published: Any) -> bool:
    """A parser reads several numbers as a list."""
    value = _value(flags, name)
    return value != published and not (isinstance(published, tuple) and tuple(value) == published)


def is_given(name: str, argv: Sequence[str]) -> bool:
    """Does a flag, such as "ada.mode", stand on a command line?"""
    return name in given_flags(argv)


def given_flags(argv: Sequence[str]) -> list[str]:
    """Dotted names of the flags on a command line, each once."""
    return list(dict.fromkeys(dotted(flag) for flag, _ in words_by_flag(argv) if flag))


def _value(flags: SimpleNamespace, name: str) -> Any:
    value: Any = flags
    for part in name.split("."):
        # What a user gave, not what became of it.
        value = getattr(getattr(value, "given", value), part)
    return value
