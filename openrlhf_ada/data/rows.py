"""Rows of local data files of every format, each with its place: as an editor counts lines, or by number."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from openrlhf_ada.data.files import DataError, Row, check_is_file, kind_of, local_files, opened, reading, to_text
from openrlhf_ada.data.json_rows import json_rows


def local_rows(
    path: str, flag: str, columns: Sequence[str] = (), optional: Sequence[str] = ()
) -> Iterator[tuple[str, str, Any]] | None:
    """(file, place, row) of every row of a path or pattern; None for what only `datasets` loads.

    Args:
        columns, optional: of tables, only these columns are read (all, if one of `columns` is missing or none is
            named). Dots lead into nested ones.

    Raises:
        DataError: also while reading, for what is broken; the message names flag, file, place, rule and remedy.
    """
    files = local_files(path, flag)
    if files is None:
        return None
    return ((file, place, row) for file in files for place, row in _rows(file, flag, columns, optional))


def _rows(path: str, flag: str, columns: Sequence[str], optional: Sequence[str]) -> Iterator[Row]:
    kind = kind_of(path)
    match kind and kind.format:
        case "json":
            yield from json_rows(path, flag)
        case "csv":
            yield from _csv_rows(path, flag)
        case "parquet":
            yield from _parquet_rows(path, flag, columns, optional)
        case _:
            yield from _arrow_rows(path, flag, columns, optional)


# -- CSV ----------------------------------------------------------------------------------------------------------


def _csv_rows(path: str, flag: str) -> Iterator[Row]:
    """All values are text, so that none changes (007, NA)."""
    csv.field_size_limit(sys.maxsize)
    with opened(path, flag) as stream:
        lines = (to_text(line, path, flag, number) for number, line in enumerate(stream, start=1))
        reader = csv.reader(lines, strict=True)
        names: list[str] = []
        line = 1
        try:
            for record in reader:
                where, line = f"line {line}", reader.line_num + 1
                if not record:
                    continue
                if not names:
                    names = _distinct(record, path, flag)
                    continue
                if len(record) != len(names):
                    raise DataError(
                        f"{flag}: {path} {where} has {len(record)} fields, expected {len(names)} as in the first "
                        f"line: put text with commas or line breaks into quotes"
                    )
                yield where, dict(zip(names, record, strict=True))
        except csv.Error as error:
            raise DataError(
                f"{flag}: {path} line {line} is not valid CSV ({error}): correct the quotes of the line"
            ) from error


# -- tables -------------------------------------------------------------------------------------------------------


def _parquet_rows(path: str, flag: str, columns: Sequence[str], optional: Sequence[str]) -> Iterator[Row]:
    import pyarrow.parquet

    with _table(path, flag, "Parquet"), pyarrow.parquet.ParquetFile(path) as file:
        wanted = _wanted(_distinct(file.schema_arrow.names, path, flag), columns, optional)
        yield from _numbered(file.iter_batches(columns=wanted))


def _arrow_rows(path: str, flag: str, columns: Sequence[str], optional: Sequence[str]) -> Iterator[Row]:
    import pyarrow

    with _table(path, flag, "Arrow"), pyarrow.memory_map(path) as source:
        try:
            reader = pyarrow.ipc.open_file(source)
            batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        except pyarrow.ArrowInvalid:
            # `datasets` writes streams under this name.
            source.seek(0)
            reader = batches = pyarrow.ipc.open_stream(source)
        wanted = _wanted(_distinct(reader.schema.names, path, flag), columns, optional)
        yield from _numbered(batch.select(wanted) if wanted is not None else batch for batch in batches)


@contextmanager
def _table(path: str, flag: str, name: str) -> Iterator[None]:
    import pyarrow

    check_is_file(path, flag)
    try:
        with reading(path, flag):
            yield
    except DataError:
        raise
    except (pyarrow.ArrowException, ValueError, OverflowError, TypeError, KeyError) as error:
        reason = (str(error).strip().splitlines() or ["no message"])[0][:200]
        raise DataError(
            f"{flag}: {path} cannot be read as {name} ({type(error).__name__}: {reason}): copy the file again, or "
            f"convert it to .jsonl"
        ) from error


def _distinct(names: list[str], path: str, flag: str) -> list[str]:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{flag}: {path} has the column {twice!r} twice: rename one of them")
    return names


def _wanted(names: list[str], columns: Sequence[str], optional: Sequence[str]) -> list[str] | None:
    """The columns to read; None: all."""
    needed = [top_of(key, names) for key in columns]
    if not columns or None in needed:
        return None
    found = [top_of(key, names) for key in (*columns, *optional)]
    return list(dict.fromkeys(name for name in found if name is not None))


def top_of(key: str, names: Sequence[str]) -> str | None:
    """The column that holds a key with dots: of that very name, or of its first part."""
    return next((name for name in (key, key.partition(".")[0]) if name in names), None)


def _numbered(batches: Any) -> Iterator[Row]:
    number = 0
    for batch in batches:
        for row in batch.to_pylist():
            number += 1
            yield f"row {number}", row
