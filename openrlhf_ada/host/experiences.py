"""OpenRLHF's experience of one sample, made of arrays.

Contract: test_openrlhf_objects.test_experiences_are_what_openrlhf_makes_of_responses
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from openrlhf.trainer.ppo_utils.experience import Experience


def experience_of(
    response: dict[str, Any], max_length: int, *, rewards: torch.Tensor, scores: torch.Tensor, info: dict[str, Any]
) -> Experience:
    """What our generator in mode off makes of a response, in a fifth of the time; every trained sample passes here.

    Args:
        response: of an executor, with tokens and log-probabilities (or None) as arrays, shape (T,).
        max_length: where sequences end.
        rewards, scores: shape (1,).
        info: figures that are added to OpenRLHF's own, and win where both have one.
    """
    tokens = response["observation_tokens"]
    is_action = np.zeros(len(tokens), dtype=np.int64)
    for start, end in response["action_ranges"]:
        is_action[start:end] = 1
    is_action = is_action[1:max_length]
    sequence = np.array(tokens[:max_length], dtype=np.int64)
    values = response["rollout_log_probs"]
    extra = {name: _figure(value) for name, value in response.get("extra_logs", {}).items()}
    # OpenRLHF names narrower types than its own values have.
    fields: dict[str, Any] = {
        "sequences": torch.from_numpy(sequence[None]),
        "attention_mask": torch.ones(1, len(sequence), dtype=torch.long),
        "action_mask": torch.from_numpy(is_action[None]),
        "rollout_log_probs": None if values is None else torch.from_numpy(np.float32(values[None, 1:max_length])),
        "prompts": [response["prompt"]],
        "labels": [response["label"]],
        "images": [response.get("images")],
        "mm_train_inputs": [response.get("mm_train_inputs")],
        "rewards": rewards,
        "scores": scores,
        "response_length": torch.tensor([int(is_action.sum())]),
        "truncated": torch.tensor([bool(response.get("truncated", False))]),
        "total_length": torch.tensor([float(len(sequence))]),
        "info": {"response_clip_ratio": torch.tensor([len(sequence) >= max_length])} | extra | info,
    }
    return Experience(**fields)


def _figure(value: Any) -> torch.Tensor:
    """Shape (1,), of a number or of a tensor's first one."""
    return torch.tensor([value.flatten()[0].item() if isinstance(value, torch.Tensor) else value])
