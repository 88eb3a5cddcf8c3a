"""Figures of a model from n answers per problem: avg@n, maj@n, pass@k, all-equal groups, lengths; with intervals.

A problem is the unit: its answers share its difficulty. Every figure is a mean over problems of a value per problem,
so figures of the same problems can be compared in pairs. `intervals` has the intervals.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from openrlhf_ada.eval.intervals import Floats, score_interval
from openrlhf_ada.reporting.quantiles import half_width


@dataclass(frozen=True, slots=True)
class Answered:
    """The answers to one problem that have a score, in order of their index.

    `scores`: what the grader gave; `right`: what the task says of them, if it has been asked. `tokens`: response
    lengths; NaN where not known. `groups`: which answers are the same (any labels, "" for one without an answer;
    None where answers are not compared). `surprise`: mean negative log-probability per token, in nats.
    """

    scores: Sequence[float]
    tokens: Sequence[float]
    truncated: Sequence[bool]
    right: Sequence[bool] = ()
    problem: str = ""
    groups: Sequence[str] | None = None
    surprise: Sequence[float] = (math.nan,)

    @property
    def n(self) -> int:
        """How many answers have a score."""
        return len(self.scores)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over problems and its 95 % interval."""

    mean: float
    low: float
    high: float
    num_problems: int


@dataclass(frozen=True, slots=True)
class Difference(Estimate):
    """A mean difference over the same problems. `num_differing`: problems at which the two are not equal."""

    num_differing: int


def per_problem(answered: Sequence[Answered], n: int, ks: Sequence[int]) -> dict[str, Floats]:
    """Values by measure, each of shape (P,): NaN where a problem has too few answers for it.

    Measures: "avg@n" (share of right answers among those of the n that have a score), "score" (their mean score),
    "maj@n" where answers are compared, "pass@k" and "all_equal@k" for each k <= n, "tokens", "truncated", "surprise".
    """
    values: dict[str, Floats] = {f"avg@{n}": _values(answered, lambda a: sum(a.right) / a.n)}
    values["score"] = _values(answered, lambda a: float(np.mean(a.scores)))
    for k in ks:
        values[f"pass@{k}"] = _values(answered, lambda a, k=k: pass_at_k(a.n, sum(a.right), k), least=k)
        values[f"all_equal@{k}"] = _values(answered, lambda a, k=k: all_equal_at_k(a.n, sum(a.right), k), least=k)
    if all(problem.groups is not None for problem in answered):
        values[f"maj@{n}"] = _values(answered, lambda a: majority(a.right, a.groups or ()), least=n)
    values["tokens"] = _values(answered, lambda a: float(np.mean(a.tokens)))
    values["truncated"] = _values(answered, lambda a: float(np.mean(a.truncated)))
    values["surprise"] = _values(answered, lambda a: float(np.mean(a.surprise)))
    return values


def _values(answered: Sequence[Answered], value: Callable[[Answered], float], least: int = 1) -> Floats:
    return np.array([value(problem) if problem.n >= least else np.nan for problem in answered], dtype=np.float64)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate of P(at least one of k answers is right) from n answers of which c are right, k <= n.

    1 - C(n - c, k) / C(n, k), as in Chen et al. 2021 (arXiv 2107.03374).
    """
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def all_equal_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate of the chance that k answers are all right or all wrong, so that a group of k has no gradient.

    (C(c, k) + C(n - c, k)) / C(n, k): a group drawn from the n answers without putting back.
    """
    return (math.comb(c, k) + math.comb(n - c, k)) / math.comb(n, k)


def majority(right: Sequence[bool], groups: Sequence[str]) -> float:
    """1 if the most frequent answer is right, else 0. Ties are split evenly, and so is an answer that is right in some
    responses only; a response without an answer (group "") has no vote."""
    votes = Counter(group for group in groups if group)
    most = max(votes.values(), default=0)
    winners = [r for r, group in zip(right, groups, strict=True) if votes[group] == most and group]
    return sum(winners) / len(winners) if winners else 0.0


def estimate(values: Floats, *, share: bool = False) -> Estimate:
    """Mean over problems (NaN: left out; one at least is known) and its 95 % interval.

    `share`: values lie in [0, 1], and the interval is the score interval. Else it is Student's t.
    """
    known = values[~np.isnan(values)]
    mean = float(known.mean())
    half = half_width(known.tolist()) or 0.0
    low, high = score_interval(known) if share else (mean - half, mean + half)
    return Estimate(mean, low, high, len(known))


def difference(values: Floats, reference: Floats) -> Difference:
    """Mean difference of shares over the same problems in the same order, with its score interval."""
    gains = values - reference
    # Equal shares of other numbers of answers may differ by rounding.
    gains[np.abs(gains) < 1e-9] = 0.0
    return Difference(
        float(gains.mean()),
        *score_interval(gains, -1.0, 1.0),
        num_problems=len(gains),
        num_differing=int(np.count_nonzero(gains)),
    )


def pooled(by_benchmark: Mapping[str, Mapping[str, Floats]]) -> dict[str, Floats]:
    """All benchmarks as one, every problem counting the same: the weighted average of the published tables.

    Only measures that every benchmark has.
    """
    tables = list(by_benchmark.values())
    shared = [name for name in tables[0] if all(name in table for table in tables)]
    return {name: np.concatenate([table[name] for table in tables]) for name in shared}
