"""Which precision this processor computes in."""

from __future__ import annotations

import os
import re
from pathlib import Path

DTYPE_VARIABLE = "OPENRLHF_ADA_CPU_DTYPE"
"""auto (default), float32 or bfloat16: precision of training and engine."""


def compute_dtype() -> str:
    """ "float32" or "bfloat16": the wider one unless the processor multiplies bfloat16 itself.

    Emulated bfloat16 is tens of times slower than float32 (docs/cpu.md). Raises ValueError on another value of
    OPENRLHF_ADA_CPU_DTYPE.
    """
    chosen = os.environ.get(DTYPE_VARIABLE, "auto")
    if chosen in ("float32", "bfloat16"):
        return chosen
    if chosen != "auto":
        raise ValueError(f"{DTYPE_VARIABLE} is {chosen!r}: expected auto, float32 or bfloat16")
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    native = flags is not None and {"avx512_bf16", "amx_bf16"} & set(flags.group(1).split())
    return "bfloat16" if native else "float32"
