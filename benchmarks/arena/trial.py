"""One run of one method on one task: the package's own policies, pools and coefficients, with a small model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from benchmarks.arena.costs import COSTS
from benchmarks.arena.drawn import Batch, Drawn
from benchmarks.arena.learner import Learner, pass_rates, score_norms
from benchmarks.arena.measures import Counts, measured
from benchmarks.arena.methods import Method
from benchmarks.arena.peers.base import Chooser, Hooks, PeerPolicy
from benchmarks.arena.weights import effective_weight_of
from openrlhf_ada.config.choosing import make_chooser
from openrlhf_ada.core.least_noise import LeastNoiseFactor
from openrlhf_ada.core.policies import Draw, Policy
from openrlhf_ada.core.types import PromptPool, Sample, TrainingGroup

REFILL_LIMIT = 3
"""A step is given up after so many times its number of prompts."""

THRESHOLD = 0.5

MARKS = 40
"""Measurements of a run that counts, evenly over its budget."""


@dataclass(slots=True)
class Spent:
    """What a run has used. `tokens`: of answers; `trained`: rollouts that the policy computes, in each pass.

    `batches`: [prompts, rollouts] of each wave of each batch of prompts of a step, summed over steps. The second batch
    and later ones are those that replace prompts.
    """

    steps: int = 0
    rollouts: int = 0
    tokens: int = 0
    trained: int = 0
    trained_tokens: int = 0
    batches: list[list[list[int]]] = field(default_factory=list[list[list[int]]])

    def add_wave(self, batch: int, wave: int, prompts: int, rollouts: int) -> None:
        """Count one wave. `batch`, `wave`: which of the step, and which of that batch, from 0."""
        while len(self.batches) <= batch:
            self.batches.append([])
        waves = self.batches[batch]
        if wave == len(waves):
            waves.append([0, 0])
        waves[wave][0] += prompts
        waves[wave][1] += rollouts
        self.rollouts += rollouts


@dataclass(frozen=True, slots=True)
class Curve:
    """`spent` and exact held-out `accuracy` at each measurement."""

    spent: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    accuracy: list[float] = field(default_factory=list[float])

    def add(self, spent: Spent, accuracy: float) -> None:
        self.spent.append(asdict(spent))
        self.accuracy.append(accuracy)


class Trial:
    """Trains `learner` by `method`, `prompts` of them in a step, until a budget is spent."""

    def __init__(self, learner: Learner, method: Method, prompts: int, seed: int) -> None:
        self._learner, self._method, self._prompts = learner, method, prompts
        settings = method.settings(prompts)
        task = learner.world.task.name
        self._weight = None if method.weight_of is None else effective_weight_of(method.weight_of, task)
        self._skips_zeros = settings.skips_zeros
        rows = len(learner.world.train)
        self._policy: Policy = method.start(prompts, rows, seed)
        own = self._policy if isinstance(self._policy, PeerPolicy) else None
        self._hooks: Hooks = own or Hooks()
        self._chooser: Chooser = own.chooser if own else make_chooser(settings, self._policy, rows, seed)
        self._going_on: list[PromptPool] = []
        self._carried = Drawn()
        self._late: Batch | None = None
        self._rng = np.random.default_rng([seed, 4])
        self._key = 0
        self._used = 0.0
        self.factor = LeastNoiseFactor()
        self.spent = Spent()

    def run(self, budget: int, cost: str = "rollouts", marks: int = MARKS) -> Curve:
        """Measured before the first step and `marks` times after it. `budget`: of this cost."""
        curve = Curve()
        for mark in range(marks + 1):
            self.spend(budget * mark / marks, cost)
            curve.add(self.spent, self.accuracy())
        return curve

    def spend(self, limit: float, cost: str) -> None:
        """Go on until so much is spent in all; a trial is run with one cost."""
        while self._used < limit:
            before = asdict(self.spent)
            self.step()
            earlier, now = COSTS[cost]([before, asdict(self.spent)])
            self._used += now - earlier

    @property
    def waiting(self) -> int:
        """Rollouts that are not trained yet, and may be in a later step."""
        late = self._late.pools if self._late else []
        return sum(len(pool) for pool in (*self._going_on, *late))

    def accuracy(self) -> float:
        """On held-out prompts."""
        return float(pass_rates(self._learner.model, self._learner.world.held_out).mean())

    def measured(self) -> tuple[dict[str, float], Counts]:
        """See measures.py."""
        return measured(self._learner.model, self._learner.world)

    def step(self) -> list[tuple[PromptPool, TrainingGroup]]:
        """Sample, and train what is returned: each prompt's rollouts, and which of them with which coefficients."""
        batch = self._sampled_batch()
        if self._hooks.late:
            batch, self._late = self._late, batch
        if batch is not None:
            self._train(batch)
        self.spent.steps += 1
        return [] if batch is None else list(zip(batch.trained, batch.groups, strict=True))

    def _sampled_batch(self) -> Batch:
        drawn, self._carried = self._carried, Drawn()
        pools = self._sampled(self._prompts, drawn, batch=0)
        self._carried = drawn.only([pool.key for pool in self._going_on])
        trained = pools
        if self._method.refill:
            pools, trained = self._refilled(pools, drawn)
        built = [self._policy.build(pool, self._rng) for pool in trained]
        groups = [_weighed(group, w) for group, w in zip(built, self._weights(trained), strict=True)]
        return Batch(self._learner, drawn, pools, trained, groups)

    def _train(self, batch: Batch) -> None:
        method, drawn, index = self._method, batch.drawn, batch.index
        coefficients = self._shaped(drawn, batch.groups, index)
        self._hooks.before_training(batch)
        self._learner.train(
            drawn.answers(),
            index,
            coefficients,
            method.epochs,
            method.updates,
            method.wrong_epochs,
            drawn.log_probs,
            method.clip,
        )
        self._hooks.after_training(batch)
        self._policy.observe(batch.pools)
        self._chooser.end_step(batch.pools)
        for epoch in range(method.epochs):
            late = method.wrong_epochs is not None and epoch >= method.wrong_epochs
            weights = np.maximum(coefficients, 0.0) if late else np.array(coefficients)
            computed = [i for i, c in zip(index, weights, strict=True) if c or not self._skips_zeros]
            self.spent.trained += len(computed)
            self.spent.trained_tokens += int(drawn.answers().num_tokens[computed].sum())

    def _shaped(self, drawn: Drawn, groups: Sequence[TrainingGroup], index: Sequence[int]) -> list[float]:
        """The coefficients; by the outcome, or with the factor of least noise, where the method has them."""
        coefficients = self._hooks.shaped(np.array([c for group in groups for c in group.coefficients]))
        if self._method.by_outcome is not None:
            return np.where(drawn.answers().right.numpy()[index], *self._method.by_outcome).tolist()
        if self._method.least_noise:
            answers, factor = drawn.answers(), self.factor.value
            rewards = answers.scores.numpy()[index]
            baselines = rewards - coefficients
            self.factor.observe(score_norms(self._learner.token_log_probs(answers))[index], rewards, baselines)
            coefficients = rewards - factor * baselines
        return coefficients.tolist()

    def _weights(self, pools: Sequence[PromptPool]) -> list[float]:
        """Of each prompt: another method's f' at the pass rate that it is sampled with, or 1."""
        if self._weight is None:
            return [1.0] * len(pools)
        rates = pass_rates(self._learner.model, self._learner.world.train, [pool.row for pool in pools])
        return [self._weight.weight(p) for p in rates.tolist()]

    def _refilled(self, pools: list[PromptPool], drawn: Drawn) -> tuple[list[PromptPool], list[PromptPool]]:
        """(all pools, as many with two outcomes as a step has prompts), or fewer at REFILL_LIMIT."""
        wanted, batch = self._prompts, 1
        while sum(map(self._is_trainable, pools)) < wanted and len(pools) < REFILL_LIMIT * wanted:
            missing = wanted - sum(map(self._is_trainable, pools))
            pools = pools + self._sampled(missing, drawn, batch)
            batch += 1
        return pools, [pool for pool in pools if self._is_trainable(pool)][:wanted]

    def _is_trainable(self, pool: PromptPool) -> bool:
        """Has it two outcomes, and enough samples for a group? A gate ends some before that."""
        return has_signal(pool) and len(pool) >= self._method.n

    def _sampled(self, count: int, drawn: Drawn, batch: int) -> list[PromptPool]:
        """The next prompts' closed pools, in waves as the policy decides; first those that go on."""
        chosen = self._chooser.take(count - len(self._going_on))
        pools = self._going_on + [PromptPool(self._key + i, row=choice.row) for i, choice in enumerate(chosen)]
        self._key += len(chosen)
        still_open = {pool.key: pool for pool in pools}
        wave_number = 0
        while still_open:
            actions = self._policy.decide(list(still_open.values()))
            wave = [action for action in actions if isinstance(action, Draw)]
            for action in actions:
                if not isinstance(action, Draw):
                    del still_open[action.key]
            if wave:
                self._draw(wave, still_open, drawn)
                self.spent.add_wave(batch, wave_number, len(wave), sum(draw.count for draw in wave))
                wave_number += 1
        self._going_on = [pool for pool in pools if self._hooks.goes_on(pool)]
        return [pool for pool in pools if pool not in self._going_on]

    def _draw(self, wave: Sequence[Draw], pools: dict[int, PromptPool], drawn: Drawn) -> None:
        answers = self._learner.sample([pools[draw.key].row for draw in wave for _ in range(draw.count)])
        scores, lengths, version = answers.scores.tolist(), answers.num_tokens.tolist(), self.spent.steps
        at = 0
        for draw in wave:
            pool, start = pools[draw.key], len(pools[draw.key])
            pool.add(
                Sample(draw.key, start + i, scores[at + i], scores[at + i], lengths[at + i], version, version)
                for i in range(draw.count)
            )
            drawn.places.setdefault(draw.key, []).extend(range(drawn.size + at, drawn.size + at + draw.count))
            at += draw.count
        drawn.add(answers, self._learner.token_log_probs(answers) if self._hooks.keeps_log_probs else None)
        self.spent.tokens += sum(lengths)


def _weighed(group: TrainingGroup, weight: float) -> TrainingGroup:
    return replace(group, coefficients=tuple(weight * c for c in group.coefficients))


def has_signal(pool: PromptPool) -> bool:
    """Has it two outcomes?"""
    return 0 < pool.count_positives(THRESHOLD) < len(pool)
