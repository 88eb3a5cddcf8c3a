"""Where a run was started, and of what: versions, git state, machine. `starts.json` has one entry for each start."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openrlhf_ada.config.installed import stack_versions
from openrlhf_ada.reporting.jsonl import encode, read_json, write_atomically
from openrlhf_ada.reporting.redaction import redact_words

STARTS_FILE = "starts.json"

GIT_S = 10.0
"""Seconds that git may take. On a slow file system its state is left out."""


def record_start(run_dir: Path, command: Sequence[str], gpus: Sequence[str]) -> None:
    """Add this start to the run directory, which is created. Nothing of the environment is in it, and no secret.
    `command`: as a user would type it; `gpus`: names of this machine's."""
    entry: dict[str, Any] = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(redact_words(command)),
        "versions": {"python": platform.python_version()} | stack_versions(),
        "git": git_state(Path.cwd()),
        "host": {
            "name": platform.node(),
            "system": platform.platform(),
            "cpus": os.cpu_count(),
            "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
            "gpus": list(gpus),
        },
    }
    run_dir.mkdir(parents=True, exist_ok=True)
    path = run_dir / STARTS_FILE
    earlier = read_json(path, list) if path.exists() else []
    write_atomically(path, encode([*earlier, entry], indent=2))


def git_state(folder: Path) -> dict[str, Any] | None:
    """The commit of the folder's repository, and whether files that git knows have changes: a run writes others
    itself. None where git says nothing: not installed, no repository, no commit, too slow."""
    commit, changes = _git(folder, "rev-parse", "HEAD"), _git(folder, "status", "--porcelain", "--untracked-files=no")
    return None if commit is None else {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _git(folder: Path, *words: str) -> str | None:
    command = ["git", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_S, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
