"""Two runs of one step on the real stack: did their weights move alike?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

ONE_STEP: dict[str, Any] = {
    "data__max_samples": 16,
    "actor__adam__lr": 1e5,
    # So large that the optimizer's step is the gradient. Adam makes a sign of the slightest one.
    "actor__adam__eps": 1e6,
    "actor__lr_scheduler": "constant",
}


def check_same_step(model: Path, run: Path, other: Path) -> None:
    """Every tensor, to a thousandth of its step. `model`: where both began."""
    before = load_file(model / "model.safetensors")
    first, second = (load_file(folder / "model" / "model.safetensors") for folder in (run, other))
    for key, start in before.items():
        step, same = (weights[key].float() - start.float() for weights in (first, second))
        assert torch.linalg.norm(same - step) <= 1e-3 * torch.linalg.norm(step), key
    assert any(not torch.equal(first[key], before[key]) for key in before)
