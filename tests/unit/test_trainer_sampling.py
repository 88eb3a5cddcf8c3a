"""Which generator the flags ask for, and how many steps a run has: as many as the generator serves batches."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from rollouts import make_loader

from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.host_values import batch_plan
from openrlhf_ada.core.policies import Estimated, Sequential
from openrlhf_ada.rollout.prompts import PromptSource
from openrlhf_ada.rollout.recorded_generator import RecordedGenerator
from openrlhf_ada.rollout.samples_generator import AdaptiveSamplesGenerator
from openrlhf_ada.trainer.sampling import eval_arguments, make_generator, optimizer_steps, training_steps

Flags = dict[str, str | None]
ArgvWith = Callable[[Flags], list[str]]


def generator_for(argv: list[str], rows: int = 3) -> RecordedGenerator:
    args = parse(argv)
    args.ada_events = None
    host = SamplesGenerator(SimpleNamespace(args=args), make_loader(rows, args), None, None, [])
    return make_generator(host, prompt_values=None, restore_engine=lambda engine: [])


def test_mode_off_has_the_hosts_generator_which_also_counts(argv_with: ArgvWith) -> None:
    generator = generator_for(argv_with({"--ada_mode": "off"}))
    assert type(generator) is RecordedGenerator
    generator.restore(
        {"total_consumed_prompts": 4, "episode": 1, "global_step": 0}
    )  # nothing of it is ours to restore


@pytest.mark.parametrize(("mode", "policy"), [("seq", Sequential), ("est", Estimated)])
def test_adaptive_mode_has_the_policy_of_the_flags(argv_with: ArgvWith, mode: str, policy: type) -> None:
    generator = generator_for(argv_with({"--ada_mode": mode, "--ada_log_texts": "2"}))
    assert isinstance(generator, AdaptiveSamplesGenerator)
    assert isinstance(generator.policy, policy)
    generator.restore({"total_consumed_prompts": 4, "episode": 1, "global_step": 0})
    assert (generator.prompts.next_key, generator.prompts.episodes_done) == (4, 1)


@pytest.mark.parametrize(("given", "limit"), [({}, 2), ({"--ada_refill_limit": "5"}, 5)])
def test_refilling_takes_fresh_prompts_up_to_the_limit(argv_with: ArgvWith, given: Flags, limit: int) -> None:
    generator = generator_for(argv_with({"--ada_unresolved": "refill"} | given))
    assert isinstance(generator, AdaptiveSamplesGenerator)
    assert generator.settings.refill_limit == limit


# -- how long a run is --------------------------------------------------------------------------------------------


def batches_served(args: Any, rows: int) -> list[int]:
    source = PromptSource(
        make_loader(rows, args), batch_plan(args, args.ada), args.train.seed, args.train.num_episodes
    )
    sizes: list[int] = []
    for _ in range(args.train.num_episodes):
        exhausted = False
        while not exhausted:
            requests, exhausted = source.next_batch()
            sizes += [len(requests)] * bool(requests)
    return sizes


@pytest.mark.parametrize("train_batch", ["4", "8"])
def test_training_and_optimizer_steps_match_batches(argv_with: ArgvWith, train_batch: str) -> None:
    for episodes in ("1", "2", "3"):
        changes = {"--train.num_episodes": episodes, "--train.batch_size": train_batch, "--train.max_epochs": "2"}
        args = parse(argv_with(changes))
        for rows in range(1, 8):
            served = batches_served(args, rows)
            assert training_steps(args, rows) == len(served)
            assert optimizer_steps(args, rows, host_steps=-1) == sum(served) * 4 // int(train_batch) * 2


def test_mode_off_has_the_hosts_numbers(argv_with: ArgvWith) -> None:
    """OpenRLHF trains an episode's incomplete batch as a step of its own."""
    args = parse(argv_with({"--ada_mode": "off", "--train.num_episodes": "3"}))
    assert training_steps(args, 5) == 3 * 3
    assert optimizer_steps(args, 5, host_steps=17) == 17


def test_evaluation_has_its_own_temperature_and_count(argv_with: ArgvWith) -> None:
    args = parse(argv_with({"--eval.temperature": "0.3", "--eval.n_samples_per_prompt": "5"}))
    given = {"temperature": 1.0, "top_p": 0.9}
    assert eval_arguments(args, given) == {"temperature": 0.3, "top_p": 0.9, "n_samples_per_prompt": 5}
    assert given == {"temperature": 1.0, "top_p": 0.9}, "training keeps its own"
