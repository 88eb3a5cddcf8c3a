"""Numbers that are not finite, in training steps of the real DeepSpeed: see tests/support/finite_training.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from shared_results import printed_once

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return printed_once(tmp_path_factory, "finite steps", "finite_training.py")


@pytest.mark.parametrize("stage", ["ZeRO 0", "ZeRO 2", "ZeRO 3"])
def test_an_ordinary_step_is_taken(found: dict[str, Any], stage: str) -> None:
    assert found[f"nothing, {stage}"] == {"said": "", "steps": 1, "moved": True}


@pytest.mark.parametrize("stage", ["ZeRO 0", "ZeRO 2", "ZeRO 3"])
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("advantage", "its loss is nan. Not finite before it: the advantages (1 of 2 rollouts)"),
        ("loss", "its loss is -inf. All that it is computed from is finite: the learning rate, a reward or an"),
    ],
)
def test_a_loss_that_is_not_finite_ends_the_run_before_the_weights_change(
    found: dict[str, Any], stage: str, damage: str, said: str
) -> None:
    seen = found[f"{damage}, {stage}"]
    assert said in seen["said"] and "training of the policy stopped" in seen["said"]
    assert (seen["steps"], seen["moved"]) == (0, False)


@pytest.mark.parametrize("stage", ["ZeRO 0", "ZeRO 2", "ZeRO 3"])
def test_a_gradient_that_is_not_finite_ends_the_run_before_the_weights_change(
    found: dict[str, Any], stage: str
) -> None:
    seen = found[f"gradient, {stage}"]
    assert "training of the policy stopped: its gradient is not finite. All that it is computed from" in seen["said"]
    assert (seen["steps"], seen["moved"]) == (0, False)
