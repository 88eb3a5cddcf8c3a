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
from dataclasses import dataclass
from typing import Any, BinaryIO

from openrlhf_ada.config.visible import as_told

FORMATS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet", ".arrow": "arrow"}
"""By the ending of a name, in small or capital letters. `.jsonl` and `.json` are read alike."""

_OPEN: dict[str, Callable[[str], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
"""Compressions of text files, by a second ending."""

SCRIPT = ".py"

ENDINGS = ".jsonl, .json, .csv (also .gz, .bz2 or .xz of these), .parquet, .arrow"

_BROKEN = (EOFError, zlib.error, lzma.LZMAError)

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


@dataclass(frozen=True, slots=True)
class FileKind:
    """`format`: a value of FORMATS. `compression`: a key of _OPEN, or ""."""

    format: str
    compression: str = ""


def kind_of(path: str) -> FileKind | None:
    """What the name of a data file says; None if it is no name of one."""
    base, ending = os.path.splitext(path.lower())
    if ending in _OPEN:
        inner = FORMATS.get(os.path.splitext(base)[1])
        return FileKind(inner, ending) if inner in ("json", "csv") else None
    return FileKind(FORMATS[ending]) if ending in FORMATS else None


def check_is_file(path: str, flag: str) -> None:
    """Raises DataError for what cannot be read again and again: pipes, devices, links that lead nowhere."""
    with reading(path, flag):
        mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        raise DataError(
            f"{flag}: {path} is a pipe or a device, expected a file, which can be read more than once: save the data "
            f"to a file"
        )


@contextmanager
def reading(path: str, flag: str) -> Iterator[None]:
    """Raises DataError for what the system or a decompressor says."""
    try:
        yield
    except FileNotFoundError as error:
        missing = f"does not exist (looked for {os.path.abspath(path)})"
        rule = "is a link to nothing" if os.path.islink(path) else missing
        raise DataError(f"{flag}: {path} {rule}: give the path of a file with data ({ENDINGS})") from error
    except gzip.BadGzipFile as error:
        raise DataError(f"{flag}: {path} is not what its ending says ({error}): rename or repair it") from error
    except OSError as error:
        raise DataError(
            f"{flag}: {path} cannot be read ({error.strerror or error}): check the path and the file's permissions"
        ) from error
    except _BROKEN as error:
        raise DataError(
            f"{flag}: {path} is broken or cut off ({type(error).__name__}: {error}): copy or pack it again"
        ) from error


@contextmanager
def opened(path: str, flag: str) -> Iterator[BinaryIO]:
    """The bytes of a text file, unpacked. Raises DataError, also for what goes wrong while it is read."""
    check_is_file(path, flag)
    kind = kind_of(path)
    opener = _OPEN.get(kind.compression if kind else "", lambda name: open(name, "rb"))  # noqa: SIM115
    with reading(path, flag), opener(path) as stream:
        yield stream


def to_text(data: bytes, path: str, flag: str, line: int) -> str:
    """UTF-8 as text, without a byte order mark in line 1; raises DataError. `line`: where the data begin."""
    try:
        return data.decode("utf-8-sig" if line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        remedy = (format_remedy(data) if line == 1 else "") or "convert the file (iconv -f LATIN1 -t UTF-8)"
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
    """The files of a path or pattern; None for what only `datasets` loads: folders, scripts, hub ids, addresses.

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
        _check_format(found, flag)
    return None if any(os.path.isdir(found) or found.endswith(SCRIPT) for found in paths) else paths


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
