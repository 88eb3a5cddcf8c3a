"""From an engine's response to the sample that a policy sees and the experience that is trained."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import torch
from openrlhf.trainer.ppo_utils import length_penalty
from openrlhf.trainer.ppo_utils.experience import Experience
from vllm import SamplingParams

from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.core.score_threshold import ScoreThreshold
from openrlhf_ada.core.types import Sample
from openrlhf_ada.reward.grade import NoScoreError
from openrlhf_ada.rollout.records import GradedExperience, host_fields

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
    """Reads responses as the flags say. `process`: the host's, response to experience.

    `binary_reward_above`: rewards must be 1 for scores above this and 0 for others, because the critic that learns
    them is read as a pass rate. `threshold`: makes scores of raw scores (None: they are in [0, 1]). `logprobs`: were
    they asked for?
    """

    def __init__(
        self,
        args: Any,
        process: Callable[[dict[str, Any]], Experience],
        binary_reward_above: float | None,
        threshold: ScoreThreshold | None = None,
        *,
        logprobs: bool = False,
    ) -> None:
        self._args = args
        self._process = process
        self._binary_reward_above = binary_reward_above
        self._threshold = threshold
        self._logprobs = logprobs

    def __call__(
        self, request: Request, response: dict[str, Any], versions: tuple[int, int]
    ) -> tuple[Sample, Experience]:
        """Raises NoScoreError if there is no score: the host leaves the reward out, and a zero would be false."""
        check_log_probs(response, asked=self._logprobs)
        experience = self._process(response)
        if experience.rewards is None or experience.scores is None:
            raise NoScoreError("the reward function returned no reward")
        # The host turns a server's list into a matrix, and PPO cannot make rewards per token of that.
        experience.rewards, experience.scores = _one_number(experience.rewards), _one_number(experience.scores)
        experience.info |= {"reward": experience.rewards.clone(), "score": experience.scores}
        raw_score = float(experience.scores[0])
        if self._threshold is not None and not math.isfinite(raw_score):
            raise NoScoreError(f"its score is {raw_score}")
        # Group statistics need more than half precision, as in the host.
        dtype = torch.promote_types(experience.rewards.dtype, torch.float32)
        experience.rewards = experience.rewards.to(dtype)
        length_penalty.apply_length_penalties([experience], self._args)
        if self._args.reward.clip_range is not None:
            # Before any baseline is computed from them.
            experience.rewards = experience.rewards.clamp(*self._args.reward.clip_range)
        recorded = None if self._threshold is None else raw_score
        graded = GradedExperience(**host_fields(experience), grade=response.get("grade"), raw_score=recorded)
        score = raw_score if self._threshold is None else self._threshold.outcome(raw_score)
        return self._describe(request, experience, score, versions), graded

    def _describe(self, request: Request, experience: Experience, score: float, versions: tuple[int, int]) -> Sample:
        # The host copies an absent 'scores' from 'rewards' before any penalty: the score is never the shaped reward.
        reward = float(experience.rewards[0])
        threshold = self._binary_reward_above
        if threshold is not None and reward != float(score > threshold):
            raise ValueError(
                f"sample {request.index} of prompt {request.key} has reward {reward} and score {score}: with "
                f"--ada_estimator critic PPO's value of a prompt must be its pass rate, so rewards must be 1 for "
                f"positives and 0 for others. Use --ada_estimator ema for other rewards."
            )
        return Sample(request.key, request.index, score, reward, int(experience.action_mask.sum()), *versions)


def _one_number(values: torch.Tensor) -> torch.Tensor:
    """Shape (1,); raises NoScoreError where there is not one number for the one answer."""
    if values.numel() != 1:
        raise NoScoreError(f"it came with {values.numel()} rewards or scores, expected one")
    return values.flatten()


def check_log_probs(response: dict[str, Any], *, asked: bool) -> None:
    """One number per token, finite and at most 0 where a token was sampled; raises NoScoreError."""
    values, tokens = response["rollout_log_probs"], len(response["observation_tokens"])
    if values is None:
        if asked:
            raise NoScoreError("it came without the log-probabilities that were asked for")
        return
    if len(values) != tokens:
        raise NoScoreError(f"{tokens} tokens have {len(values)} log-probabilities")
    for start, end in response["action_ranges"]:
        if not 0 <= start <= end <= tokens:
            raise NoScoreError(f"of {tokens} tokens those from {start} to {end} are said to have been sampled")
        wrong = [value for value in values[start:end] if not is_log_probability(value)]
        if wrong:
            raise NoScoreError(f"a sampled token has the log-probability {wrong[0]!r}")


def is_log_probability(value: Any) -> bool:
    """A finite number of at most 0."""
    return isinstance(value, float | int) and -math.inf < value <= 0.0
