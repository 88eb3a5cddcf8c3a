"""One step over engines in Ray's place: answers come back to the prompt that they belong to.

The engines are stand-ins that answer at once; what a response becomes is OpenRLHF's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch
from cases import sequential
from engines import RolloutEngine, end_at_once
from openrlhf.datasets import PromptDataset
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from rollouts import settings

from openrlhf_ada.core.batches import BatchPlan
from openrlhf_ada.core.fleet import Finished
from openrlhf_ada.core.policies import Policy, Sequential
from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.rollout.prompts import PromptRequest
from openrlhf_ada.rollout.samples_generator import AdaptiveSamplesGenerator, SamplingOptions

GENERATE = {"max_len": 32, "max_new_tokens": 8, "temperature": 0.7, "top_p": 0.9}


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[RolloutEngine]:
    """Right where the prompt's number is even."""
    end_at_once(monkeypatch)
    return [RolloutEngine(lambda number, k: float(number % 2 == 0)) for _ in range(2)]


def make_generator(
    engines: list[RolloutEngine],
    *,
    prompts: Sequence[int] = (4, 7),
    policy: Policy | None = None,
    refill_limit: int = 0,
    sampling: Mapping[str, Any] = MappingProxyType({}),
    **reward: Any,
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
        ada=settings(refill_limit=refill_limit),
    )
    strategy = SimpleNamespace(args=args, is_rank_0=lambda: False)
    dataset = PromptDataset([{"input": str(i), "label": f"L{i}"} for i in prompts], None, strategy)
    loader = _Batches(dataset)
    host = SamplesGenerator(strategy, loader, None, None, engines)
    policy = policy or sequential(1, 1, n=2, wave=2, cap=4)
    options = SamplingOptions(plan=BatchPlan(2, 2, 4, 1, 1), restore_engine=lambda engine: [], **sampling)
    return AdaptiveSamplesGenerator(host, policy, options)


class _Batches:
    def __init__(self, dataset: PromptDataset) -> None:
        self.dataset = dataset
        self.sampler = range(len(dataset))

    def __iter__(self) -> Any:
        return (self.dataset.collate_fn([self.dataset[i]]) for i in range(len(self.dataset)))


REQUESTS = {
    key: PromptRequest(key, row=key - 100, prompt=str(key), label=f"L{key}", image=f"I{key}")
    for key in (103, 104, 108)
}


def sample(engines: list[RolloutEngine], *requests: Request, **options: Any) -> dict[Request, Experience]:
    """These rollouts through the fleet, the odd ones on the second engine."""
    generator = make_generator(engines, **options)
    fleet, reader = generator.fleet(REQUESTS, GENERATE), generator._reader(GENERATE)
    for request in requests:
        fleet.submit(request.index % 2, [request])
    finished: dict[Request, Experience] = {}
    while len(finished) < len(requests):
        for answer in fleet.wait():
            assert isinstance(answer, Finished)
            assert (answer.sample.key, answer.sample.index) == (answer.request.key, answer.request.index)
            finished[answer.request] = reader.experience(answer.payload)
    return finished


def test_answers_return_to_their_samples(engines: list[RolloutEngine]) -> None:
    requests = [Request(108, 1), Request(103, 0), Request(104, 3), Request(104, 2), Request(103, 1)]
    for request, experience in sample(engines, *requests).items():
        assert experience.prompts == [str(request.key)]
        assert experience.labels == [f"L{request.key}"]
        assert experience.images == [f"I{request.key}"]
        assert experience.sequences.tolist() == [[request.key, *[9] * (request.index + 1)]]
        assert experience.rewards.tolist() == [float(request.key % 2 == 0)]
    assert [[job.request.index % 2 for job in engine.jobs] for engine in engines] == [[0, 0], [1, 1, 1]]


def test_sampling_parameters_are_the_hosts(engines: list[RolloutEngine]) -> None:
    sample(engines, Request(103, 0))
    (ours,) = engines[0].setups
    generator = make_generator(engines)
    SamplesGenerator._dispatch_prompts_to_vllm(generator, ["5"], ["L"], **GENERATE)
    (call,) = [call for engine in engines for call in engine.calls]
    assert repr(ours.params) == repr(call["sampling_params"])
    assert ours.max_length == call["max_length"] == 32


def test_seed_belongs_to_the_sample_on_any_engine(engines: list[RolloutEngine]) -> None:
    requests = [Request(key, index, attempt) for key in (103, 104) for index in (0, 1) for attempt in (0, 1)]
    sample(engines, *requests)
    sample(engines[::-1], *requests[::-1])
    seeds = {((job.request.key, job.request.index), job.seed) for engine in engines for job in engine.jobs}
    assert len(seeds) == len(requests) / 2, "one each, whoever samples it, when, and how often"
    assert len({seed for _, seed in seeds}) == len(seeds)
    assert all(0 <= seed < 2**63 for _, seed in seeds)


