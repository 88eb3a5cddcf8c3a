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

import psutil
import pytest
from machine import machine

HERE = Path(__file__).resolve().parent
RESULT = HERE / "results" / "test_time.json"
QUICK = "tests/e2e/test_off_equals_host.py"

PARTS = [
    ["--numprocesses=2", "--dist=worksteal", "tests/unit", "tests/contract"],
    ["--numprocesses=2", "--dist=loadfile", "tests/e2e", "tests/gpu"],
]
"""As `make test` has them; tests/unit/test_setup.py compares."""

LOGS = ("ray/session_2*/logs", "ada-ray-*/*/session_2*/logs", "ray-test-*/session_2*/logs")
"""Below /tmp: of runs with a Ray of their own, of the clusters in tests/support/clusters.py, and of the Slurm test."""

ENGINE = re.compile(rb"^:actor_name:\w*Rollout\w*Actor$", re.MULTILINE)
LOOK_S = 1.0


class Recorder:
    """A plugin of pytest. `seconds`, `starts`: by file."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.starts: Counter[str] = Counter()
        self._files: dict[str, str] = {}
        self._begun = time.time()
        self._seen: set[tuple[str, str]] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid.partition("::")[0]] += report.duration

    def watch(self, done: threading.Event) -> None:
        """Until `done`, count Ray jobs that have an engine."""
        while not done.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        for log in (log for logs in LOGS for log in Path("/tmp").glob(f"{logs}/worker-*.out")):
            session, job = log.parents[1].name, log.stem.split("-")[2]
            try:
                is_new = log.stat().st_ctime > self._begun and (session, job) not in self._seen
                if is_new and ENGINE.search(log.read_bytes()[:500]):
                    self._seen.add((session, job))
                    self.starts[self._file_of(session)] += 1
            except FileNotFoundError:
                continue  # its test has ended and removed it

    def _file_of(self, session: str) -> str:
        """The file of the test that started this Ray."""
        if session not in self._files:
            for process in psutil.process_iter(["name", "cmdline", "environ"]):
                if process.info["name"] == "raylet" and session in " ".join(process.info["cmdline"] or ()):
                    self._files[session] = (process.info["environ"] or {})["PYTEST_CURRENT_TEST"].partition("::")[0]
        return self._files.get(session, "already ended")


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
    by_file = {
        name: {"seconds": round(spent, 1), "starts": recorder.starts[name]}
        for name, spent in recorder.seconds.most_common()
    }
    return int(status), {"seconds": round(seconds), "starts": recorder.starts.total(), "by_file": by_file}


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
