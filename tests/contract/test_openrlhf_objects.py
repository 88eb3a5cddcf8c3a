"""The same surface at run time: how Ray wraps OpenRLHF's classes, and what its data and experience objects are."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pytest
import ray
import torch
from hypothesis import given
from hypothesis import strategies as st
from openrlhf.cli import train_ppo_ray
from openrlhf.datasets import PromptDataset
from openrlhf.datasets.utils import blending_datasets
from openrlhf.models.utils import compute_reward
from openrlhf.trainer import ppo_trainer, ppo_trainer_async
from openrlhf.trainer.ppo_utils import samples_generator
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ray import ppo_actor, ppo_critic, vllm_engine
from openrlhf.utils.agent import SingleTurnAgentExecutor
from torchdata.stateful_dataloader import StatefulDataLoader

from openrlhf_ada.cli import evaluate
from openrlhf_ada.cli.sampling_flags import Prompts
from openrlhf_ada.data.problems import Problem
from openrlhf_ada.demo import toy
from openrlhf_ada.host import tokenizer as host_tokenizer
from openrlhf_ada.host.classes import substituted, unwrap_ray_class
from openrlhf_ada.host.engine import HostRolloutActor, replace_rewards
from openrlhf_ada.host.experiences import experience_of
from openrlhf_ada.host.generator import HostGenerator, number_rows, seed_order
from openrlhf_ada.host.models import HostCriticActor, HostPolicyActor, HostPolicyTrainer
from openrlhf_ada.host.rewards import HostReward
from openrlhf_ada.host.rows import load_blended, prompt_maker
from openrlhf_ada.host.trainer import HostSamplingActor, HostSyncTrainer, whole_prompts
from openrlhf_ada.rollout.engine import AdaRolloutActor
from openrlhf_ada.rollout.prompts import take_prompts
from openrlhf_ada.rollout.recorded_generator import RecordedGenerator
from openrlhf_ada.rollout.records import TaggedExperience
from openrlhf_ada.rollout.samples_generator import AdaptiveSamplesGenerator
from openrlhf_ada.trainer import ppo_trainer as our_trainer
from openrlhf_ada.trainer import ppo_trainer_async as our_async
from openrlhf_ada.trainer import training_data
from openrlhf_ada.trainer.critic import (
    AdaCriticModelActor,
    AdaCriticTrainer,
)
from openrlhf_ada.trainer.experience_maker import AdaptiveExperienceMaker
from openrlhf_ada.trainer.policy import AdaActorTrainer, AdaPolicyActor
from openrlhf_ada.trainer.ppo_trainer import AdaPPOTrainer
from openrlhf_ada.trainer.prompt_critic import PassRateCriticActor
from openrlhf_ada.trainer.recorded_training import RecordedTraining


@pytest.mark.parametrize(
    ("wrapped", "ours"),
    [
        (ppo_trainer.PPOTrainer, AdaPPOTrainer),
        (ppo_trainer_async.PPOTrainerAsync, our_async.AdaPPOTrainerAsync),
        (ppo_trainer_async.TrainingActor, our_async.AdaTrainingActor),
        (ppo_trainer_async.GenerateSamplesActor, our_async.AdaGenerateSamplesActor),
        (ppo_critic.CriticModelActor, AdaCriticModelActor),
        (ppo_critic.CriticModelActor, PassRateCriticActor),
        (ppo_actor.PolicyModelActor, AdaPolicyActor),
        (vllm_engine.RolloutRayActor, AdaRolloutActor),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_ray_classes_are_reached_for_subclassing(wrapped: object, ours: type) -> None:
    plain = unwrap_ray_class(wrapped)
    assert isinstance(wrapped, ray.actor.ActorClass)
    assert isinstance(plain, type)
    assert not isinstance(plain, ray.actor.ActorClass)
    assert issubclass(ours, plain), "host.classes.unwrap_ray_class: __ray_metadata__.modified_class"


def test_lock_has_the_methods_of_the_hosts() -> None:
    theirs = {name for name in vars(unwrap_ray_class(ppo_trainer_async.VLLMLock)) if not name.startswith("_")}
    assert theirs == {"acquire", "release"}
    assert all(hasattr(asyncio.Lock, name) for name in theirs)


OVERRIDES = {  # a host method that was renamed would leave ours uncalled, without a sound
    RecordedTraining: ("train_step", "save_logs_and_checkpoints", "save_best_checkpoint"),
    AdaPPOTrainer: ("fit", "evaluate", "get_max_steps"),
    our_async.AdaTrainingActor: ("fit", "broadcast_to_vllm"),
    our_async.AdaGenerateSamplesActor: ("finish_evaluation", "get_max_steps"),
    our_async.AdaPPOTrainerAsync: ("fit", "own_actors"),
    HostSamplingActor: ("_run_eval",),
    HostPolicyTrainer: ("_init_vllm_sync_group",),
    HostPolicyActor: ("init_model_from_pretrained",),
    HostCriticActor: ("init_model_from_pretrained",),
    HostRolloutActor: ("_configure_vllm_env",),
    HostGenerator: ("_process_response_into_experience", "_dispatch_prompts_to_vllm"),
    AdaActorTrainer: ("broadcast_to_vllm", "training_step"),
    AdaPolicyActor: ("init_model_from_pretrained", "fit", "save_model", "save_checkpoint"),
    AdaRolloutActor: ("prepare_environment", "generate_responses"),
    AdaCriticTrainer: ("training_step", "ppo_train"),
    PassRateCriticActor: ("init_model_from_pretrained",),
    RecordedGenerator: ("generate_samples", "generate_eval_samples", "on_sample"),
    AdaptiveSamplesGenerator: ("generate_samples",),
    AdaptiveExperienceMaker: ("make_experience_batch", "compute_advantages_and_returns"),
}


@pytest.mark.parametrize("ours", OVERRIDES, ids=lambda c: c.__name__)
def test_every_override_overrides_something(ours: type) -> None:
    for name in OVERRIDES[ours]:
        assert name in vars(ours), f"{ours.__name__}.{name} is gone: update this table"
        assert any(hasattr(base, name) for base in ours.__bases__), f"{ours.__name__}.{name}: OpenRLHF has none"


def test_recording_precedes_the_host_in_both_trainers() -> None:
    sync, training = AdaPPOTrainer.__mro__, our_async.AdaTrainingActor.__mro__
    assert sync.index(RecordedTraining) < sync.index(unwrap_ray_class(ppo_trainer.PPOTrainer))
    assert training.index(RecordedTraining) < training.index(unwrap_ray_class(ppo_trainer_async.TrainingActor))


def test_names_that_training_substitutes_are_the_hosts() -> None:
    """host/classes.py, models.py, engine.py and trainer.py replace module attributes."""
    for name in ("PPOTrainerAsync", "TrainingActor", "GenerateSamplesActor", "VLLMLock"):
        assert isinstance(getattr(ppo_trainer_async, name), ray.actor.ActorClass)
    assert train_ppo_ray.CriticModelActor is ppo_critic.CriticModelActor
    assert isinstance(ppo_trainer.PPOTrainer, ray.actor.ActorClass)
    assert ppo_critic.CriticPPOTrainer.__module__ == ppo_critic.__name__
    assert isinstance(vllm_engine.RolloutRayActor, ray.actor.ActorClass)
    assert ppo_actor.ActorPPOTrainer.__module__ == ppo_actor.__name__
    assert train_ppo_ray.PolicyModelActor is ppo_actor.PolicyModelActor
    original = ppo_trainer.PPOTrainer
    with pytest.raises(RuntimeError), substituted(ppo_trainer, PPOTrainer=our_trainer.RayAdaPPOTrainer):
        assert ppo_trainer.PPOTrainer is our_trainer.RayAdaPPOTrainer
        raise RuntimeError
    assert ppo_trainer.PPOTrainer is original, "put back after an error, too"


def test_experience_has_the_fields_that_we_read_and_copy() -> None:
    names = {f.name for f in dataclasses.fields(Experience)}
    assert names >= {
        *("sequences", "attention_mask", "action_mask", "values", "returns", "advantages", "kl", "rewards", "scores"),
        *("response_length", "truncated", "total_length", "index", "prompts", "info"),
    }, "rollout/samples_generator.py, trainer/experience_maker.py"
    assert {f.name for f in dataclasses.fields(TaggedExperience)} == names | {"tag"}
    merged = Experience.concat_experiences([TaggedExperience(index=[0]), TaggedExperience(index=[1])], 0)
    assert type(merged) is Experience, "the tag is read before OpenRLHF merges samples"
    assert merged.index == [0, 1]


def make_dataset() -> PromptDataset:
    args = SimpleNamespace(data=SimpleNamespace(input_key="q", label_key="a"))
    rows = [{"q": "1+1=", "a": "2", "datasource": "sums"}, {"q": "2+2=", "a": "4"}]
    return PromptDataset(rows, None, SimpleNamespace(args=args, is_rank_0=lambda: False))


def test_prompt_dataset_returns_source_prompt_label_image() -> None:
    dataset = make_dataset()
    assert [dataset[0], dataset[1]] == [("sums", "1+1=", "2", None), ("default", "2+2=", "4", None)]
    assert dataset.collate_fn([dataset[0], dataset[1]])[0] == ["sums", "default"]


def test_row_numbers_pass_through_the_hosts_loader() -> None:
    dataset = make_dataset()
    number_rows(dataset)
    loader = StatefulDataLoader(dataset, batch_size=1, collate_fn=dataset.collate_fn)
    requests, ended = take_prompts(iter(loader), 5, first_key=40)
    assert [(r.key, r.row, r.prompt, r.label) for r in requests] == [(40, 0, "1+1=", "2"), (41, 1, "2+2=", "4")]
    assert ended
    taken = samples_generator._collect_prompt_batch(iter(loader), 5)
    assert taken == (["1+1=", "2+2="], ["2", "4"], [None, None], True)


def test_loader_order_follows_the_seed() -> None:
    """host/generator.py reaches the sampler's own generator."""

    def order(seed: int | None) -> list[Any]:
        rows = [{"q": str(number), "a": ""} for number in range(20)]
        args = SimpleNamespace(data=SimpleNamespace(input_key="q", label_key="a"))
        dataset = PromptDataset(rows, None, SimpleNamespace(args=args, is_rank_0=lambda: False))
        loader = StatefulDataLoader(dataset, batch_size=1, shuffle=seed is not None, collate_fn=dataset.collate_fn)
        seed_order(loader, seed or 0)
        return [prompts[0] for _, prompts, _, _ in loader]

    assert order(3) == order(3) != order(4)
    assert order(None) == [str(number) for number in range(20)]


