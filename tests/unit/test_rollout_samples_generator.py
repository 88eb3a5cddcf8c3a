"""The generator between engines and trainer: one batch end to end, with the engines replaced by a table of outcomes.

Dispatch to real engines is covered end to end (tests/e2e); here is everything that happens before and after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from openrlhf.datasets import PromptDataset
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from torchdata.stateful_dataloader import StatefulDataLoader

from openrlhf_ada.core.batches import BatchPlan
from openrlhf_ada.core.policies import Draw, Sequential
from openrlhf_ada.core.stopping import ExitRule
from openrlhf_ada.core.types import PromptKey
from openrlhf_ada.rollout.prompts import PromptRequest
from openrlhf_ada.rollout.samples_generator import AdaptiveSamplesGenerator, EvalRecorder, _describe

GENERATE = {"max_len": 16, "max_new_tokens": 4}
BATCH, N = 2, 2


def make_args(**train: Any) -> SimpleNamespace:
    return SimpleNamespace(
        actor=SimpleNamespace(model_name_or_path="model"),
        rollout=SimpleNamespace(batch_size=BATCH, n_samples_per_prompt=N, max_new_tokens=4),
        train=SimpleNamespace(**({"num_episodes": 1, "seed": 42} | train)),
        vllm=SimpleNamespace(enable_sleep=False),
        reward=SimpleNamespace(overlong_buffer_len=None, stop_properly_penalty_coef=None),
        data=SimpleNamespace(max_len=16, input_key="input", label_key="label", disable_fast_tokenizer=False),
    )


def make_loader(rows: int, args: SimpleNamespace, *, shuffle: bool = False) -> StatefulDataLoader:
    """The host's data set and loader, as PPOTrainer builds them (without a process group)."""
    strategy = SimpleNamespace(args=args, is_rank_0=lambda: False)
    data = [{"input": f"{i}+1=", "label": str(i + 1), "datasource": "sums"} for i in range(rows)]
    dataset = PromptDataset(data, None, strategy)
    return StatefulDataLoader(dataset, batch_size=1, shuffle=shuffle, collate_fn=dataset.collate_fn)


def response(prompt: str, reward: float | None, score: float | None = None, tokens: int = 2) -> dict[str, Any]:
    """What an engine returns for one sample: two prompt tokens, then the answer."""
    return {
        "prompt": prompt,
        "label": "",
        "observation_tokens": [5, 6, *[7] * tokens],
        "action_ranges": [(2, 2 + tokens)],
        "rollout_log_probs": None,
        "truncated": tokens >= 4,
        "reward": reward,
        "scores": reward if score is None else score,
    }


class Generator(AdaptiveSamplesGenerator):
    """The k-th sample of row r is right where `outcomes[r][k]` is 1. Also remembers what it was asked for."""

    def __init__(self, args: SimpleNamespace, loader: Any, outcomes: Mapping[int, Sequence[float]], cap: int = 4):
        host = SamplesGenerator(SimpleNamespace(args=args), loader, None, None, [])
        policy = Sequential(ExitRule(1, 1, 0.5), wave=2, max_samples=cap, group_size=N, estimator="dr_grpo")
        self.progress: list[tuple[int, int]] = []
        super().__init__(
            host,
            policy,
            BatchPlan(BATCH, N, BATCH * N, 2, 1),
            lambda closed, total: self.progress.append((closed, total)),
        )
        self.outcomes = outcomes
        self.asked: list[tuple[int, int]] = []
        self.drawn: dict[PromptKey, int] = {}

    def _sample_wave(
        self, draws: Sequence[Draw], requests: Mapping[PromptKey, PromptRequest], generate_kwargs: dict[str, Any]
    ) -> dict[PromptKey, list[Experience]]:
        wave = {}
        for draw in draws:
            request = requests[draw.key]
            self.asked.append((request.row, draw.count))
            start = self.drawn.get(draw.key, 0)
            self.drawn[draw.key] = start + draw.count
            answers = self.outcomes[request.row][start : start + draw.count]
            wave[draw.key] = [
                self._to_experience(request, response(request.prompt, r, tokens=start + i + 1), generate_kwargs)
                for i, r in enumerate(answers)
            ]
        return wave


