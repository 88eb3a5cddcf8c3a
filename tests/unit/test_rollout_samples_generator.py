"""The generator between engines (here a table of outcomes) and trainer: all but the dispatch (see tests/e2e)."""

from __future__ import annotations

import itertools
import json
import math
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cases import THRESHOLD, sequential
from openrlhf.trainer.ppo_utils.experience import Experience
from ray.exceptions import ActorDiedError
from rollouts import (
    BATCH,
    GENERATE,
    INITIAL_STATES,
    N,
    Step,
    TableGenerator,
    make_args,
    make_loader,
    response,
    result_of,
    table,
    train,
)

from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import make_policy, resolve
from openrlhf_ada.core.batches import BatchPlan
from openrlhf_ada.core.grouping import GroupBuilder
from openrlhf_ada.core.policies import Sequential
from openrlhf_ada.core.scheduling import Progress, Request
from openrlhf_ada.core.selection import Selection
from openrlhf_ada.core.stopping import ExitRule
from openrlhf_ada.core.types import Sample
from openrlhf_ada.demo import toy
from openrlhf_ada.rollout.messages import Result
from openrlhf_ada.rollout.prompts import PromptRequest
from openrlhf_ada.rollout.recorded_generator import RecordedGenerator
from openrlhf_ada.rollout.records import Batch
from openrlhf_ada.rollout.responses import NoScoreError, ResponseReader

PLAN = BatchPlan(BATCH, N, BATCH * N, 2, 1)


def make_generator(
    outcomes: Mapping[int, Sequence[float]], *, rows: int = 2, cap: int = 4, model: str = "model", **options: Any
) -> TableGenerator:
    args = make_args(model=model, seed=options.pop("seed", 42))
    policy = sequential(1, 1, n=N, wave=2, cap=cap)
    return TableGenerator(args, make_loader(rows, args), policy, table(outcomes), PLAN, **options)


def test_one_batch_by_hand() -> None:
    """Row 0 is mixed in the first wave; row 1 in the second, with 1 of 4 right."""
    progress: list[Progress] = []
    generator = make_generator({0: [1, 0], 1: [0, 0, 0, 1]}, on_progress=lambda look: progress.append(look()))
    samples, rate, consumed, exhausted = generator.generate_samples(**GENERATE)
    assert (rate, consumed, exhausted) == (None, 2, False), "the loader has not been asked for more yet"
    assert generator.asked == [(0, 2), (1, 2), (1, 2)]
    states = [(state.open, state.unresolved, state.done) for state in progress]
    assert [state for state, _ in itertools.groupby(states)] == [(0, 1, 1), (0, 0, 2)], "row 1 is unresolved at first"
    assert (progress[-1].rollouts, progress[-1].right, progress[-1].signal) == (6, 0.25, 1.0)

    tags = [s.tag for s in samples]
    assert [t.key for t in tags] == [0, 0, 1, 1]
    assert [t.coefficient for t in tags[:2]] == [0.5, -0.5]
    assert sorted(t.coefficient for t in tags[2:]) == [-0.25, 0.75], "against the pool's mean, 1/4"
    assert sorted(t.critic_weight for t in tags[2:]) == [0.5, 1.5], "(1/4)/(1/2) and (3/4)/(1/2)"

    ledger, record = samples.ledger, samples.record
    assert (ledger.drawn, ledger.kept, ledger.unused) == (6, 4, 2)
    assert ledger.drawn_tokens == (1 + 2) + (1 + 2 + 3 + 4)
    assert record.ledger is ledger
    assert ([group.row for group in record.groups], record.replaced) == ([0, 1], [])
    assert generator.generate_samples(**GENERATE) == ([], None, 0, True)


