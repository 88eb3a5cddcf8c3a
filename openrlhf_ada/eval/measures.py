"""Figures of a model from n answers per problem: avg@n, pass@k, maj@k, all-equal groups, lengths; with intervals.

A problem is the unit: its answers share its difficulty. Every figure is a mean over problems of a value per problem,
so figures of the same problems can be compared in pairs. `intervals` has the intervals.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from openrlhf_ada.eval.accuracy import pass_at_k
from openrlhf_ada.eval.intervals import Floats, bootstrap_interval, exchange_p_value, score_interval


@dataclass(frozen=True, slots=True)
class Answered:
    """The answers to one problem that have a score, in order of their index.

    `scores`: what the grader gave; `right`: what the task says of them. `groups`: which answers are the same (any
    labels, "" for a response without an answer; None where answers are not compared). `tokens`: response lengths;
    NaN where not known. `surprise`: mean negative log-probability per token, in nats; NaN where it was not asked for.
    """

    problem: str
    scores: Sequence[float]
    right: Sequence[bool]
    groups: Sequence[str] | None
    tokens: Sequence[float]
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


@dataclass(frozen=True, slots=True)
class Difference(Estimate):
    """A mean difference over the same problems. `num_differing`: problems at which the two are not equal; `p_value`:
    see `intervals.exchange_p_value`."""

    num_differing: int
    p_value: float


def per_problem(answered: Sequence[Answered], n: int, ks: Sequence[int]) -> dict[str, Floats]:
    """Values by measure, each of shape (P,): NaN where a problem has too few answers for it.

    Measures: "avg@n" (share of right answers among those of the n that have a score), "score" (their mean score),
    "pass@k", "maj@k" and "all_equal@k" for each k, "tokens", "truncated", "surprise".

    Raises:
        ValueError: no problems, or a k above n.
    """
    if not answered:
        raise ValueError("there are no answers with a score, so there is nothing to measure")
    too_large = [k for k in ks if k > n]
    if too_large:
        raise ValueError(f"pass@{too_large[0]} needs {too_large[0]} answers per problem, there are {n} (R14)")
    values: dict[str, Floats] = {f"avg@{n}": _values(answered, lambda a: sum(a.right) / a.n)}
    values["score"] = _values(answered, lambda a: float(np.mean(a.scores)))
    for k in ks:
        values[f"pass@{k}"] = _values(answered, lambda a, k=k: pass_at_k(a.n, sum(a.right), k), least=k)
        values[f"all_equal@{k}"] = _values(answered, lambda a, k=k: all_equal_at_k(a.n, sum(a.right), k), least=k)
        if all(problem.groups is not None for problem in answered):
            values[f"maj@{k}"] = _values(answered, lambda a, k=k: maj_at_k(a.right, a.groups or (), k), least=k)
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


def maj_at_k(right: Sequence[bool], groups: Sequence[str], k: int) -> float:
    """Chance that the most frequent answer among k of the n is right; ties are broken evenly. Exact over all subsets.

    A response without an answer (group "") has no vote; k responses without one are wrong. Answers of one name are
    usually all right or all wrong. If not, the name counts with its share of right answers.
    """
    sizes = Counter(groups)
    silent = sizes.pop("", 0)
    right_ones = Counter(group for r, group in zip(right, groups, strict=True) if r)
    names = [(size, right_ones[name] / size) for name, size in sizes.items()]
    fewest = math.ceil((k - silent) / max(len(names), 1))
    winning = range(max(fewest, 1), min(k, max(sizes.values(), default=0)) + 1)
    n = len(groups)
    chance = sum(_won_with(most, names, silent, k, k / n) for most in winning) / _binomial(n, k, k / n)
    # Rounding would put it slightly above.
    return min(chance, 1.0)


def _won_with(most: int, names: Sequence[tuple[int, float]], silent: int, k: int, share: float) -> float:
    """Chance that k responses are chosen and the most frequent of their answers has `most` votes, times the share of
    right ones among the most frequent, if each response is chosen with chance `share`.

    So numbers stay below 1, where numbers of subsets would exceed what a float can hold. `names`: (answers, share of
    right ones). The table has, by (responses chosen, names with `most` votes), the chance, and the chance times the
    sum of the winners' shares.
    """
    table = np.zeros((2, k + 1, k // most + 2))
    table[0, : silent + 1, 0] = [_binomial(silent, chosen, share) for chosen in range(min(silent, k) + 1)]
    for size, right in names:
        more = np.zeros_like(table)
        for votes in range(min(size, most, k) + 1):
            chosen = _binomial(size, votes, share) * table[:, : k + 1 - votes]
            if votes < most:
                more[:, votes:] += chosen
            else:
                more[:, votes:, 1:] += chosen[:, :, :-1]
                more[1, votes:, 1:] += right * chosen[0, :, :-1]
        table = more
    return float(table[1, k, 1:] @ (1 / np.arange(1, table.shape[2])))


@lru_cache(maxsize=1 << 16)
def _binomial(size: int, chosen: int, share: float) -> float:
    if share == 1.0:
        return float(chosen == size)
    ways = math.lgamma(size + 1) - math.lgamma(chosen + 1) - math.lgamma(size - chosen + 1)
    return math.exp(ways + chosen * math.log(share) + (size - chosen) * math.log1p(-share))


def estimate(values: Floats, *, share: bool = False) -> Estimate:
    """Mean over problems (NaN: left out) and its 95 % interval.

    `share`: values lie in [0, 1], and the interval is the score interval. Else it is a bootstrap over problems.

    Raises:
        ValueError: no problem has the value.
    """
    known = values[~np.isnan(values)]
    if not len(known):
        raise ValueError("no problem has this value")
    low, high = score_interval(known) if share else bootstrap_interval(known)
    return Estimate(float(known.mean()), low, high, len(known))


def difference(values: Floats, reference: Floats) -> Difference:
    """Mean difference of shares over the same problems in the same order, with its score interval and exact test."""
    gains = values - reference
    # Equal shares of other numbers of answers may differ by rounding.
    gains[np.abs(gains) < 1e-9] = 0.0
    return Difference(
        float(gains.mean()),
        *score_interval(gains, -1.0, 1.0),
        num_problems=len(gains),
        num_differing=int(np.count_nonzero(gains)),
        p_value=exchange_p_value(gains),
    )


def pooled(by_benchmark: Mapping[str, Mapping[str, Floats]]) -> dict[str, Floats]:
    """All benchmarks as one, every problem counting the same: the weighted average of the published tables.

    Only measures that every benchmark has.
    """
    tables = list(by_benchmark.values())
    shared = [name for name in tables[0] if all(name in table for table in tables)]
    return {name: np.concatenate([table[name] for table in tables]) for name in shared}
