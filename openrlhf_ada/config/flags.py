"""From fields of a dataclass to command-line flags, and the form of an error about one of them."""

from __future__ import annotations

import argparse
import ast
import inspect
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, field, fields
from functools import lru_cache, partial
from itertools import islice, pairwise
from typing import Any

from openrlhf_ada.config.nearest import nearest
from openrlhf_ada.config.visible import as_told

Problem = tuple[str, object, str, str]
"""Flag, value, rule, remedy."""


class ConfigError(ValueError):
    """Bad configuration, found before any engine starts. The message names flag, value, rule and remedy, of `more`
    problems too; the attributes are those of the first."""

    def __init__(self, flag: str, value: object, rule: str, remedy: str, *more: Problem) -> None:
        lines = [f"{name} is {given!r}: {why}. {do}." for name, given, why, do in ((flag, value, rule, remedy), *more)]
        super().__init__("\n".join(map(as_told, lines)))
        self.flag, self.value, self.rule, self.remedy = flag, value, rule, remedy


def raise_first(problems: Iterable[Problem]) -> None:
    """As ConfigError."""
    raise_all(islice(problems, 1))


def raise_all(problems: Iterable[Problem]) -> None:
    """As one ConfigError, each on a line of its own."""
    if several := list(problems):
        raise ConfigError(*several[0], *several[1:])


Allowed = tuple[Callable[[Any], bool], str, str]
"""Which values a flag takes; else the rule and the remedy of the error."""


FULL_MARKS = 0.999999
"""An answer with full marks scores more: 1, up to rounding."""


def imports_of(text: str) -> tuple[str, ...]:
    """The modules of --ada_code_imports."""
    return () if text == "none" else tuple(name.strip() for name in text.split(","))


def flag(
    default: Any,
    metavar: str | None = None,
    within: str = "(-inf, inf)",
    *,
    choices: Collection[str] | None = None,
    alias: str | None = None,
    allowed: Allowed | None = None,
    read_by: Mapping[str, Sequence[object]] | None = None,
) -> Any:
    """A dataclass field that is a flag; its type is the annotation's, its help the text under it. With default None
    the help says which value is used.

    Args:
        within: an interval of numbers. `allowed`: a rule for text.
        choices: a table of the method may grow; its names are read when they are needed.
        alias: another name of the flag.
        read_by: by attribute of the resolved settings, its values with which this flag has an effect; with others
            there is a warning.
    """
    metadata = {"metavar": metavar, "within": within, "choices": choices, "alias": alias, "allowed": allowed}
    return field(default=default, metadata=metadata | {"read_by": read_by or {}})


@lru_cache
def help_texts(cls: type) -> dict[str, str]:
    """By field, the text under it in the source; none where the package is installed without sources.

    {NAME} in it is a constant of the module.
    """
    try:
        source = inspect.getsource(cls)
    except OSError:
        return defaultdict(str)
    (body,) = ast.parse(source).body
    assert isinstance(body, ast.ClassDef)
    constants, texts = vars(sys.modules[cls.__module__]), dict[str, str]()
    for declared, text in pairwise(body.body):
        if isinstance(declared, ast.AnnAssign) and isinstance(text, ast.Expr):
            name, said = ast.unparse(declared.target), ast.literal_eval(text.value)
            texts[name] = " ".join(said.split()).format_map(constants)
    return texts


ADAPTIVE = {"mode": ("seq", "est")}
SEQ, EST = {"mode": ("seq",)}, {"mode": ("est",)}
SOME = ("any but 0, None and False",)
"""In place of an attribute's values."""

flag_of_seq, flag_of_est = partial(flag, read_by=SEQ), partial(flag, read_by=EST)
flag_of_both = partial(flag, read_by=ADAPTIVE)


def kind_of(f: Field[Any]) -> type:
    """The type of a flag's values."""
    return {"str": str, "int": int, "float": float, "bool": bool}[str(f.type).removesuffix(" | None")]


