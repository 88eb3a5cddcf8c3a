"""What several tests look at is made once, also where they run in several processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

ROOT = Path(__file__).parents[2]


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[], Any]) -> Any:
    """What `make` returns, as JSON, from whichever process of this test run asked first. `name`: unique."""
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    kept = folder / f"{name}.json"
    with FileLock(folder / f"{name}.lock"):
        if not kept.exists():
            kept.write_text(json.dumps(make()))
        return json.loads(kept.read_text())


def printed_once(factory: pytest.TempPathFactory, name: str, program: str) -> Any:
    """The JSON on the last line of a program of tests/support, which gets an empty folder. `name`: see `once`."""

    def run() -> Any:
        done = subprocess.run(
            [sys.executable, str(ROOT / "tests" / "support" / program), str(factory.mktemp("run"))],
            capture_output=True, text=True, timeout=280, check=False, cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.strip().splitlines()[-1])

    return once(factory, name, run)
