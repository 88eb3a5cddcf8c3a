"""Quick checks of prompt files: bad data is refused before any engine starts."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from typing import Any

from openrlhf_ada.data.files import ENDINGS, DataError, kind_of
from openrlhf_ada.data.questions import checked_question
from openrlhf_ada.data.rows import read_rows
from openrlhf_ada.data.values import MISSING, UnfitError, names_of, plain, type_name, value_at

__all__ = ["UNKNOWN", "Columns", "DataError", "check_prompt_datasets", "check_prompt_file", "is_local", "local_files"]

UNKNOWN = -1
"""Number of rows of a data set that is not read here: a folder, a script, a hub id."""

SCRIPT = ".py"


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of a row are used, and whether the prompt goes through the chat template."""

    input_key: str
    label_key: str | None
    chat: bool = False


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

    Files are read: each row must be an object that has `input_key`, neither null nor empty, and `label_key` where one
    is given. Folders must hold something; hub ids and URLs pass. Raises DataError naming `flag`, the file and the row.
    """
    if not is_local(path, flag):
        return UNKNOWN
    files = local_files(path, flag)
    if files is None:
        return UNKNOWN
    return sum(_check_rows(file, columns=columns, flag=flag) for file in files)


def is_local(path: str, flag: str) -> bool:
    """Is it here, or on a hub? Raises DataError for what looks like a local path and is not there."""
    if "://" in path:
        return False
    if os.path.lexists(path) or glob.has_magic(path):
        return True
    if _looks_local(path):
        raise DataError(
            f"{flag}: {path!r} does not exist (looked for {os.path.abspath(path)}; a comma separates data sets, and "
            f"@ a folder in one): give the path of a file with data ({ENDINGS}), or a hub id such as org/name"
        )
    return False


def local_files(path: str, flag: str) -> list[str] | None:
    """The files of a local path or pattern, or None for a folder or a script, which only `datasets` loads.

    Raises DataError for an ending that nobody knows, an empty folder, and a pattern without a match.
    """
    if glob.has_magic(path) and not os.path.lexists(path):
        paths = sorted(glob.glob(path, recursive=True))
        if not paths:
            raise DataError(f"{flag}: no file matches {path!r}: give an existing file or a pattern that matches one")
    else:
        paths = [path]
    for found in paths:
        _check_format(found, flag)
    if any(os.path.isdir(found) or found.endswith(SCRIPT) for found in paths):
        return None
    return paths


def _check_format(path: str, flag: str) -> None:
    """An existing path must be of a kind that can be loaded."""
    if os.path.isdir(path):
        try:
            is_empty = not os.listdir(path)
        except OSError as error:
            raise DataError(f"{flag}: {path} cannot be read ({error.strerror}): check its permissions") from error
        if is_empty:
            raise DataError(f"{flag}: {path} is an empty folder, expected a saved data set: give a folder with data")
        _check_one_format(path, flag)
        if kind_of(path) is not None:
            raise DataError(
                f"{flag}: {path} is a folder, but its name ends like a file and would be read as one: rename it"
            )
    elif kind_of(path) is None and not path.endswith(SCRIPT):
        raise DataError(
            f"{flag}: {path} has an ending that is not known, expected one of {ENDINGS}: convert or rename the file"
        )


def _check_one_format(folder: str, flag: str) -> None:
    """`datasets` would read the files of one format, and leave the others out without a word."""
    names = [name for name in os.listdir(folder) if not name.startswith((".", "_", "dataset_", "state."))]
    formats = sorted({kind.format for name in names if (kind := kind_of(name)) is not None})
    if len(formats) > 1:
        raise DataError(
            f"{flag}: {folder} holds data files of several formats ({', '.join(formats)}), and only those of one "
            f"would be read: name the files, or give a pattern such as {os.path.join(folder, '*.jsonl')}"
        )


def _looks_local(path: str) -> bool:
    is_file = kind_of(path) is not None or path.endswith(SCRIPT)
    return path.startswith(("/", "./", "../", "~")) or is_file or path.count("/") > 1


def _check_rows(path: str, *, columns: Columns, flag: str) -> int:
    rows = 0
    keys = [key for key in (columns.input_key, columns.label_key) if key is not None]
    for place, row in read_rows(path, flag, keys):
        rows += 1
        try:
            question_and_label(row, columns)
        except UnfitError as error:
            raise DataError(error.at(f"{flag}: {path} {place}")) from error
    if not rows:
        raise DataError(f"{flag}: {path} holds no rows, expected at least one prompt: give a file with data")
    return rows


def question_and_label(row: Any, columns: Columns) -> tuple[Any, Any]:
    """A question is text, or chat messages (`--data.apply_chat_template`); raises UnfitError."""
    if not isinstance(row, dict):
        raise UnfitError(
            f"is {type_name(row)}, expected an object with the key {columns.input_key!r}: write one object per row"
        )
    for key, flag in ((columns.input_key, "--data.input_key"), (columns.label_key, "--data.label_key")):
        if key is not None and value_at(row, key) is MISSING:
            raise UnfitError(
                f"has no key {key!r}, expected it in every row; the row has {names_of(row)}: set {flag} to one of "
                f"them, or add the key"
            )
    question = checked_question(value_at(row, columns.input_key), columns.input_key)
    if isinstance(question, list) and not columns.chat:
        raise UnfitError(
            f": {columns.input_key!r} holds chat messages, expected text, since messages need a template: add "
            f"--data.apply_chat_template, or write the prompts as text"
        )
    if columns.label_key is None:
        return question, None
    try:
        return question, plain(value_at(row, columns.label_key))
    except UnfitError as error:
        raise UnfitError(f": {columns.label_key!r} {error}") from error
