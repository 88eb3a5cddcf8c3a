"""docs/flags.md: our flags of every command, read from the parsers themselves.

python benchmarks/flag_reference.py      (make docs)
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from openrlhf_ada import HOST_VERSION
from openrlhf_ada.cli.verbs import TRAIN, VERBS
from openrlhf_ada.config.flags import actions_of
from openrlhf_ada.config.schema import SECTIONS, add_flags

INTRODUCTION = f"""# All flags

<!-- Generated from the parsers by benchmarks/flag_reference.py: do not edit; `make docs`. A test compares. -->

**Of everyday use:** `--ada_method`, or `--ada_mode`, `--ada_exit`, `--ada_wave`, `--ada_max_samples`, `--ada_budget`;
`--ada_positive_threshold`; `--ada_scheduler`, `--ada_verify_sync`; `--ada_run_dir`, `--ada_eval_ends`, `--verbose`.
[choosing.md](choosing.md#which-method) says which suit your model and data; [migrating.md](migrating.md) maps those of
other frameworks. A name that is misspelt or cut short is refused, and the error has the nearest.

**Precedence.** The command line, then what `--ada_method` sets (ours and OpenRLHF's), then the default. A run prints
how it deviates from its method, and which flags have no effect.

**OpenRLHF's flags.** All of OpenRLHF {HOST_VERSION}'s work unchanged.
[Its documentation](https://openrlhf.readthedocs.io/) and `openrlhf-ada train --help` list them;
[migrating.md](migrating.md#what-is-refused) has what the adaptive modes refuse. `n` is
`--rollout.n_samples_per_prompt`. Switches take no value and are off unless given.

## openrlhf-ada train: ours
"""

SHARED = ("prepare-data", "eval")
"""Commands with many flags in common: the second has those of the first that it does not list itself."""

_TIME = re.compile(r"\d{4}-\d{6}|\d{4}T\d{2}:\d{2}")
"""As time.strftime writes it in names of runs; the document is the same whenever it is made."""


def render() -> str:
    """The whole document."""
    ours = argparse.ArgumentParser(add_help=False)
    add_flags(ours)
    sections: dict[str, list[tuple[str, str]]] = {}
    for action in actions_of(ours):
        first = action.dest.removeprefix("ada.")
        name = first if first in SECTIONS else list(sections)[-1]
        sections.setdefault(name, []).append(_row(action))
    parts = [INTRODUCTION]
    for name, rows in sections.items():
        title, description = SECTIONS[name]
        parts += [f"### {title}", _prose(description), _table(rows)]
    shared = {_row(action) for action in actions_of(VERBS[SHARED[0]].build_parser())}
    for name, verb in VERBS.items():
        if name != TRAIN:
            parts += _verb(name, verb.build_parser(), shared if name == SHARED[1] else set())
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def _verb(name: str, parser: argparse.ArgumentParser, shared: set[tuple[str, str]]) -> Iterator[str]:
    yield f"## openrlhf-ada {name}"
    yield _prose(" ".join((parser.description or "").split("\n\n")[0].split()).rstrip(".") + ".")
    rows = [_row(action) for action in actions_of(parser)]
    yield _table(row for row in rows if row not in shared)
    if shared.intersection(rows):
        yield f"The flags of [{SHARED[0]}](#openrlhf-ada-{SHARED[0]}) that are not listed here are the same."


def _row(action: argparse.Action) -> tuple[str, str]:
    """How the flag is written, and what its help says, with the default."""
    value = action.metavar or (f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.dest.upper())
    value = "" if action.nargs == 0 else " ".join(value) if isinstance(value, tuple) else value
    value = value[1:-1].replace(",", "|") if value.startswith("{") else value
    text = (action.help or "").replace("%%", "%")
    if action.required and action.option_strings:
        text += " (required)"
    elif "default" not in text.lower() and action.nargs != 0 and action.default not in (None, []):
        text += f" (default {action.default})"
    names = ", ".join(f"`{name}`" for name in action.option_strings[:-1])
    last = f"`{' '.join([*action.option_strings[-1:], value]).strip()}`"
    return ", ".join(filter(None, (names, last))), _prose(_TIME.sub("<time>", text))


_NAMED_FLAG = re.compile(r"(?<![\w`<-])--[a-z]\w*(?:\.\w+)*(?:\.\.\.)?")


def _prose(text: str) -> str:
    """A help text as Markdown: flags as code, and nothing that would be taken for HTML."""
    return _NAMED_FLAG.sub(r"`\g<0>`", text.replace("<", "&lt;"))


def _table(rows: Iterable[tuple[str, str]]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(["| Flag | Meaning |", "|---|---|", *lines])


if __name__ == "__main__":
    (Path(__file__).parents[1] / "docs" / "flags.md").write_text(render(), encoding="utf-8")
