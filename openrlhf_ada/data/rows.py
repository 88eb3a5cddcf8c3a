"""Rows of local data files of every format, each with its place: as an editor counts lines, or by number."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

from openrlhf_ada.data.files import ENDINGS, DataError, check_is_file, kind_of, opened, reading
from openrlhf_ada.data.json_rows import json_rows, to_text

Row = tuple[str, Any]
"""(place in the file, row). A row of JSON may be any value; rows of other formats are objects."""


def read_rows(path: str, flag: str, columns: Sequence[str] = (), optional: Sequence[str] = ()) -> Iterator[Row]:
    """Yield every row of a file, whatever its format and compression.

    Args:
        columns, optional: of tables, only these columns are read (all, if one of `columns` is missing or none is
            named). Dots lead into nested ones.

    Raises:
        DataError: while reading, for what is broken; the message names flag, file, place, rule and remedy.
    """
    kind = kind_of(path)
    if kind is None:
        raise DataError(
            f"{flag}: {path} has an ending that is not known, expected one of {ENDINGS}: convert or rename the file"
        )
    if kind.format == "json":
        yield from json_rows(path, flag)
    elif kind.format == "csv":
        yield from _csv_rows(path, flag)
    else:
        check_is_file(path, flag)
        read = _parquet_rows if kind.format == "parquet" else _arrow_rows
        yield from read(path, flag, columns, optional)


# -- CSV ----------------------------------------------------------------------------------------------------------


def _csv_rows(path: str, flag: str) -> Iterator[Row]:
    """All values are text, so that none changes (007, NA)."""
    csv.field_size_limit(sys.maxsize)
    with opened(path, flag) as stream:
        reader = csv.reader(_lines(stream, path, flag), strict=True)
        names: list[str] = []
        line = 1
        try:
            for record in reader:
                where, line = f"line {line}", reader.line_num + 1
                if not record:
                    continue
                if not names:
                    names = _header(record, path, flag)
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


def _lines(stream: BinaryIO, path: str, flag: str) -> Iterator[str]:
    for number, line in enumerate(stream, start=1):
        yield to_text(line, f"{flag}: {path} line {number}", first=number == 1)


def _header(names: list[str], path: str, flag: str) -> list[str]:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{flag}: {path} has the column {twice!r} twice: rename one of them")
    return names


# -- tables -------------------------------------------------------------------------------------------------------


def _parquet_rows(path: str, flag: str, columns: Sequence[str], optional: Sequence[str]) -> Iterator[Row]:
    import pyarrow.parquet

    with _table(path, flag, "Parquet"), pyarrow.parquet.ParquetFile(path) as file:
        wanted = _wanted(file.schema_arrow.names, columns, optional, path, flag)
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
        wanted = _wanted(reader.schema.names, columns, optional, path, flag)
        yield from _numbered(batch.select(wanted) if wanted is not None else batch for batch in batches)


@contextmanager
def _table(path: str, flag: str, name: str) -> Iterator[None]:
    import pyarrow

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


def _wanted(
    names: Sequence[str], columns: Sequence[str], optional: Sequence[str], path: str, flag: str
) -> list[str] | None:
    """The columns to read; None: all."""
    twice = next((name for name in names if list(names).count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{flag}: {path} has the column {twice!r} twice: rename one of them")
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
