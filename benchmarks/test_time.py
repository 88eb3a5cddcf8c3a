"""How long all tests take, and how often they start Ray and vLLM: by file.

A start is a Ray job with rollout engines. Ray's log folders show them, so nothing else may use Ray on this machine
meanwhile. Lint and set-up are not counted.

    python benchmarks/test_time.py --save before|after     last line: one JSON object; results in benchmarks/results/
    python benchmarks/test_time.py --quick                 one file of tests; nothing is saved
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from machine import machine

HERE = Path(__file__).resolve().parent
RESULT = HERE / "results" / "test_time.json"
QUICK = "tests/e2e/test_off_equals_host.py"

PARTS = [
    ["--numprocesses=3", "--dist=worksteal", "tests/unit", "tests/contract"],
    ["--numprocesses=2", "--dist=loadfile", "-m", "not long", "tests/e2e", "tests/gpu"],
]
"""As `make test` has them; tests/unit/test_setup.py compares."""

LOGS = ("ray/session_2*/logs", "ada-ray-*/*/session_2*/logs", "ray-test-*/session_2*/logs")
"""Below /tmp: of runs with a Ray of their own, of the clusters in tests/support/clusters.py, and of the Slurm test."""

ENGINE = re.compile(rb"^:actor_name:\w*Rollout\w*Actor$", re.MULTILINE)
LOOK_S = 1.0


class Recorder:
    """A plugin of pytest: seconds by file, and starts by the file whose test ran at that time in the same worker."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._spans: list[tuple[str, float, float, str]] = []
        """Of the phases of tests: worker of pytest, start, end, file."""
        self._workers: dict[str, str] = {}
        self._begun = time.time()
        self._found: dict[tuple[str, str], float] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        file = report.nodeid.partition("::")[0]
        self.seconds[file] += report.duration
        self._spans.append((getattr(report, "worker_id", ""), report.start, report.stop, file))

    def watch(self, done: threading.Event) -> None:
        """Until `done`, note Ray jobs that have an engine."""
        while not done.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        for log in (log for logs in LOGS for log in Path("/tmp").glob(f"{logs}/worker-*.out")):
            session, job = log.parents[1].name, log.stem.split("-")[2]
            try:
                changed = log.stat().st_ctime
                if changed > self._begun and (session, job) not in self._found and _has_engine(log):
                    self._found[session, job] = changed
                    self._note_worker(session)
            except FileNotFoundError:
                continue  # its test has ended and removed it

    def _note_worker(self, session: str) -> None:
        """Of pytest, in the environment of the Ray that it started."""
        if session not in self._workers:
            for process in psutil.process_iter(["name", "cmdline", "environ"]):
                if process.info["name"] == "raylet" and session in " ".join(process.info["cmdline"] or ()):
                    self._workers[session] = (process.info["environ"] or {}).get("PYTEST_XDIST_WORKER", "")

    def starts(self) -> Counter[str]:
        """By file."""
        return Counter(self._file_at(self._workers.get(session), at) for (session, _), at in self._found.items())

    def _file_at(self, worker: str | None, at: float) -> str:
        files = [file for of, start, stop, file in self._spans if of == worker and start <= at <= stop + LOOK_S]
        return files[-1] if files else "already ended"


def _has_engine(log: Path) -> bool:
    with log.open("rb") as file:
        return ENGINE.search(file.read(500)) is not None


def measure(parts: list[list[str]]) -> tuple[int, dict[str, object]]:
    """pytest's highest exit status, and {seconds, starts, by_file}. `parts`: arguments, one part after the other.

    Files that run side by side have the seconds of their own tests, so theirs add up to more than all took.
    """
    recorder, done = Recorder(), threading.Event()
    watcher = threading.Thread(target=recorder.watch, args=(done,), daemon=True)
    watcher.start()
    os.chdir(HERE.parent)
    # Tests find their modules as below `make test`.
    sys.path.remove(str(HERE))
    begun = time.monotonic()
    status = max(pytest.main(["-q", *arguments], plugins=[recorder]) for arguments in parts)
    seconds = time.monotonic() - begun
    done.set()
    watcher.join()
    recorder.look()
    starts = recorder.starts()
    by_file = {
        name: {"seconds": round(spent, 1), "starts": starts[name]} for name, spent in recorder.seconds.most_common()
    }
    return int(status), {"seconds": round(seconds), "starts": starts.total(), "by_file": by_file}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} alone")
    parser.add_argument("--save", choices=("before", "after"), help="the key in the results")
    args = parser.parse_args()
    status, figures = measure([[QUICK]] if args.quick else PARTS)
    if args.save and not args.quick and not status:
        saved = json.loads(RESULT.read_text()) if RESULT.exists() else {}
        RESULT.write_text(json.dumps(saved | {args.save: figures, "machine": machine()}, indent=2) + "\n")
    print(json.dumps(figures))
    return status


if __name__ == "__main__":
    sys.exit(main())
