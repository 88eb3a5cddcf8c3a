"""Rollouts for engines in virtual time: those of a recorded run, or synthetic ones."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from statistics import NormalDist

import numpy as np

from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.core.types import PromptKey, Sample
from openrlhf_ada.reporting.run_record import Run

PRIOR_STRENGTH = 2.0
"""Rollouts that the mean pass rate counts for in a prompt's own."""


@dataclass(frozen=True, slots=True)
class RecordedRollout:
    """Score in [0, 1], reward, and length in tokens."""

    score: float
    reward: float
    tokens: int


class RecordedRollouts:
    """A prompt's recorded rollouts in their order. Beyond them, or without `replay`, they are resampled.

    A resampled rollout is positive with the prompt's pass rate (posterior mean; the prior is the mean of all prompts).
    It is a copy of one of the prompt's own rollouts with that outcome, or of any prompt's if it has none. Which one
    depends only on the identity of the rollout.
    """

    def __init__(
        self,
        rollouts: Mapping[PromptKey, Sequence[RecordedRollout]],
        *,
        positive_above: float,
        replay: bool = True,
        seed: int = 0,
    ) -> None:
        self._rollouts = rollouts
        self._replay = replay
        self._threshold = positive_above
        self._seed = seed
        every = [rollout for of_prompt in rollouts.values() for rollout in of_prompt]
        if not every:
            raise ValueError("no rollout was recorded")
        self._by_outcome = {side: [r for r in every if self._is_positive(r) is side] for side in (False, True)}
        self._mean = len(self._by_outcome[True]) / len(every)

    def __call__(self, request: Request) -> Sample:
        recorded = self._rollouts[request.key]
        if self._replay and request.index < len(recorded):
            rollout = recorded[request.index]
        else:
            rollout = self._resample(recorded, np.random.default_rng([self._seed, request.key, request.index]))
        return Sample(request.key, request.index, rollout.score, rollout.reward, rollout.tokens)

    def _resample(self, recorded: Sequence[RecordedRollout], rng: np.random.Generator) -> RecordedRollout:
        positives = sum(map(self._is_positive, recorded))
        rate = (positives + PRIOR_STRENGTH * self._mean) / (len(recorded) + PRIOR_STRENGTH)
        side = bool(rng.random() < rate)
        similar = [rollout for rollout in recorded if self._is_positive(rollout) is side] or self._by_outcome[side]
        return similar[int(rng.integers(len(similar)))]

    def _is_positive(self, rollout: RecordedRollout) -> bool:
        return rollout.score > self._threshold


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """Rollouts of every prompt visit, by its key, in index order; `rows`: which rows of the data these are."""

    step: int
    rollouts: Mapping[PromptKey, Sequence[RecordedRollout]]
    rows: Mapping[PromptKey, int]

    def with_prompts(self, num_prompts: int, seed: int) -> RecordedStep:
        """A step of `num_prompts` prompts, drawn from these with replacement."""
        keys = list(self.rollouts)
        chosen = np.random.default_rng([seed, self.step]).integers(len(keys), size=num_prompts)
        return RecordedStep(
            self.step,
            {i: self.rollouts[keys[k]] for i, k in enumerate(chosen.tolist())},
            {i: self.rows[keys[k]] for i, k in enumerate(chosen.tolist())},
        )


def recorded_steps(run: Run) -> Iterator[RecordedStep]:
    """Raises ValueError where the run has no record of its rollouts."""
    found = False
    for step, samples in groupby(run.samples(), key=lambda sample: sample["step"]):
        found = True
        rollouts: dict[PromptKey, list[RecordedRollout]] = defaultdict(list)
        rows: dict[PromptKey, int] = {}
        for sample in samples:
            rollouts[sample["key"]].append(RecordedRollout(sample["metric"], sample["reward"], sample["tokens"]))
            rows[sample["key"]] = int(sample["prompt_id"])
        yield RecordedStep(step, rollouts, rows)
    if not found:
        raise ValueError(f"{run.run_dir} has no record of single rollouts: it was not made with --ada_mode seq or est")


@dataclass(frozen=True, kw_only=True)
class SyntheticRollouts:
    """Pass rates Beta(`alpha`, `beta`), or those of `rates`; lengths lognormal with this median, spread and longest,
    in tokens.

    `shared`: share of the variance of log-length that a prompt's rollouts have in common. Metric and reward are 1 or
    0. A rollout depends only on its identity.
    """

    alpha: float
    beta: float
    median: float
    spread: float
    longest: int
    shared: float = 0.0
    rates: tuple[float, ...] = ()
    seed: int = 0

    @property
    def mean(self) -> float:
        """Tokens of a rollout: the mean of a lognormal number that is cut at `longest`."""
        normal, ratio = NormalDist(), math.log(self.longest / self.median) / self.spread
        below = self.median * math.exp(self.spread**2 / 2) * normal.cdf(ratio - self.spread)
        return below + self.longest * (1.0 - normal.cdf(ratio))

    def __call__(self, request: Request) -> Sample:
        return self.visit(request, request.key)

    def visit(self, request: Request, row: int) -> Sample:
        """A rollout of prompt `row`, which may be visited more than once."""
        rate, common = _synthetic_prompt(self, row)
        rng = np.random.default_rng([self.seed, request.key, request.index])
        score = float(rng.random() < rate)
        own = math.sqrt(1.0 - self.shared) * float(rng.standard_normal())
        length = self.median * math.exp(common + self.spread * own)
        tokens = min(max(int(length), 1), self.longest)
        return Sample(request.key, request.index, score, score, tokens)


SYNTHETIC = SyntheticRollouts(alpha=1.5, beta=1.5, median=500.0, spread=0.9, longest=4096)
"""Pass rates of all sizes, and long answers: 730 tokens on average."""


@lru_cache(maxsize=1 << 20)
def _synthetic_prompt(of: SyntheticRollouts, row: int) -> tuple[float, float]:
    """(pass rate, the part of log-length that the prompt's rollouts share)."""
    # Shorter seeds are filled up with zeros: without the 1, this would be the stream of the first rollout.
    rng = np.random.default_rng([of.seed, row, 0, 1])
    rate = of.rates[int(rng.integers(len(of.rates)))] if of.rates else float(rng.beta(of.alpha, of.beta))
    return rate, of.spread * math.sqrt(of.shared) * float(rng.standard_normal())
