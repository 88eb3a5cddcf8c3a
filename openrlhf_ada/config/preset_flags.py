"""A preset on a command line: which one is named, and where the flags differ from it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

from openrlhf_ada.config.flags import ConfigError, words_by_flag
from openrlhf_ada.config.nearest import did_you_mean, nearest
from openrlhf_ada.config.presets import OLD_NAMES, Method, method_named


def named_method(argv: Sequence[str]) -> Method | None:
    """What --ada_method on a command line names; raises ConfigError for what is no method."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    finder.add_argument("--ada_method", "--ada.method", dest="name", nargs="?")
    name: str | None = finder.parse_known_args(list(argv))[0].name
    return None if name is None else method_named(name)


def apply_method(parser: argparse.ArgumentParser, method: Method | None, actions: Iterable[argparse.Action]) -> None:
    """Let a method be the defaults of a parser that has all flags, which are `actions`. Raises ConfigError for a flag
    that is none, and for a value that its flag does not take."""
    if method is None:
        return
    known = {name.lstrip("-"): action for action in actions for name in action.option_strings}
    defaults: dict[str, Any] = {}
    for flag, value in method.flags.items():
        action = known.get(flag)
        if action is None or flag == "ada.method":
            shown = {name.replace("ada.", "ada_", 1) for name in known if "." in name or name.startswith("ada_")}
            hint = did_you_mean(flag.lstrip("-").replace("ada.", "ada_", 1), shown).strip().rstrip("?")
            rule = f"no flag of a method has this name ({_place(method, flag)})"
            raise ConfigError(_spelt(flag), value, rule, hint or "`openrlhf-ada train --help` lists them")
        try:
            defaults[flag] = _taken(action, value)
        except ValueError as error:
            remedy = "`openrlhf-ada train --help` explains it"
            raise ConfigError(_spelt(flag), value, f"{error} ({_place(method, flag)})", remedy) from None
    parser.set_defaults(**defaults)


def _taken(action: argparse.Action, value: Any) -> Any:
    """The value as the flag's own parser gives it. Raises ValueError with the rule."""
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise ValueError("it is a switch: true or false")
        return value
    several = action.nargs not in (None, "?")
    if several and isinstance(value, tuple):
        parts = cast("tuple[Any, ...]", value)
        if isinstance(action.nargs, int) and len(parts) != action.nargs:
            raise ValueError(f"it takes {action.nargs} values")
        return tuple(_one(action, part) for part in parts)
    if several or isinstance(value, tuple):
        raise ValueError("it takes a list, such as [1, 2]" if several else "it takes one value")
    return _one(action, value)


def _one(action: argparse.Action, value: Any) -> Any:
    kind = str if action.type is None else action.type
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int and not (is_number and isinstance(value, int)):
        raise ValueError("it is a whole number")
    if kind is float and not is_number:
        raise ValueError("it is a number")
    if kind is str and not isinstance(value, str):
        raise ValueError("it is a text: write it in quotes")
    if action.choices is not None and value not in action.choices:
        raise ValueError(f"expected one of: {', '.join(map(str, action.choices))}{_hint(value, action.choices)}")
    return float(value) if kind is float else value


def _hint(value: Any, choices: Iterable[Any]) -> str:
    near = nearest(str(value), map(str, choices))
    return f", perhaps {near}" if near else ""


def _spelt(flag: str) -> str:
    """As our own flags are mostly spelt."""
    return f"--{flag.replace('ada.', 'ada_', 1)}"


def _place(method: Method, flag: str) -> str:
    return method.places.get(flag, f"in {method.name}")


def check_with_method(
    flags: SimpleNamespace, argv: Sequence[str], method: Method | None, check: Callable[[SimpleNamespace], None]
) -> None:
    """`check` the flags. Raises ConfigError as it does, and for several rollouts where the method trains one of each
    prompt. The first remedy is to leave out what the method sets: who adds --ada_method keeps flags of another one.
    What a file of the user's own says is named with its line."""
    if method is None:
        check(flags)
        return
    flag, preset = "rollout.n_samples_per_prompt", method.flags
    try:
        if preset.get(flag) == 1 != (n := _value(flags, flag)):
            rule = f"--ada_method {method.name} trains one rollout of each prompt"
            raise ConfigError(f"--{flag}", n, rule, _LEAVE_OUT)
        check(flags)
    except ConfigError as error:
        about = next((flag for flag in preset if error.flag in (f"--{flag}", _spelt(flag))), None)
        given = [flag for flag in dict.fromkeys(_given(argv)) if flag in preset and _differs(flags, flag, preset)]
        if about and method.is_own and about not in given:
            rule = f"{error.rule} ({_place(method, about)})"
            raise ConfigError(error.flag, error.value, rule, error.remedy) from None
        if given and about:
            raise _without(error, method, given) from None
        raise


_LEAVE_OUT = "Leave it out"


def _without(error: ConfigError, method: Method, given: Sequence[str]) -> ConfigError:
    """The same error, whose first remedy is to leave out `given`, or the one of them that it is about."""
    own = [flag for flag in given if error.flag in (f"--{flag}", f"--{flag.replace('ada.', 'ada_')}")]
    words = ", ".join(f"--{flag} (it has {method.flags[flag]})" for flag in own or given)
    remedy = f"Leave out what --ada_method {method.name} sets itself: {words}"
    if own and not error.remedy.startswith(_LEAVE_OUT):
        remedy += f"; or {error.remedy[0].lower()}{error.remedy[1:]}"
    return ConfigError(error.flag, error.value, error.rule, remedy)


def method_notes(
    flags: SimpleNamespace, argv: Sequence[str], method: Method | None, default: Callable[[str], Any]
) -> list[str]:
    """An old name, and where flags (nested by dots) differ from the method or change what it leaves alone: one line
    for each. `default`: of a flag, by its dotted name."""
    if method is None:
        return []
    given = flags.ada.method
    old = f"--ada_method {given} is now called {method.name}; the old name goes with the next version"
    left_alone = {flag: default(flag) for flag in dict.fromkeys(_given(argv)) if _is_of_the_method(flag, method)}
    return [
        *([old] if given in OLD_NAMES else []),
        *(f"deviation: {line}" for line in _deviations(flags, method, left_alone)),
    ]


def _is_of_the_method(flag: str, method: Method) -> bool:
    """Does it change what is optimised, and leaves the method it alone?"""
    return flag not in method.flags and flag.startswith(_METHOD_FLAGS) and flag not in _NOT_THE_METHOD


def _deviations(flags: SimpleNamespace, method: Method, left_alone: Mapping[str, Any]) -> list[str]:
    preset, name = method.flags, method.name
    lines: list[str] = []
    for dotted, published in preset.items():
        if _differs(flags, dotted, preset):
            lines.append(f"--{dotted} is {_value(flags, dotted)}, {name} has {published}")
    for dotted in left_alone:
        if _differs(flags, dotted, left_alone):
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
        # What a user gave, not what became of it.
        value = getattr(getattr(value, "given", value), part)
    return value
