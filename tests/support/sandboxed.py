"""Programs in the sandbox: what they print, or why they ended."""

from __future__ import annotations

import os

import pytest

from openrlhf_ada.reward.programs import child as sandbox_child
from openrlhf_ada.reward.programs.limits import ProgramLimits
from openrlhf_ada.reward.programs.sandbox import run_program

LIMITS = ProgramLimits(seconds=10, cpu_seconds=10, memory_mib=512)
SHORT = ProgramLimits(seconds=0.5, memory_mib=512)
X86_ONLY = pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers and machine code of x86_64")
LANDLOCK = pytest.mark.skipif(sandbox_child.landlock_version() < 1, reason="this kernel has no Landlock")
SYSCALLS = """
import ctypes, json
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *arguments)
    return ctypes.get_errno() if result < 0 else "done"
"""
WRITE_EVERYWHERE = "import os\nfor fd in range(20):\n    try: os.write(fd, {})\n    except OSError: pass"


def output(code: str, stdin: str = "", limits: ProgramLimits = LIMITS) -> str:
    """What a program prints that must end well."""
    ended = run_program(code, stdin, limits)
    assert ended.cause == ""
    return ended.stdout.decode()


def cause(code: str, limits: ProgramLimits = LIMITS) -> str:
    return run_program(code, "", limits).cause
