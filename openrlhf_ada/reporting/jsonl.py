"""JSON on disk: strict values, one object a line, whole files replaced atomically."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

logger = logging.getLogger(__name__)

T = TypeVar("T", bound="dict[str, Any] | list[Any]")


class RunDamageError(ValueError):
    """A run's record is damaged beyond a torn last line; the message names file and line."""


class RecordLostError(RuntimeError):
    """A record can no longer be written: its file is gone, or there is no room. What it has is whole lines."""


class RowFile:
    """A JSONL file to append to: whole rows or none, and nothing is kept back in this process. `close` it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)

    def append(self, rows: Iterable[Any]) -> None:
        """Raises RecordLostError where the file was removed or cannot be written; what was begun is taken back."""
        self._check_place()
        size = os.fstat(self._file.fileno()).st_size
        left = memoryview(b"".join(map(encode, rows)))
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            os.ftruncate(self._file.fileno(), size)
            free = shutil.disk_usage(self._path.parent).free
            raise RecordLostError(
                f"{self._path} cannot be written ({error.strerror}; {free >> 20} MiB are free). Its rows are whole: "
                f"make room, then resume from the last checkpoint"
            ) from error

    def _check_place(self) -> None:
        mine = os.fstat(self._file.fileno())
        try:
            is_there = os.path.samestat(mine, self._path.stat())
        except OSError:
            is_there = False
        if not is_there:
            said = f"{self._path} was removed or replaced while the run was writing it"
            raise RecordLostError(f"{said}: resume from the last checkpoint with another --ada_run_dir")

    def close(self) -> None:
        self._file.close()


def encode(value: Any, *, indent: int | None = None) -> bytes:
    """One JSON text with a final newline. Numpy scalars become numbers, paths text; half a surrogate pair, which a
    model can produce, stays as its escape.

    Raises ValueError for a number that is not finite (see `finite`), TypeError for a tensor, an array and the like.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent, default=_plain) + "\n"
    return text.encode("utf-8", errors="backslashreplace")


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"JSON cannot hold a {type(value).__name__}: pass numbers, text, lists or dicts")


def finite(value: Any) -> Any:
    """A nested value with NaN and infinities as text, for which JSON has no word."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {name: finite(inner) for name, inner in value.items()}
    return [finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of every line of a JSONL file, one at a time.

    A last line without a newline that is not JSON is what a killed writer leaves: it is skipped with a warning. Raises
    RunDamageError: any other line that is not a JSON object.
    """
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                row = _DECODER.decode(line.decode("utf-8"))
            except ValueError as error:
                if not line.endswith(b"\n"):
                    logger.warning("%s: line %d is cut off (the writer was killed); it is left out", path, number)
                    return
                raise damage(path, f"not JSON ({error})", number) from error
            if not isinstance(row, dict):
                raise damage(path, "not a JSON object", number)
            yield number, row


def row_step(path: Path, line: int, row: dict[str, Any]) -> int:
    """The step of a row; raises RunDamageError if it has none."""
    step = row.get("step")
    if not isinstance(step, int):
        raise damage(path, f"'step' is {step!r}, expected a whole number", line)
    return step


def damage(path: Path, what: str, line: int = 0) -> RunDamageError:
    """The error for a line, or without one for a file that is a single JSON value."""
    place, remedy = (f"{path}, line {line}", "remove the line") if line else (path, "restore the file")
    return RunDamageError(f"{place}: {what}. The record was changed after it was written; {remedy}")


def read_json(path: Path, kind: type[T]) -> T:
    """The value of a file that is one JSON object or array. Raises RunDamageError for anything else."""
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise damage(path, f"not JSON ({error})") from error
    if not isinstance(value, kind):
        raise damage(path, "not a JSON object" if kind is dict else "not a JSON array")
    return value


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


# One for all lines: json.loads would build one per line, which doubles the time of reading.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step: a reader, or a crash, sees the old content or the new, never half of it."""
    _replace(path, [content])


def keep_rows_up_to(path: Path, step: int) -> None:
    """Rewrite a JSONL file without the rows after `step` (atomically, one row in memory). A torn last line goes too.

    Raises RunDamageError for a damaged row, or one without a step.
    """
    _replace(path, (encode(row) for line, row in read_rows(path) if row_step(path, line, row) <= step))


def _replace(path: Path, chunks: Iterable[bytes]) -> None:
    draft = path.with_name(f".{path.name}.tmp")
    with draft.open("wb") as stream:
        stream.writelines(chunks)
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(path)
