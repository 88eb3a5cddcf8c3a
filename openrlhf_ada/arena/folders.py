"""A folder of results: settings.json says how they were made, and a file has a JSON line for each.

The three kinds of comparison of `openrlhf-ada arena` have folders of their own.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SETTINGS = "settings.json"

Result = dict[str, Any]

CellT = TypeVar("CellT", bound="DataclassInstance")
"""A frozen dataclass that says which trial or training a result is of."""


def check_new(folder: Path) -> None:
    """Raises ValueError for a folder of something else: it has no settings."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {folder}: it is a file. Name a folder")
    if folder.is_dir() and not (folder / SETTINGS).exists() and any(folder.iterdir()):
        raise ValueError(f"--out {folder}: it holds something else (there is no {SETTINGS}). Take another folder")


def make(folder: Path) -> None:
    """Raises ValueError where that is not possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out {folder}: this folder cannot be made ({error.strerror}). Take another one") from error


def read_settings(folder: Path, names: Collection[str]) -> dict[str, Any]:
    """Empty for a new folder. `names`: what settings of this kind have. Raises ValueError where one is missing."""
    file = folder / SETTINGS
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is no JSON ({error}). Take another --out") from error
    missing = [name for name in names if not isinstance(found, dict) or name not in found]
    if missing:
        raise ValueError(f"{file} holds no settings of this command (no {missing[0]!r}). Take another --out")
    return found


def read_results(file: Path, kind: type[CellT], measured: Collection[str]) -> Iterator[tuple[int, CellT, Result]]:
    """(number of the line, cell, result) of each line. `measured`: what a result has beside the fields of its cell.

    Raises ValueError for a line that is no such result.
    """
    if not file.exists():
        return
    names = [field.name for field in fields(kind)]
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            result = json.loads(line)
            missing = [name for name in (*names, *measured) if name not in result]
            cell = None if missing else kind(**{name: result[name] for name in names})
            hash(cell)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{file}, line {number} is no result ({error}). Remove this line") from error
        if cell is None:
            raise ValueError(f"{file}, line {number} is no result (no {missing[0]!r}). Remove this line")
        yield number, cell, result
