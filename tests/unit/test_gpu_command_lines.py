"""The tests in tests/gpu where there is no GPU: they are skipped, with the reason, and would start what is allowed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.rehearsal

ROOT = Path(__file__).parents[2]


def gpu_tests(*options: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        capture_output=True, text=True, timeout=240, cwd=ROOT, check=False, env=os.environ | {"PYTEST_ADDOPTS": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_gpu_tests_without_gpu_name_their_needs() -> None:
    told = gpu_tests("tests/gpu/test_packing.py")
    assert "needs an NVIDIA GPU (torch sees none)" in told
    assert re.search(r"^\d+ skipped in", told, re.MULTILINE)


@pytest.mark.slow
def test_their_command_lines_pass_all_checks() -> None:
    assert re.search(r"^\d\d xfailed in", gpu_tests("-p", "parse_only", "tests/gpu"), re.MULTILINE)
