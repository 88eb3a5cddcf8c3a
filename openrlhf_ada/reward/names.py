"""What `--reward.remote_url` and the rows of a data set may name, checked before anything starts."""

from __future__ import annotations

import symtable
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.nearest import nearest
from openrlhf_ada.reward.reward_function import MIXED, NAMED, file_and_function, is_url

REWARD_FUNCTION = "reward_func"


def split_names(value: str | Sequence[str] | None) -> list[str]:
    """The rewards of a list with commas, or of what OpenRLHF has made of one."""
    parts = value.split(",") if isinstance(value, str) else value or ()
    return [part.strip() for part in parts]


def check_rewards(value: str | None, flag: str) -> None:
    """Raises ConfigError for a list of rewards that names what is not there, or what cannot be added up."""
    if value is None:
        return
    names = split_names(value)
    for name in names:
        check_reward(name, flag)
    urls = [name for name in names if is_url(name)]
    if urls and len(urls) < len(names):
        rule = "OpenRLHF takes turns between servers, and functions are added up: a list is of one kind"
        raise ConfigError(flag, value, rule, "Give servers only, or functions only")
    twice = next((name for name in names if names.count(name) > 1 and not is_url(name)), None)
    if twice is not None:
        raise ConfigError(flag, value, f"{twice} comes twice", "Name it once, with its weight (--ada_reward_weights)")


def check_reward(name: str, flag: str) -> None:
    """One name, file, FILE.py:NAME or URL; raises ConfigError."""
    known = (*NAMED, MIXED)
    if name in known or is_url(name):
        return
    file, function = file_and_function(name) or (name, REWARD_FUNCTION)
    if not file.endswith(".py"):
        rule = (
            f"it is no Python file (.py), function in one (FILE.py:NAME), URL (http://), nor one of {', '.join(known)}"
        )
        remedy = _nearest(name, known) or "Give a file that defines reward_func, a server's URL, or one of these names"
        raise ConfigError(flag, name, rule, remedy)
    check_python_file(flag, file, function)


@lru_cache(maxsize=256)
def why_no_grader(name: str) -> str:
    """Why a row may not name this grader, and what to do; "" if it may."""
    if name in NAMED:
        return ""
    named = file_and_function(name)
    if named is None:
        remedy = _nearest(name, NAMED) or f"Name one of {', '.join(NAMED)}, or a function as FILE.py:NAME"
        return f"the reward {name!r} is not known. {remedy}"
    try:
        check_python_file("the reward", *named)
    except ConfigError as error:
        return str(error)
    return ""


def _nearest(name: str, known: Collection[str]) -> str:
    near = nearest(name, known)
    return f"The nearest name is {near}" if near else ""


def check_python_file(flag: str, value: str, name: str) -> None:
    """The file must be there and define the name at its top level; raises ConfigError."""
    path = Path(value)
    if not path.is_file():
        raise ConfigError(flag, value, "there is no such file", f"Give a Python file that defines {name}")
    try:
        with readable(flag, value):
            table = symtable.symtable(path.read_text(encoding="utf-8"), value, "exec")
    except (SyntaxError, ValueError) as error:  # ValueError: not UTF-8, or null bytes in older Pythons
        raise ConfigError(flag, value, f"it is not valid Python ({error})", "Fix the file") from error
    defined = {one.get_name() for one in table.get_symbols() if one.is_assigned() or one.is_imported()}
    if name not in defined:
        own = [f"{value}:{one.get_name()}" for one in table.get_symbols() if one.is_namespace()]
        remedy = f"Define {name} at the top level of the file" + (
            f", or name one of {', '.join(own[:5])}" if own else ""
        )
        near = _nearest(name, defined)
        raise ConfigError(flag, value, f"it does not define {name}", near or remedy)


@contextmanager
def readable(flag: str, value: str) -> Iterator[None]:
    """Raises ConfigError for what the system says."""
    try:
        yield
    except OSError as error:
        raise ConfigError(flag, value, f"it cannot be read ({error.strerror})", "Check its permissions") from error
