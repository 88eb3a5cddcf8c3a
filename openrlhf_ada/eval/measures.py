"""Figures of a model from n answers per problem: avg@n, pass@k, maj@k, all-equal groups, lengths; with intervals.

A problem is the unit: its answers share its difficulty. Every figure is a mean over problems of a value per problem,
and its interval resamples problems (percentile bootstrap), so figures of the same problems can be compared in pairs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from openrlhf_ada.eval.accuracy import NORMAL_975, pass_at_k

Floats = NDArray[np.float64]

RESAMPLES = 2000
MOST_SUBSETS = 3000
"""Up to so many subsets maj@k is exact; else it is the mean over so many random ones."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The answers to one problem that have a score, in order of their index.

    `groups`: which answers are the same (any labels; None where answers are not compared). `tokens`: response
    lengths. `surprise`: mean negative log-probability per token, in nats; NaN where it was not asked for.
    """

    problem: str
    right: Sequence[bool]
    groups: Sequence[str] | None
    tokens: Sequence[int]
    truncated: Sequence[bool]
    surprise: Sequence[float]

    @property
    def n(self) -> int:
        """How many answers have a score."""
        return len(self.right)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over problems and its 95 % interval."""

    mean: float
    low: float
    high: float
    num_problems: int


def per_problem(answered: Sequence[Answered], n: int, ks: Sequence[int], seed: int = 0) -> dict[str, Floats]:
    """Values by measure, each of shape (P,): NaN where a problem has too few answers for it.

    Measures: "avg@n" (over those of the n answers that have a score), "pass@k", "maj@k" and "all_equal@k" for each
    k, "tokens", "truncated", "surprise".

    Raises:
        ValueError: no problems, or a k above n.
    """
    if not answered:
        raise ValueError("there are no answers with a score, so there is nothing to measure")
    too_large = [k for k in ks if k > n]
    if too_large:
        raise ValueError(f"pass@{too_large[0]} needs {too_large[0]} answers per problem, there are {n} (R14)")
    values: dict[str, Floats] = {f"avg@{n}": _values(answered, lambda a: sum(a.right) / a.n)}
    for k in ks:
        values[f"pass@{k}"] = _values(answered, lambda a, k=k: pass_at_k(a.n, sum(a.right), k), least=k)
        values[f"all_equal@{k}"] = _values(answered, lambda a, k=k: all_equal_at_k(a.n, sum(a.right), k), least=k)
        if all(problem.groups is not None for problem in answered):
            values[f"maj@{k}"] = _values(answered, lambda a, k=k: maj_at_k(a.right, a.groups or (), k, seed), least=k)
    values["tokens"] = _values(answered, lambda a: float(np.mean(a.tokens)))
    values["truncated"] = _values(answered, lambda a: float(np.mean(a.truncated)))
    values["surprise"] = _values(answered, lambda a: float(np.mean(a.surprise)))
    return values


def _values(answered: Sequence[Answered], value: object, least: int = 1) -> Floats:
    assert callable(value)
    return np.array([value(problem) if problem.n >= least else np.nan for problem in answered], dtype=np.float64)


def all_equal_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate of the chance that k answers are all right or all wrong, so that a group of k has no gradient.

    (C(c, k) + C(n - c, k)) / C(n, k): a group drawn from the n answers without putting back.
    """
    return (math.comb(c, k) + math.comb(n - c, k)) / math.comb(n, k)


def maj_at_k(right: Sequence[bool], groups: Sequence[str], k: int, seed: int = 0) -> float:
    """Chance that the most frequent of k answers is right, over subsets of the n; ties are broken evenly.

    Exact up to MOST_SUBSETS subsets, else over as many random ones (seeded).
    """
    n = len(right)
    if math.comb(n, k) <= MOST_SUBSETS:
        subsets: Sequence[Sequence[int]] = list(itertools.combinations(range(n), k))
    else:
        rng = np.random.default_rng([seed, n, k])
        subsets = rng.permuted(np.tile(np.arange(n), (MOST_SUBSETS, 1)), axis=1)[:, :k].tolist()
    return sum(_vote(right, groups, subset) for subset in subsets) / len(subsets)


def _vote(right: Sequence[bool], groups: Sequence[str], subset: Sequence[int]) -> float:
    votes: dict[str, int] = {}
    for i in subset:
        votes[groups[i]] = votes.get(groups[i], 0) + 1
    most = max(votes.values())
    winners = [name for name, count in votes.items() if count == most]
    # Answers of one name are usually all right or all wrong. If not, the name counts with its share of right answers.
    shares = [sum(right[i] for i in subset if groups[i] == name) / most for name in winners]
    return sum(shares) / len(winners)


def estimate(values: Floats, seed: int = 0, *, share: bool = False) -> Estimate:
    """Mean over problems (NaN: left out) and its percentile bootstrap interval, seeded.

    `share`: values lie in [0, 1]. Where all are the same, resampling finds no spread, but another problem could be
    different: the interval is then Wilson's, of P problems. One problem that is no share has no interval.

    Raises:
        ValueError: no problem has the value.
    """
    known = values[~np.isnan(values)]
    if not len(known):
        raise ValueError("no problem has this value")
    if share and (known == known[0]).all():
        return Estimate(float(known[0]), *wilson(float(known.sum()), len(known)), len(known))
    means = known[_resamples(len(known), seed)].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return Estimate(float(known.mean()), float(low), float(high), len(known))


def wilson(positives: float, draws: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share, which stays in [0, 1] and is not empty at 0 and 1."""
    if not 0 <= positives <= draws or draws < 1:
        raise ValueError(f"{positives} of {draws} is no share")
    z2, p = NORMAL_975**2, positives / draws
    centre = (p + z2 / (2 * draws)) / (1 + z2 / draws)
    half = NORMAL_975 * math.sqrt(p * (1 - p) / draws + z2 / (4 * draws**2)) / (1 + z2 / draws)
    # At 0 and 1, rounding would put a bound slightly outside [0, 1].
    return (0.0 if positives == 0 else centre - half), (1.0 if positives == draws else centre + half)


def difference(values: Floats, reference: Floats, seed: int = 0) -> Estimate:
    """Mean difference of shares over the same problems in the same order, with the interval of a paired bootstrap."""
    # Scaled to [0, 1], so that differences that are all the same get Wilson's interval.
    found = estimate((values - reference + 1) / 2, seed, share=True)
    return Estimate(2 * found.mean - 1, 2 * found.low - 1, 2 * found.high - 1, found.num_problems)


def _resamples(count: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, count, size=(RESAMPLES, count))


def pooled(by_benchmark: Mapping[str, Mapping[str, Floats]]) -> dict[str, Floats]:
    """All benchmarks as one, every problem counting the same: the weighted average of the published tables.

    Only measures that every benchmark has.
    """
    tables = list(by_benchmark.values())
    shared = [name for name in tables[0] if all(name in table for table in tables)]
    return {name: np.concatenate([table[name] for table in tables]) for name in shared}
