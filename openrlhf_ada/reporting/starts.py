"""Where a run was started, and of what: versions, git state, machine. `starts.json` has one entry for each start."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openrlhf_ada.config.installed import stack_versions
from openrlhf_ada.reporting.jsonl import damaged_file, encode, write_atomically
from openrlhf_ada.reporting.redaction import redact_words

STARTS_FILE = "starts.json"

GIT_S = 10.0
"""Seconds that git may take. On a slow file system its state is left out."""


def record_start(run_dir: Path, command: Sequence[str], gpus: Sequence[str]) -> dict[str, Any]:
    """Add this start to the run directory, which is created; returns its entry.

    Nothing of the environment is in it, and no secret of the command.

    Args:
        command: as a user would type it.
        gpus: names of this machine's.
    """
    entry: dict[str, Any] = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(redact_words(command)),
        "versions": {"python": platform.python_version()} | stack_versions(),
        "git": git_state(Path.cwd()),
        "host": host(gpus),
    }
    run_dir.mkdir(parents=True, exist_ok=True)
    path = run_dir / STARTS_FILE
    write_atomically(path, encode([*_read(path), entry], indent=2))
    return entry


def _read(path: Path) -> list[Any]:
    if not path.exists():
        return []
    try:
        entries = json.loads(path.read_bytes())
    except ValueError as error:
        raise damaged_file(path, f"not JSON ({error})") from error
    if not isinstance(entries, list):
        raise damaged_file(path, "not a JSON array")
    return entries


def git_state(folder: Path) -> dict[str, Any] | None:
    """The commit of the folder's repository, and whether files that git knows have changes. None outside of one.

    Files that git does not know are no changes: a run writes such files itself.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _git(folder: Path, *words: str) -> str | None:
    """What git says; None where it says nothing: not installed, no repository, no commit, too slow."""
    if shutil.which("git") is None:
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=GIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def host(gpus: Sequence[str]) -> Mapping[str, Any]:
    """This machine."""
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "name": platform.node(),
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "memory_gib": round(pages * page / 2**30, 1),
        "gpus": list(gpus),
    }
