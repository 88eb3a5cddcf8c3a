"""Quick checks of prompt files: bad data is refused before any engine starts."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

UNKNOWN = -1
"""Number of rows of a data set that is not read here: another format, a directory, a hub id."""

JSON_EXTENSIONS = (".json", ".jsonl")
_FILE_EXTENSIONS = (*JSON_EXTENSIONS, ".csv", ".parquet", ".arrow")
_LOCAL_EXTENSIONS = (*_FILE_EXTENSIONS, ".py")
"""What the host takes for a file by its ending, whether it exists or not (openrlhf.datasets.utils)."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of a row are used, and whether the prompt goes through the chat template."""

    input_key: str
    label_key: str | None
    chat: bool = False


_SPACE = re.compile(r"[ \t\r\n]*")


class DataError(ValueError):
    """A data set is missing or unfit for training. The message names the flag, the file, the row and the remedy."""


def check_prompt_datasets(spec: str, *, columns: Columns, flag: str) -> int:
    """Check every data set of `spec`, the host's comma-separated list of `path[@data_dir]`.

    Returns the total number of rows, or -1 when it cannot be told without loading something (see
    `check_prompt_file`). Raises DataError as `check_prompt_file` does, and on an empty entry of the list.
    """
    total = 0
    for part in spec.split(","):
        path = part.split("@")[0].strip()
        if not path:
            raise DataError(
                f"{flag}: an entry of the list {spec!r} is empty, expected paths or hub ids separated by commas: "
                f"give a data set, and remove commas that separate nothing"
            )
        rows = check_prompt_file(path, columns=columns, flag=flag)
        total = UNKNOWN if UNKNOWN in (rows, total) else total + rows
    return total


def check_prompt_file(path: str, *, columns: Columns, flag: str) -> int:
    """Check one data set and return its number of rows, or -1 when it is not one that can be read here.

    `.jsonl` and `.json` files (lines of objects, or one array of objects) are read: each row must be an object that
    has `input_key`, neither null nor empty, and `label_key` where one is given. Other local files and directories must
    exist and be of a kind that the host loads; hub ids and URLs pass. Raises DataError naming `flag`, the file and the
    row.
    """
    if "://" in path:
        return UNKNOWN
    if glob.has_magic(path) and not os.path.exists(path):
        return _check_pattern(path, columns=columns, flag=flag)
    if not os.path.exists(path):
        if _looks_local(path):
            raise DataError(
                f"{flag}: {path!r} does not exist (looked for {os.path.abspath(path)}): give the path of a .jsonl, "
                f".json, .csv, .parquet or .arrow file, or a hub id such as org/name"
            )
        return UNKNOWN
    _check_format(path, flag)
    if os.path.isdir(path) or not path.endswith(JSON_EXTENSIONS):
        return UNKNOWN
    return _check_rows(path, columns=columns, flag=flag)


def _check_format(path: str, flag: str) -> None:
    """An existing path must be of a kind that the host can load: it picks the loader by the ending of the name."""
    if os.path.isdir(path):
        if not os.listdir(path):
            raise DataError(f"{flag}: {path} is an empty folder, expected a saved data set: give a folder with data")
        if path.endswith(_FILE_EXTENSIONS):
            raise DataError(
                f"{flag}: {path} is a folder, but its name ends like a file and would be read as one: rename it"
            )
    elif not path.endswith(_LOCAL_EXTENSIONS):
        raise DataError(
            f"{flag}: {path} has an ending that OpenRLHF does not know, expected one of "
            f"{', '.join(_LOCAL_EXTENSIONS)}: convert or rename the file"
        )


def _looks_local(path: str) -> bool:
    return path.startswith(("/", "./", "../", "~")) or path.endswith(_LOCAL_EXTENSIONS) or path.count("/") > 1


def _check_pattern(pattern: str, *, columns: Columns, flag: str) -> int:
    """The host hands a pattern such as `data/*.jsonl` to `datasets`, which loads every match."""
    paths = sorted(glob.glob(pattern, recursive=True))
    if not paths:
        raise DataError(f"{flag}: no file matches {pattern!r}: give an existing file or a pattern that matches one")
    counts = [check_prompt_file(p, columns=columns, flag=flag) for p in paths]
    return UNKNOWN if UNKNOWN in counts else sum(counts)


