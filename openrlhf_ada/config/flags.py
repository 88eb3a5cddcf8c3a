"""From fields of a dataclass to command-line flags, and the form of an error about one of them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import Field, field, fields
from typing import Any


class ConfigError(ValueError):
    """Bad configuration, found before any engine starts. The message names flag, value, rule and remedy."""

    def __init__(self, flag: str, value: object, rule: str, remedy: str) -> None:
        super().__init__(f"{flag} is {value!r}: {rule}. {remedy}.")
        self.flag = flag


def flag(
    default: Any,
    help_text: str,
    *,
    choices: Sequence[str] | None = None,
    metavar: str | None = None,
    aliases: Sequence[str] = (),
    kind: type = str,
) -> Any:
    """A dataclass field that is a flag. With default None the help text says what that comes to."""
    metadata = {"help": help_text, "choices": choices, "metavar": metavar, "aliases": tuple(aliases), "kind": kind}
    return field(default=default, metadata=metadata)


def add_flags_of(cls: Any, parser: argparse.ArgumentParser, title: str, description: str) -> None:
    """Add one argument group with every field of `cls`, in both spellings (--ada_mode and --ada.mode).

    Choices are checked by the dataclass, not by argparse, so that the error has our form.
    """
    group = parser.add_argument_group(title, description)
    for f in fields(cls):
        names = [f"--ada_{f.name}", f"--ada.{f.name}", *f.metadata["aliases"]]
        options: dict[str, Any] = {"dest": f"ada.{f.name}", "default": f.default, "help": _help(f)}
        if f.metadata["kind"] is bool:
            options["action"] = "store_true"
        else:
            options["type"] = f.metadata["kind"]
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
            f"--ada_{f.name}", value, f"expected one of: {', '.join(choices)}", f"Try --ada_{f.name} {choices[-1]}"
        )


def check_minimum(name: str, value: int, minimum: int) -> None:
    """Raises ConfigError for a value below the minimum."""
    if value < minimum:
        raise ConfigError(name, value, f"it must be at least {minimum}", f"Try {name} {max(minimum, 1)}")
