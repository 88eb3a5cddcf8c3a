"""How long `make check` and `make test` take, the tests by part and by file. Nothing else may run meanwhile.

python benchmarks/test_time.py            last line: one JSON object; results in benchmarks/results/
python benchmarks/test_time.py --quick    one file of tests; nothing is saved
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from machine import machine

HERE = Path(__file__).resolve().parent
RESULT = HERE / "results" / "test_time.json"
QUICK = "tests/unit/test_core_grouping.py"

PARTS = [
    [
        "--numprocesses=3",
        "--dist=loadfile",
        "--no-loadscope-reorder",
        "-m",
        "not long",
        "tests/contract",
        "tests/benchmarks",
        "tests/unit",
    ],
    ["--numprocesses=2", "--dist=loadfile", "-m", "not long", "tests/e2e", "tests/gpu"],
]
"""As `make test` has them, after `make lint`; tests/unit/test_setup.py compares."""


class Recorder:
    """A plugin of pytest: seconds by file. Those of files that run side by side add up to more than all took."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid.partition("::")[0]] += report.duration


def timed_make(target: str) -> float:
    """Seconds. Raises CalledProcessError where it finds something."""
    begun = time.monotonic()
    subprocess.run(["make", "--no-print-directory", target], cwd=HERE.parent, stdout=sys.stderr, check=True)
    return round(time.monotonic() - begun, 1)


def measure(parts: list[list[str]]) -> tuple[int, dict[str, object]]:
    """pytest's highest exit status, and seconds by part and by file. `parts`: arguments, one part after the other."""
    recorder, status, by_part = Recorder(), 0, {}
    os.chdir(HERE.parent)
    # Tests find their modules as below `make test`.
    sys.path.remove(str(HERE))
    for arguments in parts:
        begun = time.monotonic()
        status = max(status, int(pytest.main(["-q", *arguments], plugins=[recorder])))
        by_part[" ".join(a for a in arguments if a.startswith("tests"))] = round(time.monotonic() - begun, 1)
    return status, {"by_part": by_part, "by_file": {n: round(s, 1) for n, s in recorder.seconds.most_common()}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} alone")
    if parser.parse_args().quick:
        status, figures = measure([[QUICK]])
    else:
        makes = {f"make {target}": timed_make(target) for target in ("check", "lint")}
        status, figures = measure(PARTS)
        figures = {"seconds": makes} | figures | {"machine": machine()}
        if not status:
            RESULT.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures))
    return status


if __name__ == "__main__":
    sys.exit(main())