def test_one_batch_by_hand() -> None:
    """Row 0 is mixed in the first wave; row 1 in the second, with 1 of 4 right."""
    args = make_args()
    generator = Generator(args, make_loader(2, args), {0: [1, 0], 1: [0, 0, 0, 1]})
    samples, rate, consumed, exhausted = generator.generate_samples(**GENERATE)
    assert (rate, consumed, exhausted) == (None, 2, False), "the loader has not been asked for more yet"
    assert generator.asked == [(0, 2), (1, 2), (1, 2)]
    assert generator.progress == [(0, 2), (1, 2), (2, 2)]

    tags = [s.tag for s in samples]
    assert [t.key for t in tags] == [0, 0, 1, 1]
    assert [t.coefficient for t in tags[:2]] == [0.5, -0.5]
    assert sorted(t.coefficient for t in tags[2:]) == [-0.25, 0.75], "against the pool's mean, 1/4"
    assert sorted(t.critic_weight for t in tags[2:]) == [0.5, 1.5], "(1/4)/(1/2) and (3/4)/(1/2)"

    record = generator.last_step
    assert (record.ledger.drawn, record.ledger.kept, record.ledger.unused) == (6, 4, 2)
    assert record.ledger.drawn_tokens == (1 + 2) + (1 + 2 + 3 + 4)
    assert record.num_rounds == 2
    assert [g.request.row for g in record.groups] == [0, 1]
    assert generator.generate_samples(**GENERATE) == ([], None, 0, True)


def test_trained_samples_are_the_ones_their_tags_name() -> None:
    args = make_args()
    generator = Generator(args, make_loader(2, args), {0: [0, 0, 0, 1], 1: [1, 1, 1, 0]})
    samples, *_ = generator.generate_samples(**GENERATE)
    for sample in samples:
        outcome = generator.outcomes[sample.tag.key][sample.tag.index]
        assert sample.rewards.tolist() == [outcome]
        assert int(sample.action_mask.sum()) == sample.tag.index + 1, "the sample with this many tokens was this index"
        assert sample.prompts == [f"{sample.tag.key}+1="]


def trained(outcomes: Mapping[int, Sequence[float]], rows: Sequence[int], seed: int = 42) -> dict[int, set]:
    """(index, coefficient) pairs that are trained of each row when a batch consists of `rows`."""
    args = make_args(seed=seed)
    generator = Generator(args, make_loader(2, args), outcomes, cap=8)
    requests = [PromptRequest(key=row, row=row, prompt=f"{row}", label="", image=None) for row in rows]
    record = generator._sample_pools(requests, GENERATE)
    return {g.request.row: set(zip(g.group.indices, g.group.coefficients, strict=True)) for g in record.groups}


def test_a_group_does_not_depend_on_the_other_prompts_of_the_batch() -> None:
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
    args = make_args()
    generator = Generator(args, make_loader(2, args), {0: [0.1] * 4, 1: [1] * 4})
    samples, *_ = generator.generate_samples(**GENERATE)
    assert [s.tag.coefficient for s in samples] == [0.0] * 4
    assert [g.group.resolved for g in generator.last_step.groups] == [False, False]
    assert generator.last_step.ledger.drawn == 8, "both were sampled up to the cap"


def test_metric_is_the_score_and_reward_is_what_is_trained() -> None:
    args = make_args()
    generator = Generator(args, make_loader(2, args), {})
    request = PromptRequest(0, 0, "p", "", None)
    experience = generator._to_experience(request, response("p", reward=-0.5, score=1.0), GENERATE)
    sample = _describe(0, 0, experience)
    assert (sample.metric, sample.reward, sample.num_tokens) == (1.0, -0.5, 2)


@pytest.mark.parametrize("reward", [1.0, 1, True])
def test_rewards_have_at_least_single_precision(reward: Any) -> None:
    args = make_args()
    generator = Generator(args, make_loader(2, args), {})
    experience = generator._to_experience(PromptRequest(0, 0, "p", "", None), response("p", reward), GENERATE)
    assert experience.rewards.dtype == torch.float32


