"""Folders of a run: each belongs to one process at a time, and has room for what is about to be written."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import shutil
from pathlib import Path

from openrlhf_ada.config.flags import ConfigError

GIB = 1 << 30

LOCK_FILE = ".in_use"

CANNOT_LOCK = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""The file system has no locks."""

FULL = 64 << 20
"""Ray's logs and objects do not fit any more."""

_held: dict[Path, int] = {}


class NoSpaceError(RuntimeError):
    """A disk is too full for a checkpoint; nothing of it was written."""


def hold(folder: Path, flag: str) -> None:
    """Keep a folder, which is created, for this process until it ends, however it ends: the kernel frees the lock.

    Raises ConfigError where another process has it, also one on another machine if the file system has such locks; and
    where nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        place = folder.resolve()
        if place in _held:
            return
        descriptor = os.open(place / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        rule = f"nothing can be written there ({error.filename or folder}: {error.strerror})"
        raise ConfigError(flag, str(folder), rule, "Take another folder") from error
    try:
        # Of POSIX's kind: children do not inherit it.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
        os.close(descriptor)
        if error.errno in CANNOT_LOCK:
            return
        rule = f"a run that is still going has this folder ({holder or 'its process is not known'})"
        remedy = "Wait for its end or end it, then resume; or take another folder"
        raise ConfigError(flag, str(folder), rule, remedy) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()} on {platform.node()}".encode(), 0)
    _held[place] = descriptor


def said_of_full(folder: Path) -> str:
    """A line for the user of a run that failed, whatever it says of the cause; empty while the folder has room."""
    free = shutil.disk_usage(folder).free
    if free >= FULL:
        return ""
    said = f"Ray's folder {folder} is full ({free >> 20} MiB free), perhaps the real cause. Make room, or name another"
    return f"{said} in RAY_TMPDIR.\n"


def check_space(folder: Path, needed: int, what: str) -> None:
    """Raises NoSpaceError where fewer than `needed` bytes are free for `folder`, which need not exist yet."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise NoSpaceError(
            f"{what} takes about {needed / GIB:.2f} GiB, and {free / GIB:.2f} GiB are free in {there} (--ckpt.path). "
            f"Make room, name another folder, or keep fewer (--ckpt.max_num). Nothing was written; "
            f"earlier checkpoints are whole"
        )
