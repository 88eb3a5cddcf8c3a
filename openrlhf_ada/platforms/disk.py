"""Is there room on a disk for what a run is about to write?"""

from __future__ import annotations

import shutil
from pathlib import Path

GIB = 1 << 30


class NoSpaceError(RuntimeError):
    """A disk is too full for a checkpoint; nothing of it was written."""


FULL = 64 << 20
"""Ray's logs and objects do not fit any more."""


def said_of_full(folder: Path) -> str:
    """A line for the user of a run that failed, whatever it says of the cause; empty while the folder has room."""
    free = shutil.disk_usage(folder).free
    if free >= FULL:
        return ""
    return (
        f"Ray's folder {folder} is full ({free >> 20} MiB free), and what fails there may look like another fault. "
        f"Make room, or name another folder in RAY_TMPDIR.\n"
    )


def check_space(folder: Path, needed: int, what: str) -> None:
    """Raises NoSpaceError where fewer than `needed` bytes are free for `folder`, which need not exist yet."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise NoSpaceError(
            f"{what} takes about {needed / GIB:.2f} GiB, and {free / GIB:.2f} GiB are free in {there} (--ckpt.path). "
            f"Make room, name another folder, or keep fewer (--ckpt.max_num). Nothing was written, and the "
            f"checkpoints that are there stay valid"
        )