def test_executor_has_the_rewards_that_are_replaced() -> None:
    """host/engine.py puts ours in the place of both, and of nothing in an agent that has neither."""
    executor: Any = SingleTurnAgentExecutor()
    assert executor.reward_func is None and inspect.iscoroutinefunction(executor._fetch_rewards_via_http)
    source = inspect.getsource(SingleTurnAgentExecutor)
    assert "self.reward_func" in source and "await self._fetch_rewards_via_http(" in source
    replace_rewards(executor, lambda function: ("wrapped", function.__name__))
    assert executor.reward_func is None, "there is none to replace"
    assert executor._fetch_rewards_via_http == ("wrapped", "_fetch_rewards_via_http")
    agent = SimpleNamespace()
    replace_rewards(agent, lambda function: function)
    assert vars(agent) == {}


def test_executor_asks_for_rewards_without_an_engine() -> None:
    """host/rewards.py asks servers by one of its methods."""
    HostReward(["http://localhost:1"])
    source = inspect.getsource(SingleTurnAgentExecutor._fetch_rewards_via_http)
    assert '"query"' in source and "await asyncio.gather(*tasks)" in source


def test_compute_reward_is_put_on_last_action_token() -> None:
    """trainer/experience_maker.py relies on it, on the clip, and on the penalty at every token."""
    mask = torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1]])
    kl = torch.full((2, 4), 0.5)
    reward = compute_reward(torch.tensor([2.0, 99.0]), 0.1, kl, action_mask=mask, reward_clip_range=(-10, 10))
    assert reward.tolist() == [pytest.approx([-0.05, -0.05, 1.95, -0.05]), pytest.approx([-0.05, -0.05, -0.05, 9.95])]


