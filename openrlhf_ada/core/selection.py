"""Which samples of a closed pool are trained. Every choice is seeded-random over the index-ordered pool.

The published code keeps the first k; in order of completion that would prefer short answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from openrlhf_ada.core.pieces import Need, Table, Trait
from openrlhf_ada.core.types import Floats, Ints

SELECTIONS: Table[Callable[[Floats, int, float, np.random.Generator], list[int] | Ints]] = Table()
"""Functions (scores, n, threshold, generator) -> indices of n samples, in any order."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A rule by which n samples of a pool are kept: `name` is one of SELECTIONS."""

    name: str
    group_size: int
    threshold: float

    def keep(self, scores: Floats, rng: np.random.Generator) -> tuple[int, ...]:
        """Indices (ascending) of the kept samples; raises ValueError if the pool holds fewer than n (not with `all`).

        `scores`: float64, shape (N,), in index order.
        """
        if len(scores) < self.group_size and not self.keeps_all:
            raise ValueError(f"pool of {len(scores)} samples cannot fill a group of {self.group_size}")
        kept = SELECTIONS[self.name].function(scores, self.group_size, self.threshold, rng)
        return tuple(sorted(int(i) for i in kept))

    @property
    def keeps_all(self) -> bool:
        """Are groups as large as their pools?"""
        return Need.ONE_GROUP_SIZE in SELECTIONS[self.name].lacks

    def has(self, trait: Trait) -> bool:
        """Does the rule promise this?"""
        return trait in SELECTIONS[self.name].traits


@SELECTIONS.add("balanced", traits={Trait.OUTCOMES_BY_COUNT})
def balanced(scores: Floats, n: int, threshold: float, rng: np.random.Generator) -> list[int]:
    """Up to floor(n/2) positives, negatives for the rest, spares filled from either (Reinforce-Ada, Algorithm 2)."""
    positive = scores > threshold
    positives, negatives = np.flatnonzero(positive), np.flatnonzero(~positive)
    num_pos = min(len(positives), max(n // 2, n - len(negatives)))
    return [*rng.permutation(positives)[:num_pos], *rng.permutation(negatives)[: n - num_pos]]


@SELECTIONS.add("random", lacks={Need.POSITIVES_KEPT: "may keep none"}, traits={Trait.FAIR_SAMPLE})
def random(scores: Floats, n: int, threshold: float, rng: np.random.Generator) -> Ints:
    """Any n: the group is a fair sample of the pool."""
    return rng.permutation(len(scores))[:n]


@SELECTIONS.add(
    "max_variance", lacks={Need.FAIR_OUTCOMES: "keeps the extremes of a pool"}, traits={Trait.OUTCOMES_BY_COUNT}
)
def max_variance(scores: Floats, n: int, threshold: float, rng: np.random.Generator) -> Ints:
    """The i best and the n - i worst, for the i at which scores vary most (PODS, arXiv 2504.13818). Ties between
    samples are broken by chance, ties between values of i towards half and half."""
    shuffled = rng.permutation(len(scores))
    order = shuffled[np.argsort(scores[shuffled], kind="stable")]
    ranked = scores[order]
    sums, squares = (np.concatenate([[0.0], np.cumsum(v)]) for v in (ranked, ranked**2))
    best = np.arange(n + 1)
    worst = n - best

    def total(cumulative: Floats) -> Floats:
        return cumulative[worst] + cumulative[-1] - cumulative[len(ranked) - best]

    variance = total(squares) / n - (total(sums) / n) ** 2
    near_best = np.flatnonzero(variance >= variance.max() - 1e-12)
    i = int(near_best[np.argmin(np.abs(near_best - n / 2))])
    return np.concatenate([order[: n - i], order[len(order) - i :]])


@SELECTIONS.add("best_random", lacks={Need.FAIR_OUTCOMES: "prefers the best of a pool"}, traits={Trait.BEST_AND_FAIR})
def best_random(scores: Floats, n: int, threshold: float, rng: np.random.Generator) -> Ints:
    """The best sample, ties by chance, and n - 1 random others (PF-PPO's best-random filter, arXiv 2409.06957; its
    code has n = 2 and takes the first of the best)."""
    best = int(rng.choice(np.flatnonzero(scores == scores.max())))
    return np.concatenate([[best], rng.permutation(np.delete(np.arange(len(scores)), best))[: n - 1]])


@SELECTIONS.add("all", lacks={Need.ONE_GROUP_SIZE: "trains every rollout drawn"}, traits={Trait.OUTCOMES_BY_COUNT})
def everything(scores: Floats, n: int, threshold: float, rng: np.random.Generator) -> Ints:
    """The whole pool, whatever its size (Reinforce-Ada, Algorithm 1)."""
    return np.arange(len(scores))
