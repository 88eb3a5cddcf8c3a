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
from openrlhf_ada.cli.sampling_flags import OF_TRAINING
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

**Of everyday use:** `--ada_method`, or `--ada_mode`, `--ada_exit`, `--ada_wave`, `--ada_max_samples`, `--ada_budget`;
`--ada_positive_threshold`; `--ada_scheduler`, `--ada_verify_sync`; `--ada_run_dir`, `--ada_eval_ends`, `--verbose`.
[choosing.md](choosing.md#which-method) says which suit your model and data; [migrating.md](migrating.md) maps those of
other frameworks.

**Spelling.** `--ada_mode` and `--ada.mode` are the same flag, as are all of ours for training; the last one wins.
OpenRLHF's have the dotted form only. A name that is misspelt or cut short is refused, and the error has the nearest.

**Precedence.** The command line, then what `--ada_method` sets (ours and OpenRLHF's), then the default. A run prints
how it deviates from its method, and which flags have no effect.

**Defaults.** "–" is "not given". Where a value is then derived, the column says which; `n` is
`--rollout.n_samples_per_prompt`. Switches take no value and are off unless given.
"""

HOST_NOTE = f"""
All of OpenRLHF {HOST_VERSION}'s flags work unchanged. [Its documentation](https://openrlhf.readthedocs.io/) and
`openrlhf-ada train --help` have their meaning. [migrating.md](migrating.md#what-is-refused) has what the adaptive
modes refuse. Flags of the same sections and default share a row; brackets show what else a flag takes.
"""

SAMPLERS = ("prepare-data", "eval")
"""Commands with many flags in common."""

_TIME = re.compile(r"\d{4}-\d{6}|\d{4}T\d{2}:\d{2}")
"""As time.strftime writes it in names of runs; the document is the same whenever it is made."""


def render() -> str:
    """The whole document."""
    parser = VERBS[TRAIN].build_parser()
    parts = [INTRODUCTION, "## openrlhf-ada train: ours"]
    for first, members in _groups().items():
        title, note = GROUPS[first]
        parts += [f"### {title}", *([note] if note else []), _table(_OURS, map(_our_row, members))]
    parts += ["## openrlhf-ada train: OpenRLHF's", HOST_NOTE.strip()]
    parts.append(_table(_HOSTS, _host_rows(parser)))
    for name, verb in VERBS.items():
        if name != TRAIN:
            parts += [f"## openrlhf-ada {name}", *_verb(name, verb.build_parser())]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _verb(verb: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """The first of SAMPLERS has a table of what they share, and the others a link to it."""
    shared = _shared() if verb in SAMPLERS else {}
    yield " ".join((parser.description or "").split("\n\n")[0].split()).rstrip(".") + "."
    if verb in SAMPLERS[1:]:
        yield "It has the flags of [prepare-data and eval](#flags-of-prepare-data-and-eval) too."
    yield _table(_VERBS, (_verb_row(a) for a in actions_of(parser) if a.dest not in shared))
    if verb == SAMPLERS[0]:
        of_training = [name for name in shared if name in OF_TRAINING]
        as_there = f"as `--ada_{of_training[0]}`... of [train](#openrlhf-ada-train-ours)"
        yield "### Flags of prepare-data and eval"
        yield _table(
            _VERBS,
            [
                *(_verb_row(action) for name, action in shared.items() if name not in of_training),
                (", ".join(f"`--{name}`" for name in of_training), "as there", as_there),
            ],
        )


def _shared() -> dict[str, argparse.Action]:
    """By name, those that mean the same in all of SAMPLERS."""
    first, *others = [{a.dest: a for a in actions_of(VERBS[verb].build_parser())} for verb in SAMPLERS]
    return {
        name: action
        for name, action in first.items()
        if all(name in theirs and _verb_row(theirs[name]) == _verb_row(action) for theirs in others)
    }


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

_HOSTS = ("Flag", "Default")


def _host_rows(parser: argparse.ArgumentParser) -> Iterator[tuple[str, ...]]:
    """By section in alphabetical order, last those without one; flags of the same sections and default in one row."""
    named: dict[tuple[str, str], list[str]] = {}
    for action in actions_of(parser):
        if not action.dest.startswith("ada."):
            first = action.option_strings[0]
            named.setdefault((first.partition(".")[2] or first, _host_default(action)), []).append(_names(action))
    rows: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for (_, default), names in named.items():
        sections = tuple(sorted(name.partition(".")[0] if "." in name else "~" for name in names))
        rows.setdefault((sections, default), []).extend(sorted(names))
    for (_, default), names in sorted(rows.items(), key=lambda row: row[0][0]):
        yield ", ".join(names), default


def _host_default(action: argparse.Action) -> str:
    """What it may be stands in brackets, unless the default shows it."""
    if action.nargs == 0:
        # --actor.muon.nesterov is on from the start; it is what --actor.muon.no_nesterov switches off.
        return "switch, on" if action.const is action.default is True else "switch"
    default = _value(action.default)
    if not action.choices and default != "–":
        return default
    others = [value for value in _values(action).split(", ") if value != default]
    return f"{default} ({', '.join(others)})"


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
    head, *lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in [header, *rows]]
    return "\n".join([head, f"|{'---|' * len(tuple(header))}", *lines])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")
