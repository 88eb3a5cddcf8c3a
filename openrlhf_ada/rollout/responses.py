"""From an engine's answer to the sample that a policy sees, and to the experience of those that are trained."""

from __future__ import annotations

import logging
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from openrlhf.trainer.ppo_utils import length_penalty
from openrlhf.trainer.ppo_utils.experience import Experience
from vllm import SamplingParams

from openrlhf_ada.config.passed_on import arguments_of
from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.core.score_threshold import ScoreThreshold
from openrlhf_ada.core.types import Sample
from openrlhf_ada.host.experiences import experience_of
from openrlhf_ada.reward.grade import NoScoreError
from openrlhf_ada.rollout.messages import Result

# It logs every call, and here every rollout is a call.
logging.getLogger(length_penalty.__name__).setLevel(logging.WARNING)


def sampling_params(args: Any, generate_kwargs: dict[str, Any], *, logprobs: bool) -> SamplingParams:
    """The parameters that our dispatch in mode off uses. `logprobs`: ask for them even if only a check needs them."""
    return SamplingParams(
        temperature=generate_kwargs.get("temperature", 1.0),
        top_p=generate_kwargs.get("top_p", 1.0),
        top_k=generate_kwargs.get("top_k", -1),
        max_tokens=generate_kwargs.get("max_new_tokens"),
        min_tokens=generate_kwargs.get("min_new_tokens", 1),
        skip_special_tokens=generate_kwargs.get("skip_special_tokens", False),
        logprobs=1 if logprobs or args.algo.advantage.is_correction_level != "off" else None,
        **arguments_of(args.ada.sampling_args),
    )


class ResponseReader:
    """Reads answers as the flags say. `max_length`: where training cuts sequences.

    `binary_reward_above`: rewards must be 1 for scores above this and 0 for others, because the critic that learns
    them is read as a pass rate. `threshold`: makes scores of raw scores (None: they are in [0, 1]).
    """

    def __init__(
        self, args: Any, max_length: int, binary_reward_above: float | None, threshold: ScoreThreshold | None = None
    ) -> None:
        self._args = args
        self._max_length = max_length
        self._binary_reward_above = binary_reward_above
        self._threshold = threshold
        reward = args.reward
        self._has_penalties = reward.overlong_buffer_len is not None or reward.stop_properly_penalty_coef is not None
        clip = (-math.inf, math.inf) if reward.clip_range is None else reward.clip_range
        # As torch's clamp, which takes the bounds in single precision.
        self._low, self._high = (float(np.float32(bound)) for bound in clip)

    def sample(self, request: Request, result: Result, versions: tuple[int, int]) -> Sample:
        """By the numbers alone. Raises NoScoreError if there is no score: OpenRLHF leaves the reward out, and a zero
        would be false."""
        if result.no_score:
            raise NoScoreError(result.no_score)
        given, value = result.reward, result.score
        if given is None or value is None:
            raise NoScoreError("the reward function returned no reward")
        if self._threshold is not None:
            if not math.isfinite(value):
                raise NoScoreError(f"its score is {value}")
            value = self._threshold.outcome(value)
        # OpenRLHF copies an absent 'scores' from 'rewards' before any penalty: the score is never the shaped reward.
        reward = self._clipped(self._penalised(given, result))
        if self._binary_reward_above is not None:
            self._check_binary(request, reward, value, self._binary_reward_above)
        return Sample(request.key, request.index, value, reward, result.num_tokens, *versions, result.score_norm)

    def experience(self, result: Result) -> Experience:
        """What is trained of a sample. Raises ValueError for one without a reward."""
        if result.reward is None or result.score is None:
            raise ValueError("a response without a reward cannot be trained")
        penalised, scores = self._penalised(result.reward, result), torch.tensor([result.score])
        return experience_of(
            result.response(),
            self._max_length,
            rewards=torch.tensor([self._clipped(penalised)]),
            scores=scores,
            info={"reward": torch.tensor([penalised]), "score": scores},
        )

    def _penalised(self, reward: float, result: Result) -> float:
        """With OpenRLHF's length penalties."""
        if not self._has_penalties:
            return reward
        values = SimpleNamespace(
            rewards=torch.tensor([reward]),
            response_length=torch.tensor([result.num_tokens]),
            truncated=torch.tensor([result.truncated]),
            info={},
        )
        length_penalty.apply_length_penalties([values], self._args)
        return float(values.rewards[0])

    def _clipped(self, reward: float) -> float:
        """In --reward.clip_range, before any baseline is computed from rewards."""
        # What is not finite stays so, and is refused as a sample's reward.
        return min(max(reward, self._low), self._high) if math.isfinite(reward) else reward

    @staticmethod
    def _check_binary(request: Request, reward: float, score: float, threshold: float) -> None:
        if reward != float(score > threshold):
            raise ValueError(
                f"sample {request.index} of prompt {request.key} has reward {reward} and score {score}: with "
                f"--ada_estimator critic PPO's value of a prompt must be its pass rate, so rewards must be 1 for "
                f"positives and 0 for others. Use --ada_estimator ema for other rewards."
            )
