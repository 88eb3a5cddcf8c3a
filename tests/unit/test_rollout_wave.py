"""One wave through the host's own dispatch: answers come back to the prompt that they belong to.

The engines are stand-ins that answer at once; the load balancing, sampling parameters and experience are the host's.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from openrlhf.datasets import PromptDataset
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

from openrlhf_ada.core.batches import BatchPlan
from openrlhf_ada.core.policies import Draw, Sequential
from openrlhf_ada.core.stopping import ExitRule
from openrlhf_ada.rollout.prompts import PromptRequest
from openrlhf_ada.rollout.samples_generator import AdaptiveSamplesGenerator

GENERATE = {"max_len": 32, "max_new_tokens": 8, "temperature": 0.7, "top_p": 0.9}


class Remote:
    """`engine.method.remote(...)` without Ray: the call's result stands for its reference."""

    def __init__(self, function: Any) -> None:
        self.remote = function


class Engine:
    """Answers sample k of a prompt with k + 1 tokens, right if the prompt's number is even."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.power: list[str] = []
        self.get_num_unfinished_requests = Remote(lambda: 0)
        self.generate_responses = Remote(self._generate)
        self.wake_up = Remote(lambda: self.power.append("wake_up"))
        self.sleep = Remote(lambda: self.power.append("sleep"))

    def _generate(self, **call: Any) -> list[dict[str, Any]]:
        self.calls.append(call)
        number = int(call["prompt"])
        return [
            {
                "prompt": call["prompt"],
                "label": call["label"],
                "images": call["images"],
                "observation_tokens": [number, *[9] * (k + 1)],
                "action_ranges": [(1, k + 2)],
                "rollout_log_probs": None,
                "truncated": False,
                "reward": float(number % 2 == 0),
                "scores": float(number % 2 == 0),
            }
            for k in range(call["num_samples"])
        ]


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[Engine]:
    monkeypatch.setattr(ray, "get", lambda refs: refs)
    return [Engine(), Engine()]


def make_generator(engines: list[Engine], **reward: Any) -> AdaptiveSamplesGenerator:
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
                **reward,
            }
        ),
        data=SimpleNamespace(max_len=32, input_key="input", label_key="label", disable_fast_tokenizer=False),
    )
    strategy = SimpleNamespace(args=args, is_rank_0=lambda: False)
    dataset = PromptDataset([{"input": str(i), "label": f"L{i}"} for i in (4, 7)], None, strategy)
    loader = _Batches(dataset)
    host = SamplesGenerator(strategy, loader, None, None, engines)
    policy = Sequential(ExitRule(1, 1, 0.5), wave=2, max_samples=4, group_size=2, estimator="dr_grpo")
    return AdaptiveSamplesGenerator(host, policy, BatchPlan(2, 2, 4, 1, 1), lambda closed, total: None)


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
    assert generator.last_step.ledger.drawn == sum(c["num_samples"] for e in engines for c in e.calls) == 8


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
