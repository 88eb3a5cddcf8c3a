"""Carriers of the method: what was sampled, what is trained, what it cost.

Scalars only: no tokens, text or tensors. The plumbing keeps those and refers to a sample by `(prompt key, index)`.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats, Ints, Bools = NDArray[np.float64], NDArray[np.int64], NDArray[np.bool_]

PromptKey: TypeAlias = int
"""Identity of one prompt *visit*: unique within a run, so the same dataset row seen twice has two keys."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished rollout.

    `score` in [0, 1] alone decides when to stop and what to keep; `reward`, which may be shaped, is what is trained.
    `index` is the position at dispatch (0, 1, 2, ...): the order in which rules read the pool, not that of arrival.
    `version`: policy version at its first token, that is the number of weight updates before it; `last_version`: at
    its last token, which is a later version only with partial rollouts. `score_norm`: see `least_noise.score_norm`;
    None where the engine gave no log-probabilities.
    """

    key: PromptKey
    index: int
    score: float
    reward: float
    num_tokens: int
    version: int = 0
    last_version: int = 0
    score_norm: float | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.score <= 1.0:
            raise ValueError(
                f"sample {self.index} of prompt {self.key} has score {self.score!r}: return 'scores' in [0, 1] from "
                f"reward_func next to 'rewards'"
            )
        if not math.isfinite(self.reward):
            raise ValueError(
                f"sample {self.index} of prompt {self.key} has reward {self.reward!r}: return finite 'rewards' from "
                f"reward_func, as one such value would spoil the baseline of its whole group"
            )


class PromptPool:
    """All samples drawn for one prompt visit, in index order whatever the order of arrival.

    Known before sampling: `row`, the prompt's stable identity (position in the training set); `critic_value`, what a
    critic gives it; `predicted`, the pass rate that the policy goes by, and `strength`, the rollouts that it is
    worth; `quota`, what a split gave to the prompt whose place this one takes, or None. Known when it is built, or
    None: `evidence`, what the trained samples say of the baseline's factor: norms of score vectors, rewards and
    baselines, the latter two times their weights, shape (3, k). Samples are kept in columns: with 100,000 prompts
    open, objects would take several times the memory.
    """

    __slots__ = ("_counts", "_values", "critic_value", "evidence", "key", "predicted", "quota", "row", "strength")

    def __init__(self, key: PromptKey, samples: Iterable[Sample] = (), *, row: int = 0) -> None:
        self.key = key
        self.row = row
        self.critic_value: float | None = None
        self.predicted: float | None = None
        self.strength = 1.0
        self.quota: int | None = None
        self.evidence: Floats | None = None
        self._values = array("d")  # score, reward, norm of the score vector (NaN: unknown), ...
        self._counts = array("i")  # num_tokens, version, last_version, ...
        self.add(samples)

    def add(self, samples: Iterable[Sample]) -> None:
        """Append samples, all or none; raises ValueError on a foreign key, a repeated index or a gap."""
        ordered = sorted(samples, key=lambda s: s.index)
        for expected, sample in enumerate(ordered, start=len(self)):
            if sample.key != self.key:
                raise ValueError(f"sample of prompt {sample.key} offered to the pool of prompt {self.key}")
            if sample.index != expected:
                raise ValueError(f"pool of prompt {self.key}: expected index {expected}, got {sample.index}")
        norms = [math.nan if s.score_norm is None else s.score_norm for s in ordered]
        rows = zip(ordered, norms, strict=True)
        self._values += array("d", [value for s, norm in rows for value in (s.score, s.reward, norm)])
        self._counts += array(
            "i", [count for s in ordered for count in (s.num_tokens, s.version, s.last_version)]
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self._values) // 3

    @property
    def scores(self) -> np.ndarray:
        """float64, shape (N,), a copy."""
        return np.array(self._values[::3])

    @property
    def rewards(self) -> np.ndarray:
        """float64, shape (N,), a copy."""
        return np.array(self._values[1::3])

    @property
    def score_norms(self) -> np.ndarray:
        """float64, shape (N,), a copy; NaN where unknown."""
        return np.array(self._values[2::3])

    def count_positives(self, threshold: float) -> int:
        """Samples whose score exceeds `threshold`."""
        return sum(score > threshold for score in self._values[::3])

    @property
    def samples(self) -> list[Sample]:
        """The samples as objects, in index order."""
        counts = (self._counts[start::3] for start in range(3))
        norms = [None if math.isnan(norm) else norm for norm in self._values[2::3]]
        columns = zip(self._values[::3], self._values[1::3], *counts, norms, strict=True)
        return [Sample(self.key, i, *values) for i, values in enumerate(columns)]


@dataclass(frozen=True, slots=True)
class RewardScale:
    """The mean reward of a negative and of a positive."""

    negative: float = 0.0
    positive: float = 1.0


@dataclass(frozen=True, slots=True)
class TrainingGroup:
    """What is trained for one prompt: sample indices (ascending) and one coefficient per kept sample.

    A coefficient is weight x advantage, ready to multiply the policy gradient. `critic_weights` are the stratum
    factors (N_c/N)/(k_c/n) that make a critic trained on the kept samples learn the pool's mean (design: PPO).
    `resolved`: the pool shows more than one outcome (its scores differ).
    """

    key: PromptKey
    indices: tuple[int, ...]
    coefficients: tuple[float, ...]
    critic_weights: tuple[float, ...]
    resolved: bool

    def __post_init__(self) -> None:
        if not len(self.indices) == len(self.coefficients) == len(self.critic_weights):
            raise ValueError(f"group of prompt {self.key}: indices, coefficients and weights differ in length")

    def only(self, is_kept: Sequence[bool]) -> TrainingGroup:
        """The group with these of its samples."""
        parts = (self.indices, self.coefficients, self.critic_weights)
        indices, coefficients, weights = (tuple(compress(part, is_kept)) for part in parts)
        return replace(self, indices=indices, coefficients=coefficients, critic_weights=weights)


@dataclass(slots=True)
class Tally:
    """A number of rollouts and of their tokens."""

    rollouts: int = 0
    tokens: int = 0

    def add(self, num_tokens: int) -> None:
        """One rollout more."""
        self.rollouts += 1
        self.tokens += num_tokens

    @property
    def mean(self) -> float:
        """Tokens of a rollout; 0 before the first."""
        return self.tokens / max(self.rollouts, 1)


@dataclass(slots=True)
class Waste:
    """Rollouts that were sent and entered no pool.

    `surplus` finished but were not needed, `stopped` were aborted before their end, `failed` got no score, `lost` died
    with their engine (their tokens are not known).
    """

    surplus: Tally = field(default_factory=Tally)
    stopped: Tally = field(default_factory=Tally)
    failed: Tally = field(default_factory=Tally)
    lost: Tally = field(default_factory=Tally)

    @property
    def total(self) -> Tally:
        parts = (self.surplus, self.stopped, self.failed, self.lost)
        return Tally(sum(part.rollouts for part in parts), sum(part.tokens for part in parts))


@dataclass(slots=True)
class Ledger:
    """Every sample drawn is accounted for, in rollouts and in tokens: drawn = kept + unused + aborted."""

    drawn: int = 0
    kept: int = 0
    unused: int = 0
    aborted: int = 0
    drawn_tokens: int = 0
    kept_tokens: int = 0
    unused_tokens: int = 0
    aborted_tokens: int = 0

    def record_group(self, pool: Sequence[Sample], kept: Iterable[int]) -> None:
        """Account for one closed pool; `kept` are the indices that are trained."""
        kept_set = set(kept)
        for sample in pool:
            self.drawn += 1
            self.drawn_tokens += sample.num_tokens
            if sample.index in kept_set:
                self.kept += 1
                self.kept_tokens += sample.num_tokens
            else:
                self.unused += 1
                self.unused_tokens += sample.num_tokens

    def record_waste(self, waste: Waste) -> None:
        """Account for what entered no pool, all of it as aborted."""
        total = waste.total
        self.drawn += total.rollouts
        self.aborted += total.rollouts
        self.drawn_tokens += total.tokens
        self.aborted_tokens += total.tokens

    def check(self, *, drawn: int) -> None:
        """Raise RuntimeError unless the sums balance and match `drawn`, counted independently at dispatch."""
        if self.drawn != drawn:
            raise RuntimeError(f"ledger: {drawn} samples were dispatched but {self.drawn} are accounted for")
        if self.drawn != self.kept + self.unused + self.aborted:
            raise RuntimeError(f"ledger does not balance: {self}")
        if self.drawn_tokens != self.kept_tokens + self.unused_tokens + self.aborted_tokens:
            raise RuntimeError(f"ledger does not balance in tokens: {self}")
