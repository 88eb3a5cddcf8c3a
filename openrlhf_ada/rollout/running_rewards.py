"""Which answers a user's reward function is grading, in files that outlive the engine's process.

A function that holds Python's lock stops everything else in its process, so nobody can ask it. Its next process, which
Ray starts on the same node, reads what it left.
"""

from __future__ import annotations

import itertools
import json
import socket
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openrlhf_ada.reward.reward_function import short

SHOWN = 3
"""Answers that a message names."""


class RunningRewards:
    """A file per call while it lasts. `folder`: not there, or of a process that ended, whose calls `left` tells."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.left = _left(folder, ", ".join(names))
        folder.mkdir()
        self._folder = folder
        self._numbers = itertools.count()

    @contextmanager
    def call(self, query: str, prompt: str, label: Any) -> Iterator[None]:
        """While one answer is graded; from any thread."""
        file = self._folder / f"{next(self._numbers):09}.json"
        file.write_text(json.dumps({"prompt": prompt, "label": str(label), "query": query}), encoding="utf-8")
        try:
            yield
        finally:
            file.unlink()


def _left(folder: Path, names: str) -> str:
    """What the process before was grading when it ended, for a message; "" if nothing. The files are moved aside."""
    if not folder.is_dir():
        return ""
    # A kill may have come before a file was written.
    files = [file for file in sorted(folder.iterdir()) if file.stat().st_size]
    kept = folder.rename(folder.with_name(f"{folder.name}-{uuid.uuid4().hex}"))
    calls = [json.loads((kept / file.name).read_text(encoding="utf-8")) for file in files]
    if not calls:
        return ""
    shown = [f"the answer to {short(call['prompt'])} (label {short(call['label'], 40)})" for call in calls[:SHOWN]]
    more = f", and {len(calls) - SHOWN} more" if len(calls) > SHOWN else ""
    return f"{names} was grading {'; '.join(shown)}{more}. Whole: {kept} on {socket.gethostname()}"
