"""From an engine's answer to the sample that a policy sees, and to the experience of those that are trained."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from openrlhf.trainer.ppo_utils import length_penalty
from openrlhf.trainer.ppo_utils.experience import Experience
from vllm import SamplingParams

from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.core.score_threshold import ScoreThreshold
from openrlhf_ada.core.types import Sample
from openrlhf_ada.reward.grade import NoScoreError
from openrlhf_ada.rollout.messages import Number, Result

# It logs every call, and here every rollout is a call.
logging.getLogger(length_penalty.__name__).setLevel(logging.WARNING)


def sampling_params(args: Any, generate_kwargs: dict[str, Any], *, logprobs: bool) -> SamplingParams:
    """The parameters that the host's dispatch would use. `logprobs`: ask for them even if only a check needs them."""
    return SamplingParams(
        temperature=generate_kwargs.get("temperature", 1.0),
        top_p=generate_kwargs.get("top_p", 1.0),
        top_k=generate_kwargs.get("top_k", -1),
        max_tokens=generate_kwargs.get("max_new_tokens"),
        min_tokens=generate_kwargs.get("min_new_tokens", 1),
        skip_special_tokens=generate_kwargs.get("skip_special_tokens", False),
        logprobs=1 if logprobs or args.algo.advantage.is_correction_level != "off" else None,
    )


class ResponseReader:
    """Reads answers as the flags say. `process`: the host's, response to experience.

    `binary_reward_above`: rewards must be 1 for scores above this and 0 for others, because the critic that learns
    them is read as a pass rate. `threshold`: makes scores of raw scores (None: they are in [0, 1]).
    """

    def __init__(
        self,
        args: Any,
        process: Callable[[dict[str, Any]], Experience],
        binary_reward_above: float | None,
        threshold: ScoreThreshold | None = None,
    ) -> None:
        self._args = args
        self._process = process
        self._binary_reward_above = binary_reward_above
        self._threshold = threshold
        reward = args.reward
        self._has_penalties = reward.overlong_buffer_len is not None or reward.stop_properly_penalty_coef is not None

    def sample(self, request: Request, result: Result, versions: tuple[int, int]) -> Sample:
        """By the numbers alone. Raises NoScoreError if there is no score: the host leaves the reward out, and a zero
        would be false."""
        if result.no_score:
            raise NoScoreError(result.no_score)
        if result.reward is None or result.score is None:
            raise NoScoreError("the reward function returned no reward")
        score = result.score.value
        if self._threshold is not None:
            if not math.isfinite(score):
                raise NoScoreError(f"its score is {score}")
            score = self._threshold.outcome(score)
        # The host copies an absent 'scores' from 'rewards' before any penalty: the score is never the shaped reward.
        reward = self._shaped(result.reward, result)
        self._check_binary(request, reward, score)
        return Sample(request.key, request.index, score, reward, result.num_tokens, *versions)

    def _shaped(self, reward: Number, result: Result) -> float:
        clip = self._args.reward.clip_range
        if not self._has_penalties:
            return reward.value if clip is None else _clipped(reward, clip)
        values = SimpleNamespace(
            rewards=_tensor(reward),
            response_length=torch.tensor([result.length]),
            truncated=torch.tensor([result.truncated]),
            info={},
        )
        self._shape(values)
        return float(values.rewards[0])

    def _shape(self, experience: Any) -> None:
        """Length penalties, then the clip: before any baseline is computed from rewards."""
        length_penalty.apply_length_penalties([experience], self._args)
        if self._args.reward.clip_range is not None:
            experience.rewards = experience.rewards.clamp(*self._args.reward.clip_range)

    def _check_binary(self, request: Request, reward: float, score: float) -> None:
        threshold = self._binary_reward_above
        if threshold is not None and reward != float(score > threshold):
            raise ValueError(
                f"sample {request.index} of prompt {request.key} has reward {reward} and score {score}: with "
                f"--ada_estimator critic PPO's value of a prompt must be its pass rate, so rewards must be 1 for "
                f"positives and 0 for others. Use --ada_estimator ema for other rewards."
            )

    def experience(self, result: Result, reward: float) -> Experience:
        """What is trained of a sample that was given this reward; raises RuntimeError if it is another one."""
        if result.reward is None or result.score is None:
            raise RuntimeError("a response without a reward cannot be trained")
        # Of a reward model the response does not know. Lists of servers are one number by now.
        told = {"reward": result.reward.value, "scores": result.score.value}
        experience = self._process(result.response() | told)
        experience.rewards, experience.scores = _tensor(result.reward), _tensor(result.score)
        experience.info |= {"reward": experience.rewards.clone(), "score": experience.scores}
        self._shape(experience)
        trained = float(experience.rewards[0])
        if trained != reward:
            raise RuntimeError(f"a sample was given the reward {reward}, and would be trained with {trained}")
        return experience


def _clipped(reward: Number, bounds: Sequence[float]) -> float:
    """As torch's clamp, bounds in the reward's precision included."""
    low, high = bounds if reward.is_double else (float(np.float32(bound)) for bound in bounds)
    return min(max(reward.value, low), high)


def _tensor(number: Number) -> torch.Tensor:
    """Shape (1,). Group statistics need more than half precision, as in the host."""
    return torch.tensor([number.value], dtype=torch.float64 if number.is_double else torch.float32)
