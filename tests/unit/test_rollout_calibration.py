"""Calibration finds an engine's times again: a virtual engine is measured on its own clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray
from engines import Remote

from openrlhf_ada.core.types import Sample
from openrlhf_ada.rollout import calibration
from openrlhf_ada.rollout.calibration import Calibrator
from openrlhf_ada.simulation.virtual_engines import EngineModel, VirtualFleet

SLOTS = 32
ENGINE = EngineModel(
    batch_sizes=(1, 2, 4, 8, 16, 32),
    step_seconds=(0.010, 0.011, 0.013, 0.017, 0.025, 0.041),
    slots=SLOTS,
    prefill=0.006,
    shared_prefill=0.002,
    latency=0.05,
)


class Generator:
    """Hands out the virtual engine; its clock goes on from batch to batch."""

    def __init__(self, num_prompts: int = 100, prompt_tokens: int = 10) -> None:
        self.clock = 0.0
        self.asked: list[dict[str, Any]] = []
        engine = SimpleNamespace(
            capacity=Remote(lambda: (SLOTS, 8)), reset_prefix_cache=Remote(lambda: None)
        )  # fmt: skip
        self.vllm_engines = [engine]
        self.prompts_dataloader = [([i], [f"p{i}"], [""], [None]) for i in range(num_prompts)]
        self.tokenizer = SimpleNamespace(load=lambda: lambda text: {"input_ids": [0] * prompt_tokens})

    def fleet(self, visits: Any, kwargs: dict[str, Any]) -> VirtualFleet:
        self.asked.append(kwargs)
        tokens = kwargs["max_new_tokens"]
        assert kwargs["min_new_tokens"] == tokens, "neither more nor less"
        owner = self

        class Clocked(VirtualFleet):
            def wait(self) -> Any:
                before = self.now
                answers = super().wait()
                owner.clock += self.now - before
                return answers

        return Clocked(1, ENGINE, lambda request: Sample(request.key, request.index, 0.0, 0.0, tokens))


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> Generator:
    generator = Generator()
    monkeypatch.setattr(calibration.time, "monotonic", lambda: generator.clock)
    monkeypatch.setattr(ray, "get", lambda ref: ref)
    return generator


def test_the_engine_is_found_again(generator: Generator) -> None:
    told: list[int] = []
    found = Calibrator(generator, {"max_len": 74}).measure(lambda size, slots: told.append(size))  # type: ignore[arg-type]
    assert told == list(found.batch_sizes) == list(ENGINE.batch_sizes)
    assert found.step_seconds == pytest.approx(ENGINE.step_seconds, rel=1e-6)
    assert (found.slots, found.speculation) == (SLOTS, 8)
    assert found.prefill == pytest.approx(ENGINE.prefill, rel=1e-3)
    assert found.shared_prefill == pytest.approx(ENGINE.shared_prefill, rel=1e-3)
    assert found.latency == pytest.approx(ENGINE.latency, rel=1e-3)
    assert {kwargs["max_new_tokens"] for kwargs in generator.asked} == {16, 64}


def test_large_batches_of_a_slow_engine_are_left_out(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "LONGEST_S", 2.0)
    found = Calibrator(generator, {"max_len": 74}).measure(lambda size, slots: None)  # type: ignore[arg-type]
    assert found.batch_sizes == (1, 2, 4, 8)


def test_prompts_that_leave_no_room_are_refused(generator: Generator) -> None:
    with pytest.raises(ValueError, match=r"up to 10 tokens leave no room for answers: raise --data\.max_len"):
        Calibrator(generator, {"max_len": 11})  # type: ignore[arg-type]


def test_noise_below_zero_is_zero() -> None:
    assert calibration.fit_line([1, 2, 4], [0.01, 0.02, 0.04]) == pytest.approx((0.01, 0.0), abs=1e-9)
    slope, intercept = calibration.fit_line([1, 2, 4], [0.0, 0.02, 0.06])
    assert slope > 0 and intercept == 0.0
