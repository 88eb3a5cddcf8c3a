"""An evaluation that begins again, on engines that sleep between their uses as they share GPUs with the policy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from openrlhf.trainer.ppo_utils import samples_generator as host
from ray.exceptions import ActorDiedError

from openrlhf_ada.rollout.recorded_generator import RecordedGenerator
from openrlhf_ada.rollout.samples_generator import AdaptiveSamplesGenerator

pytestmark = pytest.mark.rehearsal


def test_it_begins_with_the_first_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenRLHF's own loop over three parts; the engine dies in the second, so it cannot be put to sleep either."""
    calls: list[Any] = []
    deaths = iter([False, True, False, False, False])

    def part(_self: Any, dataloader_iter: Any, **_kwargs: Any) -> tuple[list[Any], int, bool]:
        number = next(dataloader_iter)
        calls.append(number)
        if next(deaths):
            raise ActorDiedError
        return [SimpleNamespace(scores=number)], 1, number == 2

    def tell(_engines: Any, method: str) -> None:
        calls.append(method)
        if calls[-2:] == [1, "sleep"] and calls.count("sleep") == 1:
            raise ActorDiedError

    monkeypatch.setattr(host.SamplesGenerator, "_generate_vllm", part)
    monkeypatch.setattr(host, "batch_vllm_engine_call", tell)
    monkeypatch.setattr(RecordedGenerator, "generate_eval_samples", host.SamplesGenerator.generate_eval_samples)
    generator: Any = AdaptiveSamplesGenerator.__new__(AdaptiveSamplesGenerator)
    generator.args = SimpleNamespace(vllm=SimpleNamespace(enable_sleep=True), rollout=SimpleNamespace(batch_size=1))
    generator.options = SimpleNamespace(threshold=None)
    generator.eval_dataloader, generator.vllm_engines = range(3), []
    generator._connections = SimpleNamespace(wait_until_ready=lambda: calls.append("wait_until_ready"))
    samples = generator.generate_eval_samples(temperature=0.0)
    assert [sample.rewards for sample in samples] == [0, 1, 2]
    assert calls == ["wait_until_ready", "wake_up", 0, 1, "sleep", "wait_until_ready", "wake_up", 0, 1, 2, "sleep"]