def add_flags_of(cls: Any, parser: argparse.ArgumentParser, sections: Mapping[str, tuple[str, str]]) -> None:
    """Add every field of `cls`, in groups. `sections`: title and description by the first field of each.

    Choices are checked by the dataclass, not by argparse, so that the error has our form.
    """
    group: Any = parser
    for f in fields(cls):
        if f.name in sections:
            group = parser.add_argument_group(*sections[f.name])
        names = [f"--ada_{f.name}", f.metadata["alias"]]
        add_flag(cls, f.name, group, *(name for name in names if name), dest=f"ada.{f.name}")


def add_flag(cls: Any, field_name: str, group: Any, *names: str, dest: str) -> None:
    """Add one field of `cls` to a parser or a group of arguments, under these names."""
    f: Field[Any] = cls.__dataclass_fields__[field_name]
    options: dict[str, Any] = {"dest": dest, "default": f.default, "help": _help(f, help_texts(cls)[field_name])}
    if kind_of(f) is bool:
        options["action"] = "store_true"
    else:
        options["type"] = kind_of(f)
        options["metavar"] = f.metadata["metavar"] or _choices_metavar(f)
    group.add_argument(*names, **options)


def actions_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """What a parser takes, without --help."""
    # argparse has no public way to list its flags.
    actions = parser._actions  # pyright: ignore[reportPrivateUsage]
    return [a for a in actions if not isinstance(a, argparse._HelpAction) and a.help != argparse.SUPPRESS]  # pyright: ignore[reportPrivateUsage]


def words_by_flag(arguments: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """A command line as (flag, what follows it), in order, without knowing its flags; "" is the flag of what is first.

    `--x=a` is `--x a`.
    """
    flag, words = "", list[str]()
    for part in arguments:
        if not part.startswith("--"):
            words.append(part)
            continue
        yield flag, words
        flag, is_joined, value = part.partition("=")
        words = [value] if is_joined else []
    yield flag, words


def dotted(flag: str) -> str:
    """Of a flag its name in sections, without dashes: ada.mode of --ada_mode, actor.adam.lr of --actor.adam.lr."""
    name = flag.removeprefix("--")
    return name.replace("ada_", "ada.", 1) if name.startswith("ada_") else name


def spelt(dotted_name: str) -> str:
    """The flag of a name in sections: --ada_mode of ada.mode."""
    return f"--{dotted_name.replace('ada.', 'ada_', 1) if dotted_name.startswith('ada.') else dotted_name}"


def _help(f: Field[Any], text: str) -> str:
    text = text.replace("%", "%%")
    return text if f.default is None or f.default is False else f"{text} Default: {f.default}."


def _choices_metavar(f: Field[Any]) -> str:
    choices = f.metadata["choices"]
    return "{" + ",".join(choices) + "}" if choices else f.name.upper()


def check_value(f: Field[Any], value: Any, name: str) -> None:
    """Raises ConfigError for a value that the field does not take; None is "not given". `name`: of the flag."""
    if value is None and f.default is None:
        return
    choices, allowed = f.metadata["choices"], f.metadata["allowed"]
    if choices and value not in choices:
        remedy = f"Try {name} {nearest(str(value), choices) or list(choices)[-1]}"
        raise ConfigError(name, value, f"expected one of: {', '.join(choices)}", remedy)
    if isinstance(value, int | float) and not is_within(value, f.metadata["within"]):
        remedy = "Leave it out" if f.default is None else f"Try {name} {f.default:g}"
        raise ConfigError(name, value, said_interval(f.metadata["within"]), remedy)
    if allowed is not None and not allowed[0](value):
        raise ConfigError(name, value, *allowed[1:])


def is_within(value: float, interval: str) -> bool:
    """Of an interval such as "(0, 1]". What is not finite is in none."""
    low, high = map(float, interval[1:-1].split(","))
    above = value > low if interval[0] == "(" else value >= low
    below = value < high if interval[-1] == ")" else value <= high
    return math.isfinite(value) and above and below


def said_interval(interval: str) -> str:
    """The rule in words."""
    low, high = interval[1:-1].split(", ")
    if high != "inf":
        return f"it must lie in {interval}"
    if low == "-inf":
        return "it must be a finite number"
    return f"it must be {'above' if interval[0] == '(' else 'at least'} {low}"
