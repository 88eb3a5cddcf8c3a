"""Processes that may end between two questions about them."""

from __future__ import annotations

from typing import Any

import psutil


def has_ended(pid: int) -> bool:
    """One that has ended is there as a zombie until somebody asks for its status, and may go between two questions."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def command_line(process: psutil.Process) -> str:
    """Empty for one that has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def connections(process: psutil.Process) -> list[Any]:
    """To and from other machines; none of one that has ended."""
    try:
        return process.net_connections(kind="inet")
    except psutil.NoSuchProcess:
        return []
