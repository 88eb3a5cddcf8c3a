"""Rows that a run leaves out: each is listed in a file, with where it stands and why."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_SHOWN = 10
"""Rows of one data set that are named one by one in what is printed."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """`source`: the file or the data set; `place`: in it, as an editor counts lines; `row`: what stands there."""

    source: str
    place: str
    cause: str
    row: Any = None
    kind: str = ""
    """The same words for the same kind of cause, for counting."""


def write_left_out(rows: Iterable[LeftOut], path: Path) -> None:
    """One JSON object per row, behind those that are there: source, place, cause, row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as stream:
        for one in rows:
            entry = {"source": one.source, "place": one.place, "cause": one.cause, "row": one.row}
            stream.write(json.dumps(entry, default=str) + "\n")


def lines_about(rows: Sequence[LeftOut], flag: str, total: int, file: Path) -> list[str]:
    """What is printed of the rows that are left out of `total` rows, and where all are listed."""
    if not rows:
        return []
    lines = [f"{flag}: {one.source} {one.place}: {one.cause}" for one in rows[:MOST_SHOWN]]
    shown = "" if len(rows) <= MOST_SHOWN else f", of which the first {MOST_SHOWN} are shown"
    return [*lines, f"{flag}: {counted(rows, total)}{shown}. All are listed in {file}"]


def why_few(rows: Sequence[LeftOut], total: int, file: Path | None) -> str:
    """Count, reasons, the first row, and where all are listed."""
    first = f"{counted(rows, total)}; the first is {rows[0].source} {rows[0].place}: {rows[0].cause}"
    return f"{first}. All are listed in {file}"


def counted(rows: Sequence[LeftOut], total: int) -> str:
    """How many are left out of `total` rows, and why."""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in Counter(one.kind for one in rows).most_common())
    return f"{len(rows):,} of {total:,} rows are left out ({kinds})"
