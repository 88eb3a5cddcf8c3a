"""From fields of a dataclass to command-line flags, and the form of an error about one of them."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import Field, field, fields
from functools import partial
from typing import Any

from openrlhf_ada.config.nearest import nearest
from openrlhf_ada.config.visible import as_told


class ConfigError(ValueError):
    """Bad configuration, found before any engine starts. The message names flag, value, rule and remedy."""

    def __init__(self, flag: str, value: object, rule: str, remedy: str) -> None:
        super().__init__(as_told(f"{flag} is {value!r}: {rule}. {remedy}."))
        self.flag, self.value, self.rule, self.remedy = flag, value, rule, remedy


Problem = tuple[str, object, str, str]
"""Flag, value, rule, remedy."""

EVERY_MODE = ("off", "seq", "est")
ADAPTIVE = EVERY_MODE[1:]

Allowed = tuple[Callable[[Any], bool], str, str]
"""Which values a flag takes; else the rule and the remedy of the error."""


def flag(
    default: Any,
    help_text: str,
    *,
    choices: Collection[str] | None = None,
    metavar: str | None = None,
    aliases: Sequence[str] = (),
    minimum: int | None = None,
    allowed: Allowed | None = None,
    read_by: Mapping[str, Sequence[str]] | None = None,
    modes: Sequence[str] = ADAPTIVE,
) -> Any:
    """A dataclass field that is a flag; its type is the annotation's. With default None the help text says which
    value is used.

    Args:
        choices: a table of the method may grow; its names are read when they are needed.
        minimum, allowed: of numbers; one of the two. `allowed` also of text.
        read_by: by the name of another flag, its values with which this one has an effect; others are refused.
        modes: of --ada_mode, with which it has an effect; with others there is a warning.
    """
    metadata = {"help": help_text, "choices": choices, "metavar": metavar, "aliases": tuple(aliases)}
    rules = {"minimum": minimum, "allowed": allowed, "read_by": read_by or {}, "modes": modes}
    return field(default=default, metadata=metadata | rules)


flag_of_every_mode = partial(flag, modes=EVERY_MODE)
flag_of_seq = partial(flag, modes=("seq",))
flag_of_est = partial(flag, modes=("est",))


def kind_of(f: Field[Any]) -> type:
    """The type of a flag's values."""
    return {"str": str, "int": int, "float": float, "bool": bool}[str(f.type).removesuffix(" | None")]


def add_flags_of(cls: Any, parser: argparse.ArgumentParser, title: str, description: str) -> None:
    """Add one argument group with every field of `cls`, in both spellings (--ada_mode and --ada.mode).

    Choices are checked by the dataclass, not by argparse, so that the error has our form.
    """
    group = parser.add_argument_group(title, description)
    for f in fields(cls):
        add_flag(f, group, f"--ada_{f.name}", f"--ada.{f.name}", *f.metadata["aliases"], dest=f"ada.{f.name}")


def add_flag(f: Field[Any], group: Any, *names: str, dest: str) -> None:
    """Add one field to a parser or a group of arguments, under these names."""
    options: dict[str, Any] = {"dest": dest, "default": f.default, "help": _help(f)}
    if kind_of(f) is bool:
        options["action"] = "store_true"
    else:
        options["type"] = kind_of(f)
        options["metavar"] = f.metadata["metavar"] or _choices_metavar(f)
    group.add_argument(*names, **options)


def words_by_flag(arguments: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """A command line as (flag, what follows it), in order, without knowing its flags; "" is the flag of what is first.

    `--x=a` is `--x a`, and the other spelling of our own flags, `--ada.x`, is `--ada_x`.
    """
    flag, words = "", list[str]()
    for part in arguments:
        if not part.startswith("--"):
            words.append(part)
            continue
        yield flag, words
        name, is_joined, value = part.partition("=")
        flag, words = name.replace("--ada.", "--ada_", 1), [value] if is_joined else []
    yield flag, words


def _help(f: Field[Any]) -> str:
    text = f.metadata["help"].replace("%", "%%")
    return text if f.default is None or f.default is False else f"{text} Default: {f.default}."


def _choices_metavar(f: Field[Any]) -> str:
    choices = f.metadata["choices"]
    return "{" + ",".join(choices) + "}" if choices else f.name.upper()


def check_choice(f: Field[Any], value: object) -> None:
    """Raises ConfigError for a value that is not among the field's choices; None is "not given"."""
    choices = f.metadata["choices"]
    if choices and value not in choices and (value is not None or f.default is not None):
        raise ConfigError(
            f"--ada_{f.name}",
            value,
            f"expected one of: {', '.join(choices)}",
            f"Try --ada_{f.name} {nearest(str(value), choices) or list(choices)[-1]}",
        )


def check_number(f: Field[Any], value: Any, name: str) -> None:
    """Raises ConfigError for a value that the field does not allow; None is "not given". `name`: of the flag."""
    if value is None:
        return
    if f.metadata["minimum"] is not None:
        check_minimum(name, value, f.metadata["minimum"])
    if f.metadata["allowed"] is not None:
        is_right, rule, remedy = f.metadata["allowed"]
        if (isinstance(value, float) and not math.isfinite(value)) or not is_right(value):
            raise ConfigError(name, value, rule, remedy)


def check_minimum(name: str, value: int, minimum: int) -> None:
    """Raises ConfigError for a value below the minimum."""
    if value < minimum:
        raise ConfigError(name, value, f"it must be at least {minimum}", f"Try {name} {max(minimum, 1)}")


def check_read(config: Any, *names: str) -> None:
    """Raises ConfigError for a flag that was given while another one has a value with which nothing reads it.

    `names`: of the fields of `config` to look at (default: all).
    """
    for f in fields(config):
        value = getattr(config, f.name)
        if value is None or (names and f.name not in names):
            continue
        for other, values in f.metadata["read_by"].items():
            found = getattr(config, other)
            if found not in values:
                raise ConfigError(f"--ada_{f.name}", value, *unread(f"--ada_{other}", found, values))


def unread(other: str, found: object, values: Sequence[str]) -> tuple[str, str]:
    """(rule, remedy) for a flag that only `values` of the flag `other` read, which is `found`."""
    rule = f"only {other} {' or '.join(values)} reads it, and {other} is {found!r}"
    return rule, f"Add {other} {values[-1]}, or leave it out"