def test_missing_reward_is_an_error_not_a_zero() -> None:
    """The host goes on without a reward when the function raised; a zero would be a false verdict (R2)."""
    args = make_args()
    generator = Generator(args, make_loader(2, args), {})
    request = PromptRequest(key=3, row=17, prompt="1+1=", label="2", image=None)
    with pytest.raises(RuntimeError, match=r"no reward for row 17 \(prompt '1\+1='\): the reward function raised"):
        generator._to_experience(request, response("1+1=", reward=None), GENERATE)


def test_score_outside_0_to_1_is_an_error_that_says_what_to_return() -> None:
    args = make_args()
    generator = Generator(args, make_loader(2, args), {0: [-1, 1], 1: [1, 0]})
    with pytest.raises(ValueError, match=r"metric -1\.0, expected a value in \[0, 1\]"):
        generator.generate_samples(**GENERATE)


# -- stopping and going on ----------------------------------------------------------------------------------------


def serve(generator: AdaptiveSamplesGenerator, episodes: int, steps: list[dict[str, Any]]) -> None:
    """The host's loop from the generator's episode on, with the state that a checkpoint after each step would hold."""
    for episode in range(generator.episodes_done, episodes):
        while True:
            requests, exhausted = generator._next_prompts()
            if requests:
                consumed = (steps[-1]["consumed"] if steps else 0) + len(requests)
                loader = generator.prompts_dataloader.state_dict()
                rows = [(r.key, r.row) for r in requests]
                steps.append({"rows": rows, "episode": episode, "consumed": consumed, "loader": loader})
            if exhausted:
                break


@pytest.mark.parametrize(("rows", "episodes"), [(4, 2), (5, 2), (5, 3), (1, 4), (2, 3), (7, 1)])
def test_resumed_run_goes_on_where_it_stopped(rows: int, episodes: int) -> None:
    """Stop after any step and go on as PPOTrainer.fit does: the episode continues, keys too, every row has its turn.

    The order of later episodes is the host's (torch's global generator, which no checkpoint holds) and may differ.
    """
    args = make_args(num_episodes=episodes)
    whole: list[dict[str, Any]] = []
    serve(Generator(args, make_loader(rows, args, shuffle=True), {}), episodes, whole)
    for cut, state in enumerate(whole, start=1):
        resumed = Generator(args, make_loader(rows, args, shuffle=True), {})
        resumed.prompts_dataloader.load_state_dict(state["loader"])
        states = {"total_consumed_prompts": state["consumed"], "episode": state["episode"]}
        resumed.restore(states | resumed.checkpoint_states())
        steps = whole[:cut]
        serve(resumed, episodes, steps)
        served = [pair for step in steps for pair in step["rows"]]
        assert [len(s["rows"]) for s in steps] == [len(s["rows"]) for s in whole], f"stopped after step {cut}"
        assert [key for key, _ in served] == list(range(len(served)))
        same_episode = [s["rows"] for s in whole[cut:] if s["episode"] == state["episode"]]
        assert [s["rows"] for s in steps[cut : cut + len(same_episode)]] == same_episode
        visits = Counter(row for _, row in served)
        assert all(visits[row] <= episodes for row in range(rows))
        assert sum(visits.values()) == rows * episodes // BATCH * BATCH, "what a batch of 2 cannot hold is left out"


def test_what_the_hosts_filter_rejects_is_counted_as_drawn() -> None:
    """Mode off with dynamic filtering: the host samples three groups of two for a batch of two."""

    class Filtering(SamplesGenerator):
        def generate_samples(self, **kwargs: Any) -> Any:
            answers = [response("p", r, tokens=3) for r in (1, 0, 0, 0, 1, 0)]
            drawn = [self._process_response_into_experience(answer, **kwargs) for answer in answers]
            return drawn[:2] + drawn[4:], None, 3, False

    class Counted(EvalRecorder, Filtering):
        pass

    args = make_args()
    generator = Counted(SamplesGenerator(SimpleNamespace(args=args), make_loader(2, args), None, None, []))
    for _ in range(2):
        samples, *_ = generator.generate_samples(**GENERATE)
        assert (len(samples), generator.num_drawn, generator.num_drawn_tokens) == (4, 6, 18), "of the last batch alone"
