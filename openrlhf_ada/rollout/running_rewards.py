"""Which answers a user's reward function is grading, in a file that outlives the engine's process.

A function that holds Python's lock stops everything else in its process, so nobody can ask it. Its next process, which
Ray starts on the same node, reads what it left.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openrlhf_ada.reward.reward_function import short

FULL_BYTES = 16 << 20
"""The file is written anew from here on, with the running calls alone."""

SHOWN = 3
"""Answers that a message names."""


class RunningRewards:
    """Lines of JSON, one at the beginning of each call and one at its end. `file`: not there, or of a process that has
    ended, whose calls `left` tells."""

    def __init__(self, file: Path, names: Sequence[str]) -> None:
        self.left = _left(file)
        self._names = ", ".join(names)
        self._lock = threading.Lock()
        self._running: dict[int, bytes] = {}
        self._calls = 0
        # Unbuffered: a line is in the file when the call begins.
        self._file = file.open("wb", buffering=0)

    @contextmanager
    def call(self, query: str, prompt: str, label: Any) -> Iterator[None]:
        """While one answer is graded; from any thread."""
        with self._lock:
            self._calls += 1
            number = self._calls
            record = {"call": number, "since": time.time(), "reward": self._names, "pid": os.getpid()}
            record |= {"prompt": prompt, "label": str(label), "query": query}
            self._running[number] = json.dumps(record).encode() + b"\n"
            self._file.write(self._running[number])
        try:
            yield
        finally:
            with self._lock:
                del self._running[number]
                if self._running and self._file.tell() < FULL_BYTES:
                    self._file.write(json.dumps({"ended": number}).encode() + b"\n")
                else:
                    self._rewrite()

    def _rewrite(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._file.write(b"".join(self._running.values()))


def _left(file: Path) -> str:
    """What the process before was grading when it ended, for a message; "" if nothing. Its answers are kept in a file
    beside."""
    if not file.is_file():
        return ""
    running: dict[int, dict[str, Any]] = {}
    for line in file.read_bytes().splitlines(keepends=True):
        # A kill may have cut the last one.
        if line.endswith(b"\n"):
            record = json.loads(line)
            if "ended" in record:
                del running[record["ended"]]
            else:
                running[record["call"]] = record
    if not running:
        return ""
    calls = list(running.values())
    kept = file.with_name(f"{file.stem}-of-pid-{calls[0]['pid']}.jsonl")
    kept.write_text("".join(json.dumps(call) + "\n" for call in calls), encoding="utf-8")
    shown = [
        f"the answer to {short(call['prompt'])} (label {short(call['label'], 40)}) since {_clock(call['since'])}"
        for call in calls[:SHOWN]
    ]
    more = f", and {len(calls) - SHOWN} more" if len(calls) > SHOWN else ""
    return f"{calls[0]['reward']} was grading {'; '.join(shown)}{more}. Whole: {kept} on {socket.gethostname()}"


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))