def _check_rows(path: str, *, columns: Columns, flag: str) -> int:
    rows = 0
    for place, row in read_rows(path, flag):
        rows += 1
        if not isinstance(row, dict):
            raise DataError(
                f"{flag}: {path} {place} is a JSON {_json_type(row)}, expected an object with the key "
                f"{columns.input_key!r}: write one object per row"
            )
        for key, key_flag in ((columns.input_key, "--data.input_key"), (columns.label_key, "--data.label_key")):
            if key is not None and key not in row:
                raise DataError(
                    f"{flag}: {path} {place} has no key {key!r}, expected it in every row; the row has "
                    f"{_names(row)}: set {key_flag} to one of them, or add the key"
                )
        _check_input(row[columns.input_key], f"{flag}: {path} {place}", columns)
    if not rows:
        raise DataError(f"{flag}: {path} holds no rows, expected at least one prompt: give a file with data")
    return rows


def _check_input(value: Any, where: str, columns: Columns) -> None:
    """A prompt is text, or a list of chat messages (`--data.apply_chat_template`)."""
    if not isinstance(value, str | list | None):
        raise DataError(
            f"{where}: {columns.input_key!r} is a JSON {_json_type(value)} ({value!r}), expected text or a list of "
            f"chat messages: set --data.input_key to the column that holds the prompt"
        )
    if value is None or not (value.strip() if isinstance(value, str) else value):
        raise DataError(
            f"{where}: {columns.input_key!r} is {json.dumps(value)}, expected a prompt that is neither null nor "
            f"empty: fill in the prompt or remove the row"
        )
    if not isinstance(value, list):
        return
    if not columns.chat:
        raise DataError(
            f"{where}: {columns.input_key!r} is a list, expected text, since chat messages need a template: add "
            f"--data.apply_chat_template, or write the prompts as text"
        )
    if not all(isinstance(message, dict) and {"role", "content"} <= message.keys() for message in value):
        raise DataError(
            f"{where}: {columns.input_key!r} is {json.dumps(value)[:80]}, expected messages with the keys 'role' and "
            f"'content': correct the row"
        )


def read_rows(path: str, flag: str) -> Iterator[tuple[str, Any]]:
    """Yield (place in the file, decoded row): one per line, or what `_read_whole` finds if line 1 is no whole row."""
    first = True
    try:
        with open(path, "rb") as stream:
            for number, line in enumerate(stream, start=1):
                text = _to_text(line, f"{flag}: {path} line {number}", first=first)
                if not text.strip():
                    continue
                try:
                    row = json.loads(text)
                except json.JSONDecodeError as error:
                    if first:
                        yield from _read_whole(path, flag, (number, error))
                        return
                    raise _not_json(path, flag, number, error) from error
                if first and isinstance(row, list):
                    yield from _read_whole(path, flag, None)
                    return
                first = False
                yield f"line {number}", row
    except OSError as error:
        raise DataError(f"{flag}: {path} cannot be read ({error.strerror}): check the file's permissions") from error


def _read_whole(
    path: str, flag: str, broken_line: tuple[int, json.JSONDecodeError] | None
) -> Iterator[tuple[str, Any]]:
    """Rows of a file that is one array of objects, or objects spread over several lines: the host takes these too."""
    text = _to_text(Path(path).read_bytes(), f"{flag}: {path}", first=True)
    decoder, rows = json.JSONDecoder(), []
    position = _skip_space(text, 0)
    try:
        while position < len(text):
            row, position = decoder.raw_decode(text, position)
            rows.extend(row if isinstance(row, list) else [row])
            position = _skip_space(text, position)
    except json.JSONDecodeError as error:
        if broken_line is None or not path.endswith(".jsonl"):
            raise _not_json(path, flag, error.lineno, error) from error
        # In a file of lines, the mistake is where the line breaks off and not where the next line begins.
        raise _not_json(path, flag, *broken_line) from error
    for number, row in enumerate(rows, start=1):
        yield f"row {number}", row


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _to_text(data: bytes, where: str, *, first: bool) -> str:
    try:
        return data.decode("utf-8-sig" if first else "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where} is not UTF-8 text (byte {error.start}: {data[error.start]:#04x}), expected JSON in UTF-8: "
            f"convert the file, or name a file of another format by its ending (.csv, .parquet, .arrow)"
        ) from error


def _not_json(path: str, flag: str, line: int, error: json.JSONDecodeError) -> DataError:
    return DataError(
        f"{flag}: {path} line {line} is not valid JSON ({error.msg}, column {error.colno}), expected one object per "
        f"line or one array of objects: correct the line"
    )


def _json_type(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _names(row: dict[str, Any]) -> str:
    return "the keys " + ", ".join(map(repr, row)) if row else "no keys"