def test_host_swallows_failed_reward_and_we_detect_it() -> None:
    """A reward that raised arrives as None (rollout/samples_generator.py refuses it)."""
    generator = object.__new__(samples_generator.SamplesGenerator)
    response = {
        "prompt": "p",
        "label": "l",
        "observation_tokens": [1, 2],
        "action_ranges": [(1, 2)],
        "rollout_log_probs": None,
        "reward": None,
        "scores": None,
    }
    experience = generator._process_response_into_experience(response, max_len=8)
    assert experience.rewards is None
    assert experience.scores is None


@st.composite
def responses(draw: st.DrawFn) -> dict[str, Any]:
    """One or two turns of an agent, or a single one; sometimes longer than training takes."""
    prompt, first, between, second = (draw(st.integers(low, 6)) for low in (1, 0, 0, 0))
    length = prompt + first + between + second
    values = st.lists(st.floats(-9.0, 0.0, width=32), min_size=length, max_size=length)
    start = prompt + first + between
    return {
        "prompt": "p",
        "label": "l",
        "images": draw(st.sampled_from([None, ["a.png"]])),
        "mm_train_inputs": None,
        "observation_tokens": draw(st.lists(st.integers(0, 2**31 - 1), min_size=length, max_size=length)),
        "action_ranges": [(prompt, prompt + first)] + ([(start, start + second)] if second else []),
        "rollout_log_probs": draw(st.none() | values),
        "truncated": draw(st.booleans()),
        "reward": draw(st.floats(-3, 3)),
        "scores": draw(st.floats(0, 1)),
        "extra_logs": draw(st.sampled_from([{}, {"turns": 2}, {"cost": torch.tensor([[1.5]]), "right": True}])),
    }


