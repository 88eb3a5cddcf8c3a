"""The tests in tests/gpu, where there is no GPU, would start what is allowed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.rehearsal

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_their_command_lines_pass_all_checks() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "parse_only", "tests/gpu"],
        capture_output=True, text=True, timeout=240, cwd=ROOT, check=False, env=os.environ | {"PYTEST_ADDOPTS": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert re.search(r"^\d\d xfailed in", done.stdout, re.MULTILINE)
