"""JSON on disk: strict values, one object a line, whole files replaced atomically."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias, TypeVar

import numpy as np

logger = logging.getLogger(__name__)

T = TypeVar("T", bound="dict[str, Any] | list[Any]")

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
NonFinite: TypeAlias = Literal["raise", "null", "text"]
"""What NaN and infinities become, JSON having no word for them: an error, null, or the text "inf"."""


class RunDamageError(ValueError):
    """A run's record is damaged beyond a torn last line; the message names file and line."""


class RecordLostError(RuntimeError):
    """A record can no longer be written: its file is gone, or there is no room. What it has is whole lines."""


class RowFile:
    """A JSONL file to append to: whole rows or none. A context is not needed; `close` it.

    Nothing is kept back in this process, so a killed run keeps its record.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)

    def append(self, rows: Iterable[JsonValue]) -> None:
        """Raises RecordLostError where the file was removed or replaced, and where it cannot be written; a row that
        was begun is taken back then."""
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
                f"{self._path} cannot be written ({error.strerror}; {free / 2**20:.0f} MiB are free there). All rows "
                f"before this one are whole. Make room, then resume from the last checkpoint"
            ) from error

    def _check_place(self) -> None:
        mine = os.fstat(self._file.fileno())
        try:
            is_there = os.path.samestat(mine, self._path.stat())
        except OSError:
            is_there = False
        if not is_there:
            raise RecordLostError(
                f"{self._path} was removed or replaced while the run was writing it: leave a run's directory alone as "
                f"long as it goes on. Resume from the last checkpoint with another --ada_run_dir"
            )

    def close(self) -> None:
        self._file.close()


def to_json_value(name: str, value: object, non_finite: NonFinite) -> JsonValue:
    """`value` as plain JSON types; numpy scalars become numbers, paths become text.

    Raises:
        ValueError: a number that is not finite, if `non_finite` is "raise"; the message names the key.
        TypeError: a type that JSON cannot hold (tensors and arrays among them); the message names the key.
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return _finite(name, float(value), non_finite)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list | tuple):
        return [to_json_value(f"{name}[{i}]", inner, non_finite) for i, inner in enumerate(value)]
    if isinstance(value, Mapping):
        return {_text_key(name, key): to_json_value(f"{name}.{key}", v, non_finite) for key, v in value.items()}
    raise TypeError(
        f"{name!r} is a {type(value).__name__}, which JSON cannot hold: pass numbers, text, lists or dicts"
    )


def _finite(name: str, value: float, non_finite: NonFinite) -> float | str | None:
    if math.isfinite(value):
        return value
    if non_finite == "raise":
        raise ValueError(f"{name!r} is {value}, which JSON cannot hold: find out why it is not finite, or pass None")
    return None if non_finite == "null" else str(value)


def _text_key(name: str, key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{name!r} has the key {key!r} of type {type(key).__name__}: JSON keys are text")
    return key


def encode(row: JsonValue, *, indent: int | None = None) -> bytes:
    """One JSON text with a final newline. Half a surrogate pair, which a model can produce, stays as its escape."""
    text = json.dumps(row, ensure_ascii=False, allow_nan=False, indent=indent) + "\n"
    return text.encode("utf-8", errors="backslashreplace")


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of every line of a JSONL file, one at a time.

    A last line without a newline that is not JSON is what a killed writer leaves: it is skipped with a warning.

    Raises:
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
                raise damage_error(path, number, f"not JSON ({error})") from error
            if not isinstance(row, dict):
                raise damage_error(path, number, "not a JSON object")
            yield number, row


def row_step(path: Path, line: int, row: dict[str, Any]) -> int:
    """The step of a row; raises RunDamageError if it has none."""
    step = row.get("step")
    if not isinstance(step, int):
        raise damage_error(path, line, f"'step' is {step!r}, expected a whole number")
    return step


def damage_error(path: Path, line: int, what: str) -> RunDamageError:
    """The error for a damaged line."""
    return RunDamageError(f"{path}, line {line}: {what}. The record was changed after it was written; remove the line")


def damaged_file(path: Path, what: str) -> RunDamageError:
    """The error for a file that is one JSON value."""
    return RunDamageError(f"{path}: {what}. The record was changed after it was written; restore the file")


def read_json(path: Path, kind: type[T]) -> T:
    """The value of a file that is one JSON object or array. Raises RunDamageError for anything else."""
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise damaged_file(path, f"not JSON ({error})") from error
    if not isinstance(value, kind):
        raise damaged_file(path, "not a JSON object" if kind is dict else "not a JSON array")
    return value


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


# One for all lines: json.loads would build one per line, which doubles the time of reading.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step: a reader, or a crash, sees the old content or the new, never half of it."""
    draft = path.with_name(f".{path.name}.tmp")
    with draft.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(path)


def keep_rows_up_to(path: Path, step: int) -> None:
    """Rewrite a JSONL file without the rows after `step` (atomically, one row in memory). A torn last line goes too.

    Raises:
        RunDamageError: a damaged row, or one without a step.
    """
    draft = path.with_name(f".{path.name}.tmp")
    with draft.open("wb") as stream:
        for line, row in read_rows(path):
            if row_step(path, line, row) <= step:
                stream.write(encode(row))
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(path)
