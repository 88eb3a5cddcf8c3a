"""Tests on real GPUs (marker `gpu`), skipped where there are too few, or no GPU installation. See docs/gpu.md."""

from __future__ import annotations

import importlib.util

import pytest
from conftest import ROOT, Toy

from openrlhf_ada.demo.model import PACKAGE, build_smollm2
from openrlhf_ada.demo.toy import build_toy_model, write_toy_data


def missing(needed: int) -> str:
    """What stands in the way of a test with so many GPUs; empty where nothing does."""
    import torch

    if not torch.cuda.is_available():
        return "needs an NVIDIA GPU (torch sees none)"
    if torch.cuda.device_count() < needed:
        return f"needs {needed} GPUs (torch sees {torch.cuda.device_count()})"
    # Where it is not installed, tests/conftest.py has put a stub in its place, which is no file.
    if getattr(importlib.import_module("flash_attn"), "__file__", None) is None:
        return "needs flash-attn (the extra `gpu`)"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        counts = [marker.args[0] if marker.args else 1 for marker in item.iter_markers("gpu")]
        reason = missing(max(counts)) if counts else ""
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def toy() -> Toy:
    """Two layers, two heads of 32: what flash-attn, vLLM's FlashAttention and two tensor-parallel workers take."""
    data = ROOT / ".cache" / "toy-test-data"
    write_toy_data(data, num_train=192, num_heldout=32, seed=0)
    return Toy(build_toy_model(ROOT / ".cache" / "toy-model"), data / "train.jsonl", data / "heldout.jsonl")


@pytest.fixture(scope="session")
def smollm2(toy: Toy) -> Toy:
    """SmolLM2-135M with the toy's prompts: heads of 64, and answers of any length."""
    if importlib.util.find_spec(PACKAGE) is None:
        pytest.skip(f"needs the weights in the package {PACKAGE}")
    return Toy(build_smollm2(ROOT / ".cache" / "smollm2-plain-model"), toy.train, toy.heldout)
