"""Is there room on a disk for what a run is about to write?"""

from __future__ import annotations

import shutil
from pathlib import Path

GIB = 1 << 30


class NoSpaceError(RuntimeError):
    """A disk is too full for a checkpoint; nothing of it was written."""


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
