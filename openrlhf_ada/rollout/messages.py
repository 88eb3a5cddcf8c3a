"""What an engine tells the driver of rollouts that have ended: a few plain numbers each, and their responses packed.

The driver decides by the numbers and unpacks the responses that are trained, recorded or scored by a model.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from ray import cloudpickle

from openrlhf_ada.core.least_noise import score_norm
from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.core.types import Ints
from openrlhf_ada.reward.grade import NoScoreError, TimedGrade


class Result(NamedTuple):
    """What is known of a response without unpacking it.

    `reward`, `score`: in single precision; None where the engine has no reward function or got nothing from it.
    `num_tokens`: sampled ones that would be trained, up to --data.max_len. `truncated`: the answer was cut off.
    `no_score`: why the response cannot be used, though there is one. `score_norm`: see `core.least_noise`, of the same
    tokens; None without log-probabilities.
    """

    reward: float | None
    score: float | None
    num_tokens: int
    truncated: bool
    no_score: str
    grade: TimedGrade | None
    score_norm: float | None
    packed: bytes

    def response(self) -> dict[str, Any]:
        """The response as OpenRLHF's executors give it, with arrays of tokens and log-probabilities, shape (T,), and
        numbers in place of tensors."""
        return pickle.loads(self.packed)


class Answer(NamedTuple):
    """How a rollout ended. `result` is None where it was aborted, or `error` says why it failed.

    `num_tokens`: sampled for it, whatever became of it. `versions`: updates of the policy that the weights had had at
    its first and at its last token.
    """

    request: Request
    num_tokens: int
    versions: tuple[int, int] = (0, 0)
    error: str = ""
    result: Result | None = None


def result_of(response: dict[str, Any], *, max_length: int, logprobs: bool, grade: TimedGrade | None = None) -> Result:
    """Of a rollout with a response. `max_length`: where training cuts it. `logprobs`: were they asked for?

    Raises what reading raises where the response lacks a part, or has a reward that is no number.
    """
    try:
        check_log_probs(response, asked=logprobs)
        reward, score = (_number(response.get(name)) for name in ("reward", "scores"))
        no_score = ""
    except NoScoreError as error:
        reward = score = None
        no_score = str(error)
    trained = _trained_tokens(response["action_ranges"], len(response["observation_tokens"]), max_length)
    values = response["rollout_log_probs"]
    norm = None if no_score or values is None else score_norm(np.asarray(values, dtype=np.float64)[trained])
    is_truncated = bool(response.get("truncated", False))
    return Result(reward, score, len(trained), is_truncated, no_score, grade, norm, _packed(response))


def _packed(response: dict[str, Any]) -> bytes:
    values = response["rollout_log_probs"]
    compact = response | {
        "observation_tokens": np.asarray(response["observation_tokens"], dtype=np.int32),
        # OpenRLHF makes single precision of them.
        "rollout_log_probs": None if values is None else np.asarray(values, dtype=np.float32),
        # A tensor takes ten times as long as all else.
        "reward": _plain(response.get("reward")),
        "scores": _plain(response.get("scores")),
    }
    # An agent's extra values may be of classes of its own file, which nobody can import.
    return cloudpickle.dumps(compact, protocol=5)  # pyright: ignore[reportPrivateImportUsage] - Ray imports it with *


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else value


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
        for value in values[start:end]:
            if not (isinstance(value, float | int) and -math.inf < value <= 0.0):
                raise NoScoreError(f"a sampled token has the log-probability {value!r}")


def _number(value: Any) -> float | None:
    """A reward in single precision, as OpenRLHF reads a number; raises NoScoreError where it is not one number."""
    if value is None:
        return None
    # A tensor from a reward file, a number from an agent, or a list from a server.
    tensor = torch.as_tensor(value)
    if tensor.numel() != 1:
        raise NoScoreError(f"it came with {tensor.numel()} rewards or scores, expected one")
    return float(tensor.flatten().to(torch.float32)[0])


def _trained_tokens(ranges: Sequence[tuple[int, int]], num_tokens: int, max_length: int) -> Ints:
    """Positions of the sampled tokens of what is trained, which never has the first token."""
    is_sampled = np.zeros(num_tokens, dtype=bool)
    for start, end in ranges:
        is_sampled[start:end] = True
    return 1 + np.flatnonzero(is_sampled[1:max_length])
