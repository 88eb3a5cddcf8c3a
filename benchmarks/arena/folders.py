"""A folder of results: settings.json says how they were made, and a file has a JSON line for each.

A line has what was measured, and the fields of its cell: a frozen dataclass that says of which trial it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, fields
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from openrlhf_ada.config.schema import AdaConfig

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SETTINGS, LINES = "settings.json", "results.jsonl"

Result = dict[str, Any]

CellT = TypeVar("CellT", bound="DataclassInstance")


class Results(Generic[CellT]):
    """Those of a folder, by cell. `measured`: what a result has beside the fields of its cell.

    Raises ValueError for a line that is no such result.
    """

    def __init__(self, folder: Path, kind: type[CellT], measured: Collection[str]) -> None:
        self.folder = folder
        self.by_cell: dict[CellT, Result] = dict(_read(folder / LINES, kind, measured))

    def add(self, cell: CellT, result: Result) -> None:
        """Keep it, in memory and on disk."""
        self.by_cell[cell] = asdict(cell) | result
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / LINES).open("a", encoding="utf-8") as file:
            file.write(json.dumps(self.by_cell[cell]) + "\n")

    def missing(self, cells: Sequence[CellT]) -> list[CellT]:
        """Of these."""
        return [cell for cell in cells if cell not in self.by_cell]

    def run(
        self, cells: Sequence[CellT], run_cell: Callable[[CellT, Path], Result], processes: int
    ) -> Iterator[CellT]:
        """Run what is missing, side by side; yields each cell that has ended. `run_cell` gets the folder as well."""
        missing = self.missing(cells)
        if not missing:
            return
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            cell_of = {pool.submit(run_cell, cell, self.folder): cell for cell in missing}
            try:
                for future in as_completed(cell_of):
                    self.add(cell_of[future], future.result())
                    yield cell_of[future]
            finally:
                # After an interruption: only trials that run now are waited for.
                pool.shutdown(cancel_futures=True)


def _read(file: Path, kind: type[CellT], measured: Collection[str]) -> Iterator[tuple[CellT, Result]]:
    if not file.exists():
        return
    names = [field.name for field in fields(kind)]
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            result = json.loads(line)
            missing = [name for name in (*names, *measured) if name not in result]
            if missing:
                raise ValueError(f"no {missing[0]!r}")
            cell = kind(**{name: result[name] for name in names})
            hash(cell)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{file}, line {number} is no result ({error}). Remove this line") from error
        yield cell, result


def read_settings(folder: Path, needed: Collection[str]) -> dict[str, Any]:
    """Empty for a new folder. `needed`: what settings of this kind have.

    Raises ValueError for a file, and for a folder of something else.
    """
    file = folder / SETTINGS
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {folder}: it is a file. Name a folder")
    if not file.exists():
        if folder.is_dir() and any(folder.iterdir()):
            raise ValueError(f"--out {folder}: it holds something else (there is no {SETTINGS}). Take another folder")
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is no JSON ({error}). Take another --out") from error
    missing = [name for name in needed if not isinstance(found, dict) or name not in found]
    if missing:
        raise ValueError(f"{file} holds no settings of this command (no {missing[0]!r}). Take another --out")
    return found


def as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Lists for tuples, and text for keys."""
    return json.loads(json.dumps(settings, default=repr))


def difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """The first, empty where there is none. `theirs`: as JSON has them; flags that came later had their defaults."""
    known = as_json(asdict(AdaConfig()))
    theirs = {name: known.get(name) for name in ours} | dict(theirs)
    ours = as_json(ours)
    names = (name for name in theirs if theirs[name] != ours.get(name))
    return next((f"{name}: {theirs[name]} there, {ours.get(name)} here" for name in names), "")


def keep_settings(folder: Path, ours: Mapping[str, Mapping[str, Any]], needed: Collection[str]) -> None:
    """Note in the folder how its results are made. `needed`: as in `read_settings`.

    Raises ValueError where its results were made otherwise.
    """
    theirs = read_settings(folder, needed)
    for what, settings in ours.items():
        if found := difference(theirs.setdefault(what, as_json(settings)), settings):
            raise ValueError(
                f"--out {folder}: its results were made otherwise: {what}, {found}. Name another folder, or remove "
                "this one"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out {folder}: this folder cannot be made ({error.strerror}). Take another one") from error
    (folder / SETTINGS).write_text(json.dumps(theirs, indent=1), encoding="utf-8")
