"""Whether a process still runs."""

from __future__ import annotations

import psutil


def has_ended(pid: int) -> bool:
    """One that has ended is there as a zombie until somebody asks for its status, and may go between two questions."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
