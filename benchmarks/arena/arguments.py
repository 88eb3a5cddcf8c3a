"""Values of flags that several verbs have."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from openrlhf_ada.config.nearest import did_you_mean


def names(text: str) -> list[str]:
    """Those of a flag, separated by commas; each once."""
    return list(dict.fromkeys(name for name in text.split(",") if name))


def fill_in(args: Namespace, quick: Mapping[str, Any], full: Mapping[str, Any]) -> None:
    """Values of flags that were not given. Raises ValueError where --quick sets one that was."""
    for name, value in (quick if args.quick else full).items():
        if args.quick and getattr(args, name) is not None:
            raise ValueError(f"--{name} does not go with --quick, which sets it. Leave one of the two out")
        if getattr(args, name) is None:
            setattr(args, name, value)


def check_names(flag: str, given: Sequence[str], known: Collection[str]) -> None:
    """Raises ValueError for none, and for one that is not known."""
    all_known = f"Known are {', '.join(known)}"
    if not given:
        raise ValueError(f"{flag} names nothing. {all_known}")
    if unknown := [name for name in given if name not in known]:
        raise ValueError(
            f"{flag} {','.join(unknown)}: there is no such name.{did_you_mean(unknown[0], known)} {all_known}"
        )