def test_what_is_wrong_with_a_reward_is_told_with_its_row(engines: list[RolloutEngine]) -> None:
    engines[0].reward = lambda number, k: math.inf
    with pytest.raises(ValueError, match=r"Row 3 of the training data: .*inf"):
        sample(engines, Request(103, 0))


def test_length_penalty_is_in_reward_not_score(
    engines: list[RolloutEngine],
) -> None:
    """The pool's baseline needs it for samples that are not trained; rules must not see it (R7).

    Answers of 1..4 tokens, 8 allowed, a buffer of 6: from the third token on, 1/6 is taken off per token.
    """
    drawn = sample(engines, *(Request(104, k) for k in range(4)), overlong_buffer_len=6)
    samples = [drawn[Request(104, k)] for k in range(4)]
    rewards = [float(s.rewards[0]) for s in samples]
    assert rewards == pytest.approx([1.0, 1.0, 1 - 1 / 6, 1 - 2 / 6])
    assert [float(s.info["reward"][0]) for s in samples] == pytest.approx(rewards)
    assert [float(s.scores[0]) for s in samples] == [1.0] * 4


def test_whole_batch_is_tagged_and_accounted_for(engines: list[RolloutEngine]) -> None:
    generator = make_generator(engines)
    samples, _, consumed, _ = generator.generate_samples(**GENERATE)
    assert consumed == 2
    assert [s.tag.key for s in samples] == [0, 0, 1, 1]
    assert [s.prompts[0] for s in samples] == ["4", "4", "7", "7"]
    assert torch.tensor([s.tag.coefficient for s in samples]).tolist() == [0.0] * 4, "one outcome each"
    assert samples.ledger.drawn == sum(engine.drawn for engine in engines) == 8


def test_samples_have_the_versions_that_their_engine_names(engines: list[RolloutEngine]) -> None:
    for number, engine in enumerate(engines):
        engine.versions = (3 + number, 4 + number)
    samples, *_ = make_generator(engines).generate_samples(**GENERATE)
    drawn = [s for group in samples.record.groups for s in group.pool.samples]
    assert {(s.version, s.last_version) for s in drawn} == {(3, 4), (4, 5)}


@pytest.mark.parametrize(("sleeps", "calls"), [(True, ["wake_up", "sleep"]), (False, [])])
def test_only_sleeping_engines_are_woken(engines: list[RolloutEngine], sleeps: bool, calls: list[str]) -> None:
    generator = make_generator(engines)
    generator.args.vllm.enable_sleep = sleeps
    generator.generate_samples(**GENERATE)
    assert [engine.power for engine in engines] == [calls, calls]
    generator.generate_samples(**GENERATE)
    assert [engine.power for engine in engines] == [calls, calls], "nothing is left to sample"


REFILLED: dict[str, Any] = {"prompts": (4, 7, 6, 9, 8), "refill_limit": 3}
"""Every prompt has one outcome: both of the batch are replaced, then one of the fresh ones."""


@pytest.mark.rehearsal
def test_engines_nap_once_in_a_step_with_refills(engines: list[RolloutEngine]) -> None:
    """Asleep, an engine's weights are in main memory; each nap copies all of them there and back."""
    generator = make_generator(engines, **REFILLED)
    generator.args.vllm.enable_sleep = True
    samples, *_ = generator.generate_samples(**GENERATE)
    assert len(samples.record.replaced) == 3
    assert [engine.power for engine in engines] == [["wake_up", "sleep"]] * 2


class ReadsCritic(Sequential):
    reads_critic = True


def test_a_critic_is_asked_while_engines_sleep(engines: list[RolloutEngine]) -> None:
    """It may share their GPU, and has to know of fresh prompts before they are sampled."""
    calls = engines[0].power

    def values(prompts: Sequence[str]) -> list[float]:
        calls.append(f"values of {len(prompts)}")
        return [0.5] * len(prompts)

    plain = sequential(1, 1, n=2, wave=2, cap=4)
    policy = ReadsCritic(**{field.name: getattr(plain, field.name) for field in fields(plain)})
    sampling = {"prompt_values": values}
    generator = make_generator(engines, **REFILLED, policy=policy, sampling=sampling)
    generator.args.vllm.enable_sleep = True
    generator.generate_samples(**GENERATE)
    nap = ["wake_up", "sleep"]
    assert calls == ["values of 2", *nap, "values of 2", *nap, "values of 1", *nap]
