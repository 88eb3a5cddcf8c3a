"""Training ends at the first number that is not finite, and says which.

With the real DeepSpeed: tests/contract/test_finite_steps.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from openrlhf_ada.trainer.training_step import FiniteSteps, NotFiniteError

NAN, INF = float("nan"), float("inf")


@dataclass
class Engine:
    """DeepSpeed's, of a ZeRO stage, with gradients that are finite or not."""

    stage: int = 2
    is_bad: bool = False
    in_float16: bool = False
    ends: bool = True
    steps: int = 0

    @property
    def optimizer(self) -> Any:
        return SimpleNamespace(has_overflow=lambda: self.is_bad)

    def zero_optimization_stage(self) -> int:
        return self.stage

    def fp16_enabled(self) -> bool:
        return self.in_float16

    def bfloat16_enabled(self) -> bool:
        return not self.in_float16

    def is_gradient_accumulation_boundary(self) -> bool:
        return self.ends

    def step(self) -> None:
        self.steps += 1


class Loss(nn.Module):
    """The advantages' mean, with a second output as OpenRLHF's policy loss has more."""

    def forward(self, advantages: torch.Tensor) -> tuple[torch.Tensor, str]:
        return advantages.mean(), "clipped"


def batch(**fields: Any) -> SimpleNamespace:
    names = ("action_log_probs", "base_action_log_probs", "rollout_log_probs", "values", "returns", "advantages")
    made = dict.fromkeys(names) | {"advantages": torch.ones(2, 3), "action_mask": torch.ones(2, 3), "info": {}}
    return SimpleNamespace(**made | fields)


@pytest.fixture
def loss() -> Loss:
    return Loss()


def steps(loss: Loss, engine: Engine) -> FiniteSteps:
    return FiniteSteps("policy", loss, engine)


def test_finite_steps_pass(loss: Loss) -> None:
    engine = Engine()
    watched = steps(loss, engine)
    for _ in range(2):
        with watched.step(made := batch()):
            loss(made.advantages)
            engine.step()
    assert engine.steps == 2


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_loss_that_is_not_finite_is_said_before_anything_goes_back(value: float, loss: Loss) -> None:
    engine = Engine()
    bad = batch(returns=torch.zeros(2, 3), advantages=torch.tensor([[0.0, value, 0.0], [0.0, 0.0, 0.0]]))
    with (
        pytest.raises(NotFiniteError, match=rf"its loss is {value}. Not finite before it: the advantages \(1 of 2"),
        steps(loss, engine).step(bad),
    ):
        loss(bad.advantages)
        engine.step()
    assert engine.steps == 0


def test_all_that_is_not_finite_is_named(loss: Loss) -> None:
    bad = batch(base_action_log_probs=torch.full((2, 3), -INF), values=torch.full((2, 3), NAN))
    with (
        pytest.raises(NotFiniteError, match=r"reference model's log-probabilities \(2 of 2 rollouts\), the critic's"),
        steps(loss, Engine()).step(bad),
    ):
        loss(torch.full((2, 3), NAN))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_gradient_that_is_not_finite_is_said_before_the_step(stage: int, loss: Loss) -> None:
    engine = Engine(stage, is_bad=True)
    with (
        pytest.raises(NotFiniteError, match=r"its gradient is not finite. All that it is computed from is finite"),
        steps(loss, engine).step(batch()),
    ):
        engine.step()
    assert engine.steps == 0


@pytest.mark.parametrize("engine", [Engine(is_bad=True, ends=False), Engine(is_bad=True, in_float16=True), Engine(0)])
def test_gradients_are_looked_at_where_deepspeed_does_not(engine: Engine, loss: Loss) -> None:
    """Not before the last micro-batch; in float16 DeepSpeed leaves steps out itself, to find its scale."""
    with steps(loss, engine).step(batch()):
        engine.step()
    assert engine.steps == 1


def test_other_errors_stay_what_they_are(loss: Loss) -> None:
    with pytest.raises(KeyError), steps(loss, Engine()).step(batch()):
        raise KeyError("other")