@given(responses(), st.integers(2, 20))
def test_experiences_are_what_openrlhf_makes_of_responses(response: dict[str, Any], max_length: int) -> None:
    """host/experiences.py: every field, with its type and shape."""
    generator = object.__new__(HostGenerator)
    expected = generator._process_response_into_experience(response, max_len=max_length)
    values = response["rollout_log_probs"]
    compact = response | {
        "observation_tokens": np.array(response["observation_tokens"], dtype=np.int32),
        "rollout_log_probs": None if values is None else np.array(values, dtype=np.float32),
    }
    numbers = {name: torch.tensor([response[key]]) for name, key in (("rewards", "reward"), ("scores", "scores"))}
    info = {"reward": numbers["rewards"], "score": numbers["scores"]}
    found = experience_of(compact, max_length, **numbers, info=info)
    assert vars(found).keys() == vars(expected).keys()
    for name, value in vars(expected).items():
        assert_alike(getattr(found, name), value, name)


def assert_alike(found: Any, expected: Any, name: str) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_alike(found[key], value, f"{name}[{key}]")
    elif isinstance(expected, torch.Tensor):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), name
        assert torch.equal(found, expected), name
    else:
        assert found == expected, name


def test_data_sets_and_prompts_are_read_as_the_host_does(tmp_path: Path) -> None:
    """host/rows.py loads two small files of OpenRLHF by their path: what they give is what its trainer trains on."""
    for name, count in (("a.jsonl", 3), ("b.jsonl", 2)):
        (tmp_path / name).write_text("".join(f'{{"q": "{name}{i} <image>", "a": "{i}"}}\n' for i in range(count)))
    spec = f"{tmp_path}/a.jsonl, {tmp_path}/b.jsonl"
    args = SimpleNamespace(data=SimpleNamespace(input_key="q", label_key="a", apply_chat_template=True), use_ms=False)
    strategy: Any = SimpleNamespace(args=args, print=lambda *_: None, is_rank_0=lambda: False)
    hosts = blending_datasets(spec, None, strategy, max_count=2, dataset_split="train")
    ours = load_blended(spec, max_count=2, split="train")
    assert ours[:] == hosts[:] and len(ours) == 4

    def template(messages: list[Any], tokenize: bool, add_generation_prompt: bool) -> str:
        return f"{messages}{add_generation_prompt}"

    dataset = PromptDataset(hosts, SimpleNamespace(apply_chat_template=template), strategy)
    make = prompt_maker(None, template)
    assert [make(row["q"]) for row in ours] == dataset.prompts
    assert prompt_maker("Q: {}!", None)("x") == "Q: x!"
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"q": "x", "q": "y"}\n')
    with pytest.raises(datasets.exceptions.DatasetGenerationError) as error:
        load_blended(str(broken), max_count=2, split="train")
    assert "specified twice" in str(error.value.__cause__)


