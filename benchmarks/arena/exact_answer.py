"""Reward of the chain tasks on the real stack, in OpenRLHF's `reward_func` form (`--reward.remote_url <this file>`).

OpenRLHF loads this file by its path, on its own: nothing here may be a relative import.
"""

from __future__ import annotations

from typing import Any

END_TEXT = "<eos>"


def reward_func(queries: list[str], prompts: list[str], labels: list[str], **kwargs: Any) -> dict[str, Any]:
    """1.0 where the response is the label and the end token, to the letter, else 0.0; float tensors of shape (B,).

    `queries` are prompt + response as decoded text, special tokens included.
    """
    import torch

    rows = zip(queries, prompts, labels, strict=True)
    scores = torch.tensor([float(query == f"{prompt}{label}{END_TEXT}") for query, prompt, label in rows])
    return {"rewards": scores, "scores": scores, "extra_logs": {}}
