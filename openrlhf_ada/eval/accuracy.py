"""Accuracy on held-out prompts with its 95 % interval, and the unbiased pass@k.

Several answers to one prompt share the prompt's difficulty, so they are not independent: the interval is clustered by
prompt (the spread of prompt means), never by answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from openrlhf_ada.reporting.quantiles import half_width


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Mean score of a policy on a set of prompts."""

    mean: float
    """Mean over prompts of each prompt's mean score, in [0, 1]: each prompt counts the same, however often sampled."""

    ci95: float | None
    """Half-width of the 95 % interval. None for a single prompt, which says nothing about the spread between prompts.
    0 means that all prompts had the same mean (all right, say), not that the policy's accuracy is known exactly."""

    num_prompts: int
    num_samples: int


def accuracy_with_interval(scores_per_prompt: Sequence[Sequence[float]]) -> Accuracy:
    """Accuracy and its 95 % interval, clustered by prompt: Student's t over prompt means.

    Args:
        scores_per_prompt: P prompts, each with at least one score in [0, 1]; the numbers of scores may differ.

    Raises:
        ValueError: no prompts, a prompt without scores, or a score that is not a number in [0, 1].
    """
    if not scores_per_prompt:
        raise ValueError("accuracy of 0 prompts is undefined: give at least one prompt with its scores")
    means = [_prompt_mean(position, scores) for position, scores in enumerate(scores_per_prompt)]
    mean = math.fsum(means) / len(means)
    return Accuracy(mean, half_width(means), len(means), sum(len(scores) for scores in scores_per_prompt))


def _prompt_mean(position: int, scores: Sequence[float]) -> float:
    if not scores:
        raise ValueError(f"prompt {position} has no scores: leave it out, or score at least one answer")
    for score in scores:
        if not 0.0 <= score <= 1.0:
            raise ValueError(f"prompt {position} has score {score!r}, expected a number in [0, 1]")
    return math.fsum(scores) / len(scores)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate of P(at least one of k answers is right) from n answers of which c are right.

    1 - C(n - c, k) / C(n, k), as in Chen et al. 2021 (arXiv 2107.03374).

    Raises:
        ValueError: k < 1, k > n (no unbiased estimate exists), or c outside [0, n].
    """
    if not 1 <= k <= n or not 0 <= c <= n:
        raise ValueError(f"pass@{k} of {n} answers, {c} of them right: expected 1 <= k <= n and 0 <= c <= n")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)
