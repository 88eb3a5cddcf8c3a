"""docs/flags.md: every flag of every command, read from the parsers themselves.

python -m openrlhf_ada.cli.flag_reference docs/flags.md      (make docs)
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from openrlhf_ada import HOST_VERSION
from openrlhf_ada.cli.verbs import TRAIN, VERBS
from openrlhf_ada.config.flags import kind_of
from openrlhf_ada.config.schema import AdaConfig

GROUPS = {
    "mode": ("The method", ""),
    "exit": ("Ada-Seq (`--ada_mode seq`)", ""),
    "budget": (
        "Ada-Est (`--ada_mode est`)",
        "What predicts pass rates also serves Ada-Seq with `--ada_baseline estimator` or `critic`.",
    ),
    "min_samples": ("Both modes", "What is sampled at most, what is kept, and with which weights."),
    "loss": (
        "The policy's loss",
        "In every mode. [algorithms.md](algorithms.md) says which objective follows from a loss.",
    ),
    "scheduler": (
        "Scheduling and failures",
        "See [scheduling.md](scheduling.md). All schedulers give the same pools.",
    ),
    "verify_sync": ("Weights", "See [weights.md](weights.md)."),
    "silence": (
        "Processes that do nothing",
        "In every mode. [operations.md](operations.md#when-nothing-happens) says what counts as progress.",
    ),
    "eval_ends": ("The record", "In every mode."),
    "reward_timeout": (
        "Rewards",
        "See [rewards.md](rewards.md). For the named rewards and those made with `pooled`, in every mode.",
    ),
}
"""By the first field of the group, in the order of the document: title, and what else there is to say."""

INTRODUCTION = """# All flags

<!-- Generated from the parsers by openrlhf_ada/cli/flag_reference.py: do not edit; `make docs`. A test compares. -->

