"""The reward: an answer is right if its last number is the label."""

import re

import torch

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def reward_func(queries, prompts, labels):
    """For each query, which is a prompt and its answer: 1 for a right answer, 0 for a wrong one.

    Returns `scores`, which decide when to stop and what to keep, in [0, 1], and `rewards`, which are trained. To shape
    what is trained, change `rewards` only.
    """
    scores = torch.tensor(
        [is_right(query[len(prompt) :], label) for query, prompt, label in zip(queries, prompts, labels, strict=True)]
    )
    return {"scores": scores, "rewards": scores}


def is_right(answer, label):
    numbers = NUMBER.findall(answer.replace(",", ""))
    return float(bool(numbers) and float(numbers[-1]) == float(label))
