"""Data files: which format and compression a name stands for, and what a file is when its name is wrong."""

from __future__ import annotations

import bz2
import glob
import gzip
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from openrlhf_ada.config.visible import as_told

FORMATS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".arrow": "arrow"}
"""By the ending of a name, in small or capital letters. `.jsonl` and `.json` are read alike."""

_OPEN: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
"""Compressions of text files, by a second ending."""

TEXT = ("json", "csv")

SCRIPT = ".py"

ENDINGS = ".jsonl, .json, .csv, .tsv (also .gz, .bz2 or .xz of these), .parquet, .arrow"

_FORMAT_REMEDIES = (
    (b"PAR1", "it is a Parquet file: name it .parquet"),
    (b"ARROW1", "it is an Arrow file: name it .arrow"),
    (b"\x1f\x8b", "it is compressed with gzip: name it .jsonl.gz"),
    (b"BZh", "it is compressed with bzip2: name it .jsonl.bz2"),
    (b"\xfd7zXZ", "it is compressed with xz: name it .jsonl.xz"),
    (b"\x28\xb5\x2f\xfd", "it is compressed with Zstandard: unpack it"),
    (b"PK\x03\x04", "it is a zip archive: unpack it"),
    (b"\xff\xfe\x00\x00", "it is UTF-32: convert it with iconv -f UTF-32 -t UTF-8"),
    (b"\xff\xfe", "it is UTF-16: convert it with iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "it is UTF-16: convert it with iconv -f UTF-16 -t UTF-8"),
    (b"version https://git-lfs", "it is a pointer of Git LFS: fetch the data with git lfs pull"),
    (b"<!doctype html", "it is a web page: download the file itself"),
    (b"<html", "it is a web page: download the file itself"),
)

Row = tuple[str, Any]
"""(place in the file, row). A row of JSON may be any value; rows of other formats are objects."""


class DataError(ValueError):
    """A data set is missing or unfit. The message names the flag, the file, the row, the rule and the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(as_told(message))


def format_of(path: str) -> str | None:
    """A value of FORMATS, by the name of a data file; None if it is no name of one."""
    base, ending = os.path.splitext(path.lower())
    if ending in _OPEN:
        inner = FORMATS.get(os.path.splitext(base)[1])
        return inner if inner in TEXT else None
    return FORMATS.get(ending)


@contextmanager
def reading(path: str, flag: str) -> Iterator[None]:
    """Raises DataError for what the system or a decompressor says."""
    try:
        yield
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        cause = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise DataError(
            f"{flag}: {path} cannot be read ({cause}): check its permissions or its link, or copy it again"
        ) from error


@contextmanager
def opened(path: str, flag: str) -> Iterator[BinaryIO]:
    """The bytes of a text file, unpacked. Raises DataError, also for what goes wrong while it is read."""
    opener = _OPEN.get(os.path.splitext(path.lower())[1], open)
    with reading(path, flag), opener(path, "rb") as stream:
        yield stream


def to_text(data: bytes, path: str, flag: str, line: int) -> str:
    """UTF-8 as text, without a byte order mark in line 1; raises DataError. `line`: where the data begin."""
    try:
        return data.decode("utf-8-sig" if line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        # Which one it is cannot be known: Latin-1 would make control characters of Windows' quotes, without a word.
        remedy = "convert the file, from Windows mostly with iconv -f CP1252 -t UTF-8, from China -f GB18030"
        remedy = (format_remedy(data) if line == 1 else "") or remedy
        line += data.count(b"\n", 0, error.start)
        raise DataError(
            f"{flag}: {path} line {line} is not UTF-8 text (byte {error.start}: {data[error.start]:#04x}): {remedy}"
        ) from error


def format_remedy(data: bytes) -> str:
    """What data that are not what their name says begin with, and what to do; "" if that is not known."""
    head = data.lstrip()[:64].lower() if data[:1] in b" \t\r\n<" else data[:64]
    return next((text for magic, text in _FORMAT_REMEDIES if head.startswith(magic)), "")


def check_names(spec: str, flag: str) -> None:
    """Is what OpenRLHF's list of `path[@data_dir]` names there, and of a kind that can be loaded? Raises DataError."""
    for part in spec.split(","):
        path = part.split("@")[0].strip()
        if not path:
            raise DataError(f"{flag}: an entry of the list {spec!r} is empty: give a data set between two commas")
        local_files(path, flag)


def local_files(path: str, flag: str) -> list[str] | None:
    """The text files of a path or pattern; None for what `datasets` loads: tables, folders, scripts, hub ids, URLs.

    Raises DataError for a local path that is not there, an ending that nobody knows, an empty folder, and a pattern
    without a match.
    """
    if "://" in path:
        return None
    paths = [path]
    if not os.path.lexists(path):
        if glob.has_magic(path):
            paths = sorted(glob.glob(path, recursive=True))
            if not paths:
                raise DataError(f"{flag}: no file matches {path!r}: give a file, or a pattern that matches one")
        elif _looks_local(path):
            raise DataError(
                f"{flag}: {path!r} does not exist (looked for {os.path.abspath(path)}; a comma separates data sets, "
                f"and @ a folder in one): give the path of a file with data ({ENDINGS}), or a hub id such as org/name"
            )
        else:
            return None
    for found in paths:
        with reading(found, flag):
            fault = _fault_of(found)
        if fault:
            raise DataError(f"{flag}: {found} {fault}")
    return paths if all(format_of(found) in TEXT and not os.path.isdir(found) for found in paths) else None


def _fault_of(path: str) -> str:
    """Why an existing path cannot be loaded, again and again, and what to do; "" if it can."""
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        names = os.listdir(path)
        if not names:
            return "is an empty folder, expected a saved data set: give a folder with data"
        if format_of(path) is not None:
            return "is a folder, but its name ends like a file and would be read as one: rename it"
        # `datasets` would read the files of one format, and leave the others out without a word.
        names = [name for name in names if not name.startswith((".", "_", "dataset_", "state."))]
        formats = sorted({found for name in names if (found := format_of(name))})
        pattern = os.path.join(path, "*.jsonl")
        several = f"holds several formats ({', '.join(formats)}): give a pattern, such as {pattern}"
        return several if len(formats) > 1 else ""
    if not stat.S_ISREG(mode):
        return "is a pipe or a device, which can be read once only: save the data to a file"
    known = format_of(path) is not None or path.endswith(SCRIPT)
    return "" if known else f"has an ending that is not known, expected one of {ENDINGS}: convert or rename the file"


def _looks_local(path: str) -> bool:
    is_file = format_of(path) is not None or path.endswith(SCRIPT)
    return path.startswith(("/", "./", "../", "~")) or is_file or path.count("/") > 1