def test_what_is_not_trained_is_not_made_experience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The responses of 6 rollouts come packed, and the 4 that are kept are unpacked."""
    made: list[Result] = []
    experience = ResponseReader.experience
    monkeypatch.setattr(
        ResponseReader, "experience", lambda self, result: made.append(result) or experience(self, result)
    )
    samples, *_ = make_generator({0: [1, 0], 1: [0, 0, 0, 1]}).generate_samples(**GENERATE)
    assert samples.ledger.drawn == 6 and len(made) == len(samples) == 4


@pytest.mark.parametrize(("train_batch", "kept"), [(2, 6), (4, 4), (5, 5)])
def test_all_are_trained_but_what_fills_no_batch(train_batch: int, kept: int) -> None:
    """Row 0 is right in its first wave, row 1 in its second: 2 and 4 rollouts."""
    plan = BatchPlan(BATCH, N, train_batch, 1, 1, varies=True)
    whole = GroupBuilder(Selection("all", N, THRESHOLD), "dr_grpo", baseline="none")
    policy = Sequential(ExitRule(1, 0, THRESHOLD), 2, 4, whole)
    rows = table({0: [1, 0], 1: [0, 0, 0, 1]})
    samples = TableGenerator(make_args(), make_loader(2, make_args()), policy, rows, plan).generate_samples(**GENERATE)
    batch = samples[0]
    assert len(batch) == kept
    assert all(sample.tag.coefficient == sample.rewards.item() for sample in batch)
    assert (batch.ledger.drawn, batch.ledger.kept, batch.ledger.unused) == (6, kept, 6 - kept)


def test_record_has_every_sample_and_a_few_texts(tmp_path: Path) -> None:
    toy._build_tokenizer().save_pretrained(tmp_path)
    generator = make_generator({0: [1, 0], 1: [0, 0, 0, 1]}, model=str(tmp_path), log_texts=1)
    record = generator.generate_samples(**GENERATE)[0].record
    first, second = record.groups
    assert [(group.row, group.prompt) for group in record.groups] == [(0, "0+1="), (1, "1+1=")]
    assert [[s.num_tokens for s in group.pool.samples] for group in record.groups] == [[1, 2], [1, 2, 3, 4]]
    assert [list(group.truncated) for group in record.groups] == [[False] * 2, [False, False, False, True]]
    answer = toy._build_tokenizer().decode([7])
    assert answer
    assert (list(first.texts), list(second.texts)) == ([answer, answer * 2], []), "without the prompt"


def test_batch_crosses_to_another_process_whole() -> None:
    """In asynchronous training it goes through OpenRLHF's queue: samples, ledger, record and checkpoint as one."""
    batch = make_generator({0: [1, 0], 1: [0, 0, 0, 1]}).generate_samples(**GENERATE)[0]
    arrived = pickle.loads(pickle.dumps(batch))
    assert [sample.tag for sample in arrived] == [sample.tag for sample in batch]
    assert (arrived.ledger, arrived.checkpoint) == (batch.ledger, batch.checkpoint)
    assert [group.pool.samples for group in arrived.record.groups] == [g.pool.samples for g in batch.record.groups]
    assert [group.group for group in arrived.record.groups] == [g.group for g in batch.record.groups]


def test_trained_samples_are_the_ones_their_tags_name() -> None:
    generator = make_generator(outcomes := {0: [0, 0, 0, 1], 1: [1, 1, 1, 0]})
    samples, *_ = generator.generate_samples(**GENERATE)
    for sample in samples:
        assert sample.rewards.tolist() == [outcomes[sample.tag.key][sample.tag.index]]
        assert int(sample.action_mask.sum()) == sample.tag.index + 1, "the sample with this many tokens was this index"
        assert sample.prompts == [f"{sample.tag.key}+1="]


def trained(outcomes: Mapping[int, Sequence[float]], rows: Sequence[int], seed: int = 42) -> dict[int, set]:
    """(index, coefficient) pairs that are trained of each row when a batch consists of `rows`."""
    generator = make_generator(outcomes, cap=8, seed=seed)
    requests = [PromptRequest(key=row, row=row, prompt=f"{row}", label="", image=None) for row in rows]
    batch = Batch()
    generator._sample(batch, requests, None, GENERATE)
    return {f.pool.row: set(zip(g.indices, g.coefficients, strict=True)) for f, g in batch.groups()}


def test_group_is_independent_of_other_prompts() -> None:
    """The draw is seeded by the prompt's key, not by a stream that prompts share (R1, R22)."""
    rng = np.random.default_rng(0)
    outcomes = {row: rng.integers(0, 2, 8).tolist() for row in range(6)}
    together = trained(outcomes, range(6))
    assert trained(outcomes, range(5, -1, -1)) == together
    for row in range(6):
        assert trained(outcomes, [row]) == {row: together[row]}
        assert trained(outcomes, [row, (row + 1) % 6])[row] == together[row]


def test_seed_of_the_run_moves_the_choice() -> None:
    outcomes = {0: [0, 0, 0, 0, 0, 0, 1, 1]}
    assert len({frozenset(trained(outcomes, [0], seed=s)[0]) for s in range(20)}) > 5


def test_constant_group_is_trained_with_exactly_zero() -> None:
    samples, *_ = make_generator({0: [0.1] * 4, 1: [1] * 4}).generate_samples(**GENERATE)
    assert [s.tag.coefficient for s in samples] == [0.0] * 4
    assert [group.group.resolved for group in samples.record.groups] == [False, False]
    assert samples.ledger.drawn == 8, "both were sampled up to the cap"