- [`openrlhf-ada train`: ours](#openrlhf-ada-train-ours), [OpenRLHF's](#openrlhf-ada-train-openrlhfs)
{contents}

[main_flags.md](main_flags.md) lists the flags of everyday use. [choosing.md](choosing.md) says which to choose, and
[migrating.md](migrating.md) maps the flags of other frameworks to ours.

**Two spellings.** Each of our training flags has two: `--ada_mode` and `--ada.mode`. They are the same flag; the last
one on the command line wins. OpenRLHF's flags have the dotted one only. Names cannot be abbreviated. A misspelt flag
is refused, and the error names the nearest flag.

**Precedence.** First the command line, then the flags that `--ada_method` sets (ours and OpenRLHF's), then the
default. Differences from a named method are printed as deviations when the run starts. A warning names flags without
effect. Combinations without a meaning are refused before anything starts.

**Empty defaults.** "–" means "not given". If a value is then derived, the column says which; `n` is
`--rollout.n_samples_per_prompt`. Switches take no value and are off unless given.
"""

HOST_NOTE = f"""
All of OpenRLHF {HOST_VERSION}'s flags work unchanged, and are parsed and checked by its own code. Names, values and
defaults are listed here as the installed package has them; their meaning is in
[OpenRLHF's documentation](https://openrlhf.readthedocs.io/) and in `openrlhf-ada train --help`.
[migrating.md](migrating.md) says which of them the adaptive modes refuse.
"""

_TIME = re.compile(r"\d{4}-\d{6}|\d{4}T\d{2}:\d{2}")
"""As time.strftime writes it in names of runs; the document is the same whenever it is made."""


def render() -> str:
    """The whole document."""
    parser = VERBS[TRAIN].build_parser()
    contents = "\n".join(f"- [`openrlhf-ada {verb}`](#openrlhf-ada-{verb})" for verb in VERBS if verb != TRAIN)
    parts = [INTRODUCTION.format(contents=contents), "## openrlhf-ada train: ours"]
    for first, members in _groups().items():
        title, note = GROUPS[first]
        parts += [f"### {title}", *([note] if note else []), _table(_OURS, map(_our_row, members))]
    parts += ["## openrlhf-ada train: OpenRLHF's", HOST_NOTE.strip()]
    for title, actions in _sections(parser).items():
        parts += [f"### {title}", _table(_HOSTS, map(_host_row, actions))]
    for name, verb in VERBS.items():
        if name != TRAIN:
            parts += [f"## openrlhf-ada {name}", *_verb(verb.build_parser())]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _verb(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield " ".join((parser.description or "").split("\n\n")[0].split()).rstrip(".") + "."
    yield _table(_VERBS, map(_verb_row, actions_of(parser)))


# -- ours -------------------------------------------------------------------------------------------------------------

_OURS = ("Flag", "Values", "Default", "Meaning")


def _groups() -> dict[str, list[Field[Any]]]:
    """Fields by the first of their group, in the order of GROUPS."""
    groups: dict[str, list[Field[Any]]] = {first: [] for first in GROUPS}
    current = ""
    for field in fields(AdaConfig):
        current = field.name if field.name in GROUPS else current
        groups[current].append(field)
    return groups


def _our_row(field: Field[Any]) -> tuple[str, ...]:
    metadata = field.metadata
    names = ", ".join(f"`{name}`" for name in (f"--ada_{field.name}", *metadata["aliases"]))
    meaning, _, comes_to = metadata["help"].partition(" Default: ")
    given = field.default is not None and field.default is not False
    default = _value(field.default) if given else _prose(comes_to.rstrip(".")) or "–"
    return names, _values_of_ours(field), default, _prose(meaning)


def _values_of_ours(field: Field[Any]) -> str:
    metadata = field.metadata
    if metadata["choices"]:
        return ", ".join(f"`{choice}`" for choice in metadata["choices"])
    least = "" if metadata["minimum"] is None else f" ≥ {metadata['minimum']}"
    return _TYPES[kind_of(field)] + least


# -- OpenRLHF's -------------------------------------------------------------------------------------------------------

_HOSTS = ("Flag", "Values", "Default")


def _sections(parser: argparse.ArgumentParser) -> dict[str, list[argparse.Action]]:
    """The host's flags by section, in alphabetical order; last those without one."""
    sections: dict[str, list[argparse.Action]] = {}
    for action in actions_of(parser):
        if not action.dest.startswith("ada."):
            section, dot, _ = action.option_strings[0].partition(".")
            sections.setdefault(f"`{section}...`" if dot else "Without a section", []).append(action)
    return dict(sorted(sections.items(), key=lambda item: (not item[0].startswith("`"), item[0])))


def _host_row(action: argparse.Action) -> tuple[str, ...]:
    if action.nargs == 0:
        # --actor.muon.nesterov is on from the start; it is what --actor.muon.no_nesterov switches off.
        return _names(action), _values(action), "on" if action.const is action.default is True else "–"
    return _names(action), _values(action), _value(action.default)


# -- the other commands -----------------------------------------------------------------------------------------------

_VERBS = ("Flag", "Values", "Meaning")


def _verb_row(action: argparse.Action) -> tuple[str, ...]:
    text = _TIME.sub("<time>", action.help or "")
    default = f"{action.default:g}" if isinstance(action.default, float) else str(action.default)
    if action.required and action.option_strings:
        text += " (required)"
    elif "default" not in text.lower() and action.nargs != 0 and action.default not in (None, []):
        # "for one score (10)" has it in brackets already.
        text = text if f"({default})" in text else f"{text} (default {default})"
    return _names(action), _values(action), _prose(text.replace(f"({default})", f"(default {default})"))


# -- tables -----------------------------------------------------------------------------------------------------------


def actions_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """What a parser takes, without --help."""
    # argparse has no public way to list its flags.
    actions = parser._actions  # pyright: ignore[reportPrivateUsage]
    return [a for a in actions if not isinstance(a, argparse._HelpAction) and a.help != argparse.SUPPRESS]  # pyright: ignore[reportPrivateUsage]


def _names(action: argparse.Action) -> str:
    return ", ".join(f"`{name}`" for name in action.option_strings or [str(action.metavar or action.dest).upper()])


def _values(action: argparse.Action) -> str:
    if action.nargs == 0:
        return "switch"
    if action.choices:
        return ", ".join(f"`{choice}`" for choice in action.choices)
    count = {"+": ", one or more", "*": ", any number", "?": ", optional", None: ""}
    many = f", {action.nargs} of them" if isinstance(action.nargs, int) else count[action.nargs]
    if action.type in _TYPES:
        return _TYPES[action.type] + many
    # Read by a function of ours; the metavar shows the form.
    return f"`{action.metavar or action.dest.upper()}`{many}"


_TYPES: dict[Any, str] = {int: "integer", float: "number", str: "text", None: "text", bool: "switch", Path: "path"}

_NAMED_FLAG = re.compile(r"(?<![\w`<-])--[a-z]\w*(?:\.\w+)*(?:\.\.\.)?")


def _prose(text: str) -> str:
    """A help text as Markdown: flags as code, and nothing that would be taken for HTML."""
    return _NAMED_FLAG.sub(r"`\g<0>`", text.replace("<", "&lt;"))


def _value(value: Any) -> str:
    if value is None or value == "":
        return "–"
    if isinstance(value, list | tuple):
        return f"`{' '.join(map(str, value))}`"
    return f"`{_TIME.sub('<time>', f'{value:g}' if isinstance(value, float) else str(value))}`"


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(header), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")
