"""Reward for tasks whose answer is one integer, in OpenRLHF's `reward_func` form (`--reward.remote_url <this file>`).

OpenRLHF loads this file by its path, on its own: nothing here may be a relative import.
"""

from __future__ import annotations

import re
from typing import Any

from openrlhf_ada.reward.grade import Grade, UnusableLabelError
from openrlhf_ada.reward.reward_function import response_of

# Python refuses to read more than 4,300 digits, and no sum has as many.
_INTEGER = re.compile(r"[+-]?[0-9]{1,1000}")
_ANSWER_END = re.compile(r"\n|<[a-z_|/]+>")
"""An answer ends at the first newline or special token (`<|im_end|>`, `<eos>`), whatever the model adds after it."""


def reward_func(queries: list[str], prompts: list[str], labels: list[str], **kwargs: Any) -> dict[str, Any]:
    """1.0 for each response whose answer equals its label as an integer, else 0.0; "rewards" and "scores": (B,).

    `queries` are prompt + response as decoded text, `labels` integers as text. Raises ValueError on lists of different
    lengths, a query that does not start with its prompt, or a label that is not an integer.
    """
    import torch

    scores = [
        grade(response_of(query, prompt), label).score
        for query, prompt, label in zip(queries, prompts, labels, strict=True)
    ]
    return {"rewards": torch.tensor(scores), "scores": torch.tensor(scores), "extra_logs": {}}


def parse_answer(response: str) -> int | None:
    """The integer that stands before the first newline or special token; None when that text is not an integer."""
    answer = _ANSWER_END.split(response, maxsplit=1)[0].strip()
    return int(answer) if _INTEGER.fullmatch(answer) else None


def grade(response: str, label: Any) -> Grade:
    """1.0 if the answer equals the label as an integer, else 0.0; raises UnusableLabelError for other labels."""
    expected = str(label).strip()
    if not _INTEGER.fullmatch(expected):
        raise UnusableLabelError(
            f"the label {label!r} is not an integer: name its column (--data.label_key), or another reward"
        )
    answer = parse_answer(response)
    right = answer == int(expected)
    return Grade(float(right), "" if right else "no answer" if answer is None else "wrong answer")