def read(reward: Any, score: float | None = None, **options: Any) -> tuple[Sample, Experience]:
    reader = make_generator({}, **options)._reader(GENERATE)
    result = result_of(response("p", reward, score=score))
    sample = reader.sample(Request(0, 3), result, (5, 6))
    return sample, reader.experience(result)


def test_score_decides_and_reward_is_trained() -> None:
    sample, _ = read(-0.5, score=1.0)
    assert sample == Sample(0, 3, score=1.0, reward=-0.5, num_tokens=2, version=5, last_version=6)


@pytest.mark.parametrize(("reward", "score"), [(-1.0, 0.0), (0.5, 1.0), (0.0, 0.7)])
def test_rewards_that_are_no_pass_rates_are_refused(reward: float, score: float) -> None:
    assert read(1.0, score=0.7, reads_critic=True)[0].reward == 1.0
    with pytest.raises(ValueError, match=r"has reward .* and score .*Use --ada_estimator ema for other rewards"):
        read(reward, score, reads_critic=True)


def test_a_missing_reward_is_no_score() -> None:
    """What becomes of the rollout is in test_rollout_no_score.py."""
    with pytest.raises(NoScoreError, match="returned no reward"):
        read(None)


@pytest.mark.parametrize("reward", [1.0, 1, True])
def test_rewards_have_at_least_single_precision(reward: Any) -> None:
    assert read(reward)[1].rewards.dtype == torch.float32


@pytest.mark.parametrize(
    ("outcome", "told"),
    [(-1, r"score -1\.0.*reward_func"), (math.inf, "score inf"), (math.nan, "score nan")],
)
def test_scores_outside_0_to_1_are_an_error(outcome: float, told: str) -> None:
    generator = make_generator({0: [1, 1], 1: [1, outcome]})
    with pytest.raises(ValueError, match=told):
        generator.generate_samples(**GENERATE)


@pytest.mark.parametrize("reward", [math.inf, -math.inf, math.nan])
def test_rewards_that_are_not_finite_are_not_clipped(reward: float) -> None:
    with pytest.raises(ValueError, match=f"reward {reward}:"):
        read(reward, score=1.0)


# -- a critic's value of every prompt -----------------------------------------------------------------------------


def estimating_generator(rows: int, **options: Any) -> TableGenerator:
    """Mode est with a critic; prompt `r+1=` has the value r / 10 and outcomes to match."""
    args = make_args()
    policy = make_policy(
        resolve(
            AdaConfig(mode="est", estimator="critic", budget=3.0),
            n=args.rollout.n_samples_per_prompt,
            advantage="dr_grpo",
            batch=args.rollout.batch_size,
        )
    )
    outcome = lambda request, index: float(index < request.row)  # noqa: E731
    return TableGenerator(args, make_loader(rows, args), policy, outcome, PLAN, **options)


def test_critic_is_asked_before_sampling() -> None:
    asked: list[list[str]] = []

    def values(prompts: Sequence[str]) -> list[float]:
        asked.append(list(prompts))
        return [int(prompt[0]) / 10 for prompt in prompts]

    generator = estimating_generator(2, prompt_values=values)
    record = generator.generate_samples(**GENERATE)[0].record
    assert asked == [["0+1=", "1+1="]]
    assert [group.pool.critic_value for group in record.groups] == [0.0, 0.1]
    assert record.figures["ada/critic_brier"] >= 0.0


def test_policy_with_critic_needs_its_values() -> None:
    with pytest.raises(RuntimeError, match="critic"):
        estimating_generator(2).generate_samples(**GENERATE)


# -- stopping and going on ----------------------------------------------------------------------------------------

MEMORIES = {
    "nothing": {"mode": "seq"},
    "sequential": {"mode": "seq", "baseline": "estimator"},
    "estimated": {"mode": "est", "budget": 3.0, "max_samples": 4, "give_up": 4},
    "two rounds": {
        "mode": "est",
        "budget": 3.0,
        "max_samples": 4,
        "allocation": "hit",
        "pilot": 2,
        "correction": "none",
    },
    "gate": {"mode": "seq", "exit": "gate", "pilot": 2, "baseline": "estimator"},
    "least noise": {
        "mode": "seq",
        "exit": "fixed",
        "max_samples": 2,
        "baseline": "estimator",
        "baseline_factor": "least_noise",
    },
    "estimated by a critic": {"mode": "est", "budget": 3.0, "max_samples": 4, "estimator": "critic", "trust_steps": 2},
}