def test_chat_templates_get_their_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenRLHF hands over messages alone. With our flag a trainer's prompts are those that are checked before, and
    those of eval and prepare-data."""
    tokenizer = toy._build_tokenizer()
    tokenizer.chat_template = "{{ messages[0]['content'] }}{% if enable_thinking %}<think>{% endif %}="
    data = SimpleNamespace(input_key="q", label_key="a", apply_chat_template=True, input_template=None)
    args = SimpleNamespace(data=data, ada=SimpleNamespace(chat_template_args='{"enable_thinking": true}'))
    args.actor = SimpleNamespace(model_name_or_path="m")
    strategy = SimpleNamespace(args=args, is_rank_0=lambda: False)

    def prompts() -> list[str]:
        made = ppo_trainer.PromptDataset([{"q": "1+1", "a": "2"}], tokenizer, strategy, input_template=None)
        return [made[0][1]]

    assert prompts() == ["1+1="]
    assert whole_prompts(prompts)() == whole_prompts(prompts)() == ["1+1<think>="]
    assert prompts() == ["1+1="]
    monkeypatch.setattr(training_data, "_tokenizer", lambda args: tokenizer)
    make, _ = training_data._prompt_maker(args)
    monkeypatch.setattr(host_tokenizer, "load_tokenizer", lambda *_: tokenizer)
    flags = ["--model", "m", "--benchmark", "b", "--chat_template_args", args.ada.chat_template_args]
    evaluated = Prompts("m", evaluate.build_parser().parse_args(flags))
    assert [make("1+1"), evaluated(Problem("i", "1+1", "2", "s"))] == ["1+1<think>="] * 2

    def read(strategy: Any, tokenizer: Any) -> None:
        seen.append(prompts())
        raise InterruptedError

    seen: list[list[str]] = []
    for module, trainer in ((ppo_trainer, HostSyncTrainer), (ppo_trainer_async, HostSamplingActor)):
        monkeypatch.setattr(module, "prepare_datasets", read)
        monkeypatch.setattr(module, "get_tokenizer", lambda *_, **__: tokenizer)
        args.eval = args.ckpt = SimpleNamespace(steps=1, save_steps=1)
        args.data.disable_fast_tokenizer = False
        with pytest.raises(InterruptedError):
            some = {"vllm_lock": None, "rollout_queue": None, "rollout_slots": None}
            trainer("m", strategy, *[None] * (5 if trainer is HostSyncTrainer else 1), **some)
    assert seen == [["1+1<think>="]] * 2
