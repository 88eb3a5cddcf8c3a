"""Accuracy on held-out prompts with its 95 % interval, and the unbiased pass@k.

Several answers to one prompt share the prompt's difficulty, so they are not independent: the interval is clustered by
prompt (the spread of prompt means), never by answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

NORMAL_975 = 1.959963984540054

# 0.975 quantiles of Student's t for 1..30 degrees of freedom; above, `t_quantile_975` is exact to 1e-4.
_T_975 = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)


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
    """Accuracy and its 95 % interval, clustered by prompt.

    half-width = t(0.975, P - 1) * sd(prompt means) / sqrt(P), with the sample standard deviation (P - 1 in the
    denominator) and Student's t quantile: 12.7 for P = 2, 2.26 for P = 10, 1.98 for P = 100, 1.96 for large P.

    Args:
        scores_per_prompt: P prompts, each with at least one score in [0, 1]; the numbers of scores may differ.

    Raises:
        ValueError: no prompts, a prompt without scores, or a score that is not a number in [0, 1].
    """
    if not scores_per_prompt:
        raise ValueError("accuracy of 0 prompts is undefined: give at least one prompt with its scores")
    means = [_prompt_mean(position, scores) for position, scores in enumerate(scores_per_prompt)]
    num_prompts = len(means)
    mean = math.fsum(means) / num_prompts
    ci95 = None
    if num_prompts > 1:
        variance = math.fsum((m - mean) ** 2 for m in means) / (num_prompts - 1)
        ci95 = t_quantile_975(num_prompts - 1) * math.sqrt(variance / num_prompts)
    return Accuracy(mean, ci95, num_prompts, sum(len(scores) for scores in scores_per_prompt))


def _prompt_mean(position: int, scores: Sequence[float]) -> float:
    if not scores:
        raise ValueError(f"prompt {position} has no scores: leave it out, or score at least one answer")
    for score in scores:
        if not 0.0 <= score <= 1.0:
            raise ValueError(f"prompt {position} has score {score!r}, expected a number in [0, 1]")
    return math.fsum(scores) / len(scores)


def t_quantile_975(degrees: int) -> float:
    """The 0.975 quantile of Student's t: a table up to 30 degrees of freedom, then the Cornish-Fisher expansion
    (Abramowitz and Stegun 26.7.5, two terms; error below 1e-4). Raises ValueError below one degree."""
    if degrees < 1:
        raise ValueError(f"Student's t with {degrees} degrees of freedom is undefined: at least 1 is needed")
    if degrees <= len(_T_975):
        return _T_975[degrees - 1]
    z = NORMAL_975
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate of P(at least one of k answers is right) from n answers of which c are right.

    1 - C(n - c, k) / C(n, k), in the product form of Chen et al. 2021 (arXiv 2107.03374), which never forms the
    large binomials. k = 1 gives c / n.

    Raises:
        ValueError: k < 1, k > n (no unbiased estimate exists), or c outside [0, n].
    """
    if k < 1 or k > n:
        raise ValueError(f"pass@{k} from {n} answers: k must be in [1, {n}]; sample at least k answers per prompt")
    if not 0 <= c <= n:
        raise ValueError(f"pass@{k}: {c} right answers among {n}, expected a count in [0, {n}]")
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))