def resumable(memory: str, rows: int, episodes: int) -> TableGenerator:
    """A generator as after a start of the program; its engines answer by visit and index, whoever asks."""
    args = make_args(num_episodes=episodes)
    flags: dict[str, Any] = {"half_life": 3.0, "wave": 2} | ({"max_samples": 4} | MEMORIES[memory])

    def outcome(request: PromptRequest, index: int) -> float:
        return float(np.random.default_rng([request.key, index]).random() < (request.row + 1) / (rows + 1))

    n, batch = args.rollout.n_samples_per_prompt, args.rollout.batch_size
    settings = resolve(AdaConfig(**flags), n=n, advantage="dr_grpo", batch=batch)
    return TableGenerator(
        args,
        make_loader(rows, args, shuffle=True),
        make_policy(settings),
        outcome,
        PLAN,
        measures_factor=settings.measures_factor,
        prompt_values=lambda prompts: [len(prompt) % 3 / 3 + 0.1 for prompt in prompts],
    )


def content(step: Step) -> tuple[Any, ...]:
    """Everything of a step that training and its record see."""
    record = step.batch.record
    return (
        [sample.tag for sample in step.batch],
        [(group.row, group.pool.predicted, group.pool.samples) for group in record.groups],
        (record.ledger, record.figures),
        step.states["ada_policy"],
    )


@pytest.mark.slow
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize(("rows", "episodes"), [(4, 2), (5, 2), (5, 3), (1, 4), (2, 3), (7, 1)])
def test_resume_from_any_step_equals_uninterrupted_run(memory: str, rows: int, episodes: int) -> None:
    """To the bit: prompts, keys, predictions, counts, selections and coefficients. A checkpoint is written as text."""
    whole = list(train(resumable(memory, rows, episodes), INITIAL_STATES))
    served = [visit for step in whole for visit in step.visits]
    assert [key for key, _ in served] == list(range(rows * episodes // BATCH * BATCH)), "what fills a batch of 2"
    assert max(Counter(row for _, row in served).values()) <= episodes
    for cut, step in enumerate(whole, start=1):
        states = step.states | {"ada_policy": json.loads(json.dumps(step.states["ada_policy"]))}
        rest = list(train(resumable(memory, rows, episodes), states))
        assert [content(s) for s in rest] == [content(s) for s in whole[cut:]], f"stopped after step {cut}"


def test_the_factor_of_a_step_is_what_the_steps_before_it_showed() -> None:
    """By hand, from the record: of all rollouts, which are all trained here."""
    generator = resumable("least noise", 4, 3)
    assert generator._asks_logprobs, "in every step, though --ada_logprob_steps is 0"
    product = square = 0.0
    factors: list[float] = []
    for step in train(generator, INITIAL_STATES):
        record = step.batch.record
        factors.append(record.figures["ada/baseline_factor"])
        assert factors[-1] == pytest.approx(min(product / square, 1.5) if square else 1.0)
        product, square = 0.8 * product, 0.8 * square
        for group in record.groups:
            q = group.pool.predicted
            for sample, c in zip(group.pool.samples, group.group.coefficients, strict=True):
                assert c == pytest.approx(sample.reward - factors[-1] * q)
                product += sample.score_norm * sample.reward * q
                square += sample.score_norm * q * q
    assert len(set(factors)) == 6


def test_state_of_another_policy_is_refused() -> None:
    step = next(train(resumable("estimated", 4, 1), INITIAL_STATES))
    with pytest.raises(ValueError, match=r"estimated.* --ada_"):
        resumable("sequential", 4, 1).restore(step.states)
    step = next(train(resumable("sequential", 4, 1), INITIAL_STATES))
    with pytest.raises(ValueError, match=r"memory.* --ada_"):
        resumable("estimated", 4, 1).restore(step.states)


# -- evaluation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deaths", [0, 1, 2])
def test_evaluation_starts_again_once_if_an_engine_dies(monkeypatch: pytest.MonkeyPatch, deaths: int) -> None:
    """OpenRLHF asks every engine for its share and cannot repeat a part of it. Engines are up before each try.

    What it takes means of are scores, not shaped rewards.
    """
    generator, calls = make_generator({}), []
    answer = SimpleNamespace(rewards="shaped", scores="score")

    def host(_self: Any, **kwargs: Any) -> list[Any]:
        calls.append(kwargs)
        if calls.count(kwargs) <= deaths:
            raise ActorDiedError
        return [answer]

    monkeypatch.setattr(RecordedGenerator, "generate_eval_samples", host)
    monkeypatch.setattr(generator._connections, "wait_until_ready", lambda: calls.append("wait_until_ready"))
    if deaths < 2:
        assert generator.generate_eval_samples(n_samples_per_prompt=4) == [answer]
        assert answer.rewards == "score"
    else:
        with pytest.raises(ActorDiedError):
            generator.generate_eval_samples(n_samples_per_prompt=4)
    assert calls == ["wait_until_ready", {"n_samples_per_prompt": 4}] * min(deaths + 1, 2)
