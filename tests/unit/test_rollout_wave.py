"""One wave through the host's own dispatch: answers come back to the prompt that they belong to.

The engines are stand-ins that answer at once; the load balancing, sampling parameters and experience are the host's.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cases import sequential
from engines import Engine, answer_at_once
from openrlhf.datasets import PromptDataset
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

from openrlhf_ada.core.batches import BatchPlan
from openrlhf_ada.core.policies import Draw
from openrlhf_ada.rollout.prompts import PromptRequest
from openrlhf_ada.rollout.samples_generator import AdaptiveSamplesGenerator, SamplingOptions

GENERATE = {"max_len": 32, "max_new_tokens": 8, "temperature": 0.7, "top_p": 0.9}


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[Engine]:
    """Right where the prompt's number is even."""
    answer_at_once(monkeypatch)
    return [Engine(lambda number, k: float(number % 2 == 0)) for _ in range(2)]


def make_generator(
    engines: list[Engine], policy_version: Callable[[], int] = lambda: 0, **reward: Any
) -> AdaptiveSamplesGenerator:
    args = SimpleNamespace(
        actor=SimpleNamespace(model_name_or_path="model"),
        rollout=SimpleNamespace(batch_size=2, n_samples_per_prompt=2, max_new_tokens=8),
        train=SimpleNamespace(num_episodes=1, seed=0),
        vllm=SimpleNamespace(enable_sleep=False),
        algo=SimpleNamespace(advantage=SimpleNamespace(is_correction_level="off")),
        reward=SimpleNamespace(
            **{
                "overlong_buffer_len": None,
                "overlong_penalty_factor": 1.0,
                "stop_properly_penalty_coef": None,
                "clip_range": (-10, 10),
                **reward,
            }
        ),
        data=SimpleNamespace(max_len=32, input_key="input", label_key="label", disable_fast_tokenizer=False),
    )
    strategy = SimpleNamespace(args=args, is_rank_0=lambda: False)
    dataset = PromptDataset([{"input": str(i), "label": f"L{i}"} for i in (4, 7)], None, strategy)
    loader = _Batches(dataset)
    host = SamplesGenerator(strategy, loader, None, None, engines)
    options = SamplingOptions(
        plan=BatchPlan(2, 2, 4, 1, 1), refill_limit=0, num_texts=0, policy_version=policy_version
    )
    return AdaptiveSamplesGenerator(host, sequential(1, 1, n=2, wave=2, cap=4), options)


class _Batches:
    def __init__(self, dataset: PromptDataset) -> None:
        self.dataset = dataset

    def __iter__(self) -> Any:
        return (self.dataset.collate_fn([self.dataset[i]]) for i in range(len(self.dataset)))


REQUESTS = {
    key: PromptRequest(key, row=key - 100, prompt=str(key), label=f"L{key}", image=f"I{key}")
    for key in (103, 104, 108)
}


def test_answers_return_to_their_prompts_when_counts_differ(engines: list[Engine]) -> None:
    """Dispatched count by count (2, 2, then 4): another order than the draws', and the keys must survive it."""
    draws = [Draw(103, 2), Draw(104, 4), Draw(108, 2)]
    wave = make_generator(engines)._sample_wave(draws, REQUESTS, GENERATE)
    assert {key: len(samples) for key, samples in wave.items()} == {103: 2, 104: 4, 108: 2}
    for key, samples in wave.items():
        for k, sample in enumerate(samples):
            assert sample.prompts == [str(key)]
            assert sample.labels == [f"L{key}"]
            assert sample.images == [f"I{key}"]
            assert sample.sequences.tolist() == [[key, *[9] * (k + 1)]], "in the order of dispatch"
            assert sample.rewards.tolist() == [float(key % 2 == 0)]


def test_each_prompt_is_asked_for_once_with_its_count(engines: list[Engine]) -> None:
    make_generator(engines)._sample_wave([Draw(103, 3), Draw(104, 1)], REQUESTS, GENERATE)
    calls = {call["prompt"]: call for engine in engines for call in engine.calls}
    assert {prompt: call["num_samples"] for prompt, call in calls.items()} == {"103": 3, "104": 1}
    params = calls["103"]["sampling_params"]
    assert (params.temperature, params.top_p, params.max_tokens) == (0.7, 0.9, 8)
    assert calls["103"]["max_length"] == 32


def test_length_penalty_is_in_the_reward_of_every_drawn_sample_and_not_in_its_metric(engines: list[Engine]) -> None:
    """The pool's baseline needs it for samples that are not trained; rules must not see it (R7).

    Answers of 1..4 tokens, 8 allowed, a buffer of 6: from the third token on, 1/6 is taken off per token.
    """
    generator = make_generator(engines, overlong_buffer_len=6)
    wave = generator._sample_wave([Draw(104, 4)], REQUESTS, GENERATE)
    rewards = [float(s.rewards[0]) for s in wave[104]]
    assert rewards == pytest.approx([1.0, 1.0, 1 - 1 / 6, 1 - 2 / 6])
    assert [float(s.info["reward"][0]) for s in wave[104]] == pytest.approx(rewards)
    assert [float(s.scores[0]) for s in wave[104]] == [1.0] * 4


def test_whole_batch_is_tagged_and_accounted_for(engines: list[Engine]) -> None:
    generator = make_generator(engines)
    samples, _, consumed, _ = generator.generate_samples(**GENERATE)
    assert consumed == 2
    assert [s.tag.key for s in samples] == [0, 0, 1, 1]
    assert [s.prompts[0] for s in samples] == ["4", "4", "7", "7"]
    assert torch.tensor([s.tag.coefficient for s in samples]).tolist() == [0.0] * 4, "one outcome each"
    assert samples.ledger.drawn == sum(engine.drawn for engine in engines) == 8


def test_samples_have_the_policy_version_before_their_wave_and_the_record_the_last(engines: list[Engine]) -> None:
    """One outcome each, so two waves of two; the weights change after each wave."""
    versions = iter([3, 4, 5])
    samples, *_ = make_generator(engines, lambda: next(versions)).generate_samples(**GENERATE)
    assert [[s.version for s in group.pool.samples] for group in samples.record.groups] == [[3, 3, 4, 4]] * 2
    assert samples.record.last_version == 5


@pytest.mark.parametrize(("sleeps", "calls"), [(True, ["wake_up", "sleep"]), (False, [])])
def test_engines_are_woken_for_a_batch_only_where_they_sleep(
    engines: list[Engine], sleeps: bool, calls: list[str]
) -> None:
    generator = make_generator(engines)
    generator.args.vllm.enable_sleep = sleeps
    generator.generate_samples(**GENERATE)
    assert [engine.power for engine in engines] == [calls, calls]
    generator.generate_samples(**GENERATE)
    assert [engine.power for engine in engines] == [calls, calls], "nothing is left to sample"
