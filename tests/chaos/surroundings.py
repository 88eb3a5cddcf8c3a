"""Faults around a run rather than of its processes: disk, reward server, clock, and a row of the data.

Each is a `Trouble`: the flags of its runs, and what begins and ends it.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from conftest import Toy, read_jsonl
from reward_servers import FAILURES, RewardServer

SHORT_S = 5.0
"""How long a trouble lasts that is not for good."""

DISK_BYTES = 400 << 20
CLOCK_S = {"an hour forward": 3600.0, "an hour back": -3600.0}
REFUSES = "refuses"
SERVER_FAILURES = (REFUSES, *FAILURES)
WHILE = f" for {SHORT_S:g} s"

KINDS: dict[str, tuple[str, ...]] = {
    "disk": ("is full",),
    "reward server": tuple(failure + length for failure in SERVER_FAILURES for length in (WHILE, "")),
    "clock": tuple(CLOCK_S),
    "row of the data": ("has no usable label",),
}
"""What befalls what."""


class Trouble(Protocol):
    run_dir: Path
    flags: dict[str, Any]

    def begin(self) -> None: ...

    def end(self) -> None:
        """Also called for one that is over."""


class FullDisk:
    """The run's folder is a file system of its own."""

    def __init__(self, folder: Path) -> None:
        self.run_dir, self.flags = folder / "run", {}
        self._filler = folder / "filler"

    def begin(self) -> None:
        with self._filler.open("wb") as file:
            try:
                while True:
                    os.write(file.fileno(), bytes(1 << 16))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def end(self) -> None:
        self._filler.unlink(missing_ok=True)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """In memory. Needs the right to mount."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "chaos", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


class Clock:
    """See clock/sitecustomize.py."""

    def __init__(self, run_dir: Path, file: Path, seconds: float) -> None:
        self.run_dir, self.flags = run_dir, {}
        self._file, self._seconds = file, seconds

    def begin(self) -> None:
        whole = self._file.with_suffix(".new")
        whole.write_text(str(self._seconds))
        whole.replace(self._file)

    def end(self) -> None:
        self._file.unlink(missing_ok=True)


class BadRow:
    """A label that the reward cannot read, in one row, from the start."""

    def __init__(self, run_dir: Path, toy: Toy, data: Path) -> None:
        rows = read_jsonl(toy.train)
        rows[3]["label"] = "nobody knows"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.run_dir, self.flags = run_dir, {"data.prompt_dataset": data}

    def begin(self) -> None: ...

    def end(self) -> None: ...


class FailingServer:
    """Serves well until the trouble begins. `failure`: of SERVER_FAILURES; `seconds`: how long, None for good."""

    def __init__(self, run_dir: Path, failure: str, seconds: float | None) -> None:
        self._failure, self._seconds, self._is_over = failure, seconds, False
        self._server = RewardServer()
        self.run_dir, self.flags = run_dir, {"reward.remote_url": self._server.url}

    def begin(self) -> None:
        if self._failure == REFUSES:
            self._server.close()
        else:
            self._server.failure = lambda label: self._failure
        if self._seconds is not None:
            timer = threading.Timer(self._seconds, self.end)
            timer.daemon = True
            timer.start()

    def end(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._server.failure = lambda label: ""
        self._server.goes_on.set()
        if self._failure == REFUSES:
            self._server = RewardServer(self._server.server_port)

    def close(self) -> None:
        self.end()
        self._server.close()


@contextmanager
def trouble(kind: str, what: str, folder: Path, toy: Toy, clock: Path) -> Iterator[Trouble]:
    """`folder`: for its runs. `clock`: what CHAOS_CLOCK names."""
    with ExitStack() as after:
        found: Trouble
        if kind == "disk":
            found = FullDisk(after.enter_context(small_disk(folder / "disk")))
        elif kind == "clock":
            found = Clock(folder / "run", clock, CLOCK_S[what])
        elif kind == "row of the data":
            found = BadRow(folder / "run", toy, folder / "rows.jsonl")
        else:
            lasts = None if not what.endswith(WHILE) else SHORT_S
            server = FailingServer(folder / "run", what.removesuffix(WHILE), lasts)
            after.callback(server.close)
            found = server
        after.callback(found.end)
        yield found
