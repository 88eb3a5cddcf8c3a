"""From an engine's response to numbers and a packed rest, and what the driver makes of both."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from openrlhf.trainer.ppo_utils import length_penalty

from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.core.score_threshold import ScoreThreshold
from openrlhf_ada.host.generator import HostGenerator
from openrlhf_ada.reward.grade import TimedGrade
from openrlhf_ada.rollout import messages
from openrlhf_ada.rollout.messages import Result
from openrlhf_ada.rollout.responses import ResponseReader

REQUEST = Request(7, 3, 1)


def response(**changes: Any) -> dict[str, Any]:
    """Two tokens of the prompt, three sampled, one of the environment, two sampled."""
    return {
        "prompt": "p",
        "label": "l",
        "images": None,
        "observation_tokens": [5, 6, 7, 8, 9, 4, 3, 2],
        "action_ranges": [(2, 5), (6, 8)],
        "rollout_log_probs": [0.0, 0.0, -0.5, 0.0, -20.0, 0.0, -0.1, -1.0],
        "truncated": True,
        "reward": 0.25,
        "scores": torch.tensor([1.0]),
    } | changes


def result_of(max_length: int = 99, grade: TimedGrade | None = None, **changes: Any) -> Result:
    """After a way through another process."""
    result = messages.result_of(response(**changes), max_length=max_length, logprobs=True, grade=grade)
    return pickle.loads(pickle.dumps(result))


def test_numbers_come_without_unpacking(monkeypatch: pytest.MonkeyPatch) -> None:
    grade = TimedGrade(1.0, "a cause", 0.5)
    found = result_of(grade=grade)
    monkeypatch.setattr(messages.pickle, "loads", lambda data: pytest.fail("unpacked"))
    assert (found.reward, found.score, found.grade) == (0.25, 1.0, grade)
    assert (found.num_tokens, found.truncated, found.no_score) == (5, True, "")


def test_unpacked_response_is_the_executors() -> None:
    found = result_of(extra_logs={"turns": 2}).response()
    assert found["observation_tokens"].tolist() == [5, 6, 7, 8, 9, 4, 3, 2]
    assert found["rollout_log_probs"].tolist() == np.float32([0, 0, -0.5, 0, -20, 0, -0.1, -1]).tolist()
    rest = {name: value for name, value in found.items() if name not in ("observation_tokens", "rollout_log_probs")}
    assert rest == {
        "prompt": "p", "label": "l", "images": None, "action_ranges": [(2, 5), (6, 8)], "truncated": True,
        "reward": 0.25, "scores": [1.0], "extra_logs": {"turns": 2},
    }  # fmt: skip
    assert result_of(rollout_log_probs=[0.0] * 8).response()["prompt"] == "p", "each has its own"


def test_values_of_an_agents_own_class_cross() -> None:
    """An agent's file is no module that another process could import."""
    module: dict[str, Any] = {"__name__": "agent_module"}
    exec("class Note:\n    text = 'mine'", module)
    assert result_of(extra_logs={"note": module["Note"]()}).response()["extra_logs"]["note"].text == "mine"


@pytest.mark.parametrize(("max_length", "expected"), [(99, 5), (8, 5), (7, 4), (6, 3), (3, 1), (2, 0)])
def test_lengths_end_where_training_cuts(max_length: int, expected: int) -> None:
    assert result_of(max_length=max_length).num_tokens == expected


def test_norms_are_of_the_tokens_that_are_trained() -> None:
    parts = (1 - np.exp([-0.5, 0.0, -20.0, -0.1, -1.0])) ** 2
    assert result_of().score_norm == pytest.approx(parts.sum())
    assert result_of(max_length=5).score_norm == pytest.approx(parts[:3].sum())
    assert result_of(rollout_log_probs=None).score_norm is None
    assert result_of(rollout_log_probs=[1.0] * 8).score_norm is None, "it has no score"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rollout_log_probs": None}, "without the log-probabilities"),
        ({"rollout_log_probs": [0.0, 0.0, 0.5] + [0.0] * 5}, "log-probability 0.5"),
        ({"reward": [1.0, 2.0]}, "2 rewards or scores"),
        ({"scores": torch.zeros(3)}, "3 rewards or scores"),
    ],
)
def test_unusable_response_says_why(changes: dict[str, Any], told: str) -> None:
    found = result_of(**changes)
    assert (found.reward, found.score) == (None, None)
    assert told in found.no_score
    assert found.response()["prompt"] == "p", "an evaluation shows its text all the same"


def test_no_reward_is_told_as_none() -> None:
    found = result_of(reward=None, scores=None)
    assert (found.reward, found.score, found.no_score) == (None, None, "")


# -- rewards are what OpenRLHF makes of them --------------------------------------------------------------------------

TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
values = st.floats(-20, 20) | st.integers(-3, 3) | st.booleans()
rewards = (
    values
    | values.map(lambda v: [v])
    | st.builds(lambda v, t: torch.tensor([v], dtype=t), values, st.sampled_from(TYPES))
)


def by_the_host(given: dict[str, Any], args: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(trained reward, reward in the log, score) by our generator of mode off, its penalties, and a clip."""
    host = object.__new__(HostGenerator)
    experience = host._process_response_into_experience(given, max_len=7)
    experience.rewards = experience.rewards.flatten().to(torch.float32)
    length_penalty.apply_length_penalties([experience], args)
    return experience.rewards.clamp(*args.reward.clip_range), experience.info["reward"], experience.scores.flatten()


@pytest.mark.slow
@given(
    rewards, rewards, st.none() | st.integers(1, 8), st.sampled_from([None, 0.3, 0.0, -0.7]), st.booleans(),
    st.sampled_from([(-10, 10), (-0.3, 0.1)]),
)  # fmt: skip
def test_rewards_are_the_hosts_to_the_bit(
    reward: Any, score: Any, buffer: int | None, stop: float | None, truncated: bool, clip: tuple[float, float]
) -> None:
    args = SimpleNamespace(
        reward=SimpleNamespace(
            overlong_buffer_len=buffer,
            overlong_penalty_factor=0.7,
            stop_properly_penalty_coef=stop,
            clip_range=clip,
        ),
        rollout=SimpleNamespace(max_new_tokens=8),
    )
    changes = {"reward": reward, "scores": score, "truncated": truncated}
    trained, logged, scored = (value.to(torch.float32) for value in by_the_host(response(**changes), args))
    result = result_of(max_length=7, **changes)
    reader = ResponseReader(args, 7, None, ScoreThreshold(0.5))
    sample, experience = reader.sample(REQUEST, result, (0, 0)), reader.experience(result)
    for found, expected in ((experience.rewards, trained), (experience.info["reward"], logged)):
        assert (found.dtype, found.tolist()) == (expected.dtype, expected.tolist())
    assert experience.scores.tolist() == scored.tolist()
    assert sample.reward == float(trained[0]), "the pool's baseline is of what is trained"
    assert sample.score == float(float(scored[0]) > 0.5)
