"""Rows of local data files of every format, each with its place: as an editor counts lines, or by number."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain, islice
from typing import Any

from openrlhf_ada.config.passed_on import once_each
from openrlhf_ada.data.files import DataError, Row, format_of, format_remedy, local_files, opened, to_text


def text_rows(path: str, flag: str) -> Iterator[tuple[str, str, Any]] | None:
    """(file, place, row) of every row of a path or pattern of JSON or CSV; None for what `datasets` loads. Raises
    DataError: also while reading, for what is broken; the message names flag, file, place, rule and remedy."""
    files = local_files(path, flag)
    if files is None:
        return None
    readers = {"json": _json_rows, "csv": _csv_rows}
    return ((file, place, row) for file in files for place, row in readers[format_of(file) or ""](file, flag))


# -- JSON: numbers keep all their digits, and no key may come twice ---------------------------------------------------

_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass
class _MistakeError(ValueError):
    """`line`: in the text that was read, from 0."""

    cause: str
    line: int = 0


def _number(text: str) -> float | Decimal:
    """A float where it has the very value of the text; else a Decimal, which keeps it."""
    value = float(text)
    return value if Decimal(repr(value)) == Decimal(text) else Decimal(text)


_DECODER = json.JSONDecoder(object_pairs_hook=once_each, parse_float=_number)


def _json_rows(path: str, flag: str) -> Iterator[Row]:
    """The values of the file; or the rows within, where one object is around them."""
    values = _json_values(path, flag)
    head = list(islice(values, 2))
    rows = _rows_within(head[0][1]) if len(head) == 1 else []
    yield from ((f"row {number}", row) for number, row in enumerate(rows, start=1))
    yield from () if rows else chain(head, values)


def _rows_within(value: Any) -> list[Any]:
    """Of `{"data": [...]}`, also with notes beside it, and of an object with another key alone. Messages are none."""
    is_around = isinstance(value, dict) and (len(value) == 1 or "data" in value)
    found = value.get("data", next(iter(value.values()))) if is_around else []
    rows = found if isinstance(found, list) else []
    return rows if all(isinstance(row, dict) and not row.keys() & {"role", "from"} for row in rows) else []


def _json_values(path: str, flag: str) -> Iterator[Row]:
    """One per line; if line 1 is no whole row, the elements of an array, or objects spread over lines."""
    with opened(path, flag) as stream:
        is_first = True
        for number, line in enumerate(stream, start=1):
            text = to_text(line, path, flag, number)
            if not text.strip():
                continue
            row, broken = None, None
            try:
                row = _only(text)
            except _MistakeError as mistake:
                broken = _MistakeError(mistake.cause)
            if is_first and (broken or isinstance(row, list)) and not format_remedy(line):
                yield from _whole(text + to_text(stream.read(), path, flag, number + 1), number, broken, path, flag)
                return
            if broken:
                raise _not_json(path, flag, number, broken, format_remedy(line) if is_first else "") from broken
            is_first = False
            yield f"line {number}", row


def _whole(text: str, first: int, broken: _MistakeError | None, path: str, flag: str) -> Iterator[Row]:
    """`first`: the line where the text begins. `broken`: what is wrong with that line by itself."""
    line, counted = first, 0
    try:
        for number, (position, row) in enumerate(_elements(text), start=1):
            line, counted = line + text.count("\n", counted, position), position
            yield f"line {line} (row {number})", row
    except _MistakeError as mistake:
        # In a file of lines, the mistake is where the line breaks off and not where the next line begins.
        found = broken if broken and ".jsonl" in path.lower() else mistake
        raise _not_json(path, flag, first + found.line, found, "") from mistake


def _elements(text: str) -> Iterator[tuple[int, Any]]:
    """(where it begins, value) of all values that follow each other, and of those in arrays."""
    position = _skip_space(text, 0)
    while position < len(text):
        in_array = text.startswith("[", position)
        position = _skip_space(text, position + in_array)
        more = not (in_array and text.startswith("]", position))
        while more:
            value, end = _decoded(text, position)
            yield position, value
            position = _skip_space(text, end)
            more = in_array and text.startswith(",", position)
            position = _skip_space(text, position + more)
        if in_array and not text.startswith("]", position):
            raise _mistake(json.JSONDecodeError("Expecting ',' delimiter", text, position))
        position = _skip_space(text, position + in_array)


def _only(text: str) -> Any:
    """The one value of a line."""
    value, end = _decoded(text, _skip_space(text, 0))
    if _skip_space(text, end) < len(text):
        raise _mistake(json.JSONDecodeError("Extra data", text, end))
    return value


def _decoded(text: str, position: int) -> tuple[Any, int]:
    """(the value that begins there, where it ends); raises _MistakeError."""
    try:
        return _DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        raise _mistake(error) from error
    except RecursionError as error:
        raise _MistakeError("it is nested too deeply", text.count("\n", 0, position)) from error
    except (ValueError, ArithmeticError) as error:  # a key twice, or a number of more digits than Python reads
        raise _MistakeError(str(error).split(";")[0], text.count("\n", 0, position)) from error


def _mistake(error: json.JSONDecodeError) -> _MistakeError:
    cause = "a byte order mark is in its way" if error.doc.startswith("\ufeff", error.pos) else error.msg
    return _MistakeError(f"{cause}, column {error.colno}", error.lineno - 1)


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _not_json(path: str, flag: str, line: int, mistake: _MistakeError, remedy: str) -> DataError:
    return DataError(
        f"{flag}: {path} line {line} is not valid JSON ({mistake.cause}), expected one object per line or an array of "
        f"objects: {remedy or 'correct the line'}"
    )


def _csv_rows(path: str, flag: str) -> Iterator[Row]:
    """All values are text, so that none changes (007, NA). Commas separate them, or what the header has instead."""
    csv.field_size_limit(sys.maxsize)
    with opened(path, flag) as stream:
        lines = (to_text(line, path, flag, number) for number, line in enumerate(stream, start=1))
        header = next(lines, "")
        marks = "\t,;" if ".tsv" in path.lower() else ",;\t"
        separator = next((mark for mark in marks if mark in re.sub('"[^"]*"', "", header)), ",")
        reader = csv.reader(chain([header], lines), delimiter=separator, strict=True)
        names: list[str] = []
        line = 1
        try:
            for record in reader:
                where, line = f"line {line}", reader.line_num + 1
                if not record:
                    continue
                if not names:
                    names = record
                    twice = next((name for name in names if names.count(name) > 1), None)
                    if twice is not None:
                        raise DataError(f"{flag}: {path} has the column {twice!r} twice: rename one of them")
                    continue
                if len(record) != len(names):
                    raise DataError(
                        f"{flag}: {path} {where} has {len(record)} fields, expected {len(names)}: put text into quotes"
                    )
                yield where, dict(zip(names, record, strict=True))
        except csv.Error as error:
            raise DataError(
                f"{flag}: {path} line {line} is not valid CSV ({error}): correct the quotes of the line"
            ) from error
