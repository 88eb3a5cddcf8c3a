"""Rows of JSON files, with the line where each begins. Numbers keep all their digits; no key may come twice."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from openrlhf_ada.data.files import DataError, format_remedy, opened

_CONVERT = "convert the file (iconv -f LATIN1 -t UTF-8), or name a file of another format by its ending"

_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass
class _MistakeError(ValueError):
    """`column`: in the line where it is, 0 if that is not known."""

    message: str
    line: int
    column: int


def _number(text: str) -> float | Decimal:
    """A float where it has the very value of the text; else a Decimal, which keeps it."""
    value = float(text)
    return value if Decimal(repr(value)) == Decimal(text) else Decimal(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _MistakeError(f"the key {twice!r} comes twice in an object", 1, 0)
    return row


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_number)


def json_rows(path: str, flag: str) -> Iterator[tuple[str, Any]]:
    """Yield (place in the file, decoded row): one per line, or what `_whole` finds if line 1 is no whole row.

    Raises DataError for what is no JSON, by its line.
    """
    first = True
    with opened(path, flag) as stream:
        for number, line in enumerate(stream, start=1):
            text = to_text(line, f"{flag}: {path} line {number}", first=first)
            if not text.strip():
                continue
            try:
                row, end = _decoded(text, _skip_space(text, 0))
                if _skip_space(text, end) < len(text):
                    raise _mistake(json.JSONDecodeError("Extra data", text, end))
            except _MistakeError as mistake:
                if first and not format_remedy(line):
                    mistake.line = number
                    with opened(path, flag) as whole:
                        yield from _whole(whole.read(), path, flag, mistake)
                    return
                raise _not_json(path, flag, number, mistake, format_remedy(line) if first else "") from mistake
            if first and isinstance(row, list):
                with opened(path, flag) as whole:
                    yield from _whole(whole.read(), path, flag, None)
                return
            first = False
            yield f"line {number}", row


def to_text(data: bytes, where: str, *, first: bool) -> str:
    """UTF-8 as text, without a byte order mark at the beginning of the file; raises DataError."""
    try:
        return data.decode("utf-8-sig" if first else "utf-8")
    except UnicodeDecodeError as error:
        remedy = (format_remedy(data) if first else "") or _CONVERT
        raise DataError(
            f"{where} is not UTF-8 text (byte {error.start}: {data[error.start]:#04x}), expected text in UTF-8: "
            f"{remedy}"
        ) from error


def _whole(data: bytes, path: str, flag: str, broken_line: _MistakeError | None) -> Iterator[tuple[str, Any]]:
    """Rows of a file that is one array of objects, or objects spread over several lines: the host takes these too."""
    text = to_text(data, f"{flag}: {path}", first=True)
    line, counted = 1, 0
    try:
        for number, (position, row) in enumerate(_elements(text), start=1):
            line, counted = line + text.count("\n", counted, position), position
            yield f"line {line} (row {number})", row
    except _MistakeError as mistake:
        # In a file of lines, the mistake is where the line breaks off and not where the next line begins.
        found = broken_line if broken_line and ".jsonl" in path.lower() else mistake
        raise _not_json(path, flag, found.line, found, "") from mistake


def _elements(text: str) -> Iterator[tuple[int, Any]]:
    """(where it begins, value) of all values that follow each other, and of those in arrays."""
    position = _skip_space(text, 0)
    while position < len(text):
        if text[position] != "[":
            value, end = _decoded(text, position)
            yield position, value
            position = _skip_space(text, end)
            continue
        position = _skip_space(text, position + 1)
        more = text[position : position + 1] != "]"
        while more:
            value, end = _decoded(text, position)
            yield position, value
            position = _skip_space(text, end)
            mark = text[position : position + 1]
            if mark not in (",", "]") or not mark:
                raise _mistake(json.JSONDecodeError("Expecting ',' delimiter", text, position))
            more = mark == ","
            position = _skip_space(text, position + 1) if more else position
        position = _skip_space(text, position + 1)


def _decoded(text: str, position: int) -> tuple[Any, int]:
    """(the value that begins there, where it ends); raises _MistakeError."""
    try:
        return _DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        raise _mistake(error) from error
    except RecursionError as error:
        raise _MistakeError("it is nested too deeply", text.count("\n", 0, position) + 1, 0) from error
    except _MistakeError as error:
        raise _MistakeError(error.message, text.count("\n", 0, position) + 1, 0) from error
    except (ValueError, ArithmeticError) as error:  # a number of more digits than Python reads
        raise _MistakeError(str(error).split(";")[0], text.count("\n", 0, position) + 1, 0) from error


def _mistake(error: json.JSONDecodeError) -> _MistakeError:
    is_mark = error.doc[error.pos : error.pos + 1] == "\ufeff"
    return _MistakeError("a byte order mark is in its way" if is_mark else error.msg, error.lineno, error.colno)


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _not_json(path: str, flag: str, line: int, mistake: _MistakeError, remedy: str) -> DataError:
    column = f", column {mistake.column}" if mistake.column else ""
    return DataError(
        f"{flag}: {path} line {line} is not valid JSON ({mistake.message}{column}), expected one object per line or "
        f"one array of objects: {remedy or 'correct the line'}"
    )
