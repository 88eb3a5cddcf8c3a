"""The trap of a public report (marin-community/marin#8765), with the arena's model: an adaptive sampler left a bin of
prompts at a pass rate of 0.000 that uniform sampling raised to 0.891.

A quarter of the prompts ask for functions of their own, which no other prompt teaches. They are never right until the
other prompts are right in 6 of 10 rollouts. A sampler that has seen them all wrong by then must look again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from benchmarks.arena import learner
from benchmarks.arena.learner import Learner, WarmUp, pass_rates, warm_start
from benchmarks.arena.methods import METHODS, Method
from benchmarks.arena.tasks import PAD, Task, World, make_world
from benchmarks.arena.trial import Trial
from openrlhf_ada.core.choice import Choice
from openrlhf_ada.core.types import PromptPool

pytestmark = pytest.mark.long

FUNCTIONS, HARD = 16, 4
ROLLOUTS, RATE, PROMPTS = 40_000, 2e-3, 16
OPENS_AT = 0.6


@dataclass(frozen=True)
class Trap:
    """`is_hard`: of training rows. `hidden`: their right answers."""

    world: World
    weights: dict[str, torch.Tensor]
    is_hard: NDArray[np.bool_]
    hidden: NDArray[np.int64]


@pytest.fixture(scope="module")
def trap() -> Iterator[Trap]:
    task = Task("trap", "", (0.3, 0.7), {2: 1.0}, num_functions=FUNCTIONS, num_train=128, num_held_out=32)
    world = make_world(task, 0)
    world = replace(world, skills=np.where(np.arange(FUNCTIONS) < HARD, 0.3, 0.7))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learner, "WARM_UP", WarmUp(200, 256, 3e-3))
        weights = warm_start(world, 0)
    is_hard = world.train.function < HARD
    yield Trap(world, weights, is_hard, world.train.answers.copy())


class BinsByThompson:
    """Draws for each bin, easy and hard, how often its groups have two outcomes, and samples the bin of the larger
    draw. Counts never fade, as in samplers that believe what they once saw."""

    def __init__(self, is_hard: NDArray[np.bool_]) -> None:
        self._rows = [np.flatnonzero(~is_hard), np.flatnonzero(is_hard)]
        self._is_hard, self._rng = is_hard, np.random.default_rng(0)
        self._telling, self._groups = np.zeros(2), np.zeros(2)

    def take(self, count: int) -> list[Choice]:
        draws = self._rng.beta(1 + self._telling, 1 + self._groups - self._telling)
        return [Choice(int(row)) for row in self._rng.choice(self._rows[int(draws.argmax())], count, replace=False)]

    def end_step(self, pools: Sequence[PromptPool]) -> None:
        for pool in pools:
            of_bin = int(self._is_hard[pool.row])
            self._groups[of_bin] += 1
            self._telling[of_bin] += 0 < pool.count_positives(0.5) < len(pool)


class TheBest:
    """Takes the prompts of the largest expected spread, out of four times as many, by counts that never fade and
    without drawing: nothing makes it look again."""

    def __init__(self, is_hard: NDArray[np.bool_]) -> None:
        self._rng = np.random.default_rng(0)
        self._positives, self._drawn = np.zeros(len(is_hard)), np.zeros(len(is_hard))

    def take(self, count: int) -> list[Choice]:
        rates = (self._positives + 1) / (self._drawn + 2)
        candidates = self._rng.permutation(len(rates))[: 4 * count]
        spread = rates[candidates] * (1 - rates[candidates])
        return [Choice(int(row)) for row in candidates[np.argsort(-spread, kind="stable")[:count]]]

    def end_step(self, pools: Sequence[PromptPool]) -> None:
        for pool in pools:
            self._positives[pool.row] += pool.count_positives(0.5)
            self._drawn[pool.row] += len(pool)


def chosen(name: str) -> Method:
    """The method on one in four prompts."""
    return replace(METHODS[name], ada=METHODS[name].ada | {"candidates": 4})


def final_rates(trap: Trap, method: Method, sampler: Any = None, seed: int = 0) -> tuple[float, float, int]:
    """(pass rate of the easy prompts, of the hard ones, visits of hard ones) after ROLLOUTS. `sampler`: chooses in the
    place of the method's own."""
    model = Learner(trap.world, trap.weights, RATE, seed)
    answers = trap.world.train.answers
    answers[trap.is_hard, 0] = PAD
    trial = Trial(model, replace(method, updates=1), PROMPTS, seed=seed)
    if sampler is not None:
        trial._chooser = sampler(trap.is_hard)
    visits, opened, observe = 0, False, trial._policy.observe

    def counted(pools: Sequence[PromptPool]) -> dict[str, float]:
        nonlocal visits
        visits += int(trap.is_hard[[pool.row for pool in pools]].sum())
        return observe(pools)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(trial._policy), "observe", lambda policy, pools: counted(pools))
        while trial.spent.rollouts < ROLLOUTS:
            trial.step()
            if not opened and trial.spent.steps % 10 == 0:
                opened = float(pass_rates(model.model, trap.world.train)[~trap.is_hard].mean()) > OPENS_AT
                answers[trap.is_hard] = trap.hidden[trap.is_hard] if opened else answers[trap.is_hard]
    assert opened
    rates = pass_rates(model.model, trap.world.train)
    return float(rates[~trap.is_hard].mean()), float(rates[trap.is_hard].mean()), visits


SEEDS = range(3)


def mean_rates(trap: Trap, method: Method, sampler: Any = None) -> tuple[float, float, float]:
    """Over seeds: one alone differs by a tenth from another."""
    easy, hard, visits = np.mean([final_rates(trap, method, sampler, seed) for seed in SEEDS], axis=0).tolist()
    return easy, hard, visits


@pytest.fixture(scope="module")
def uniform(trap: Trap) -> tuple[float, float, float]:
    return mean_rates(trap, METHODS["uniform-8"])


@pytest.mark.parametrize("sampler", [BinsByThompson, TheBest])
def test_sampler_that_does_not_look_again_falls_into_the_trap(
    trap: Trap, uniform: tuple[float, float, float], sampler: Any
) -> None:
    easy, hard, visits = mean_rates(trap, METHODS["uniform-8"], sampler)
    assert easy > 0.9 and uniform[1] > 0.7, "learnable by now"
    assert hard < 0.5 * uniform[1] and visits < 0.3 * uniform[2], "and hardly looked at"


CHOOSING = [METHODS[name] for name in ("choose-8-share", "greso")]


@pytest.mark.parametrize("method", CHOOSING, ids=lambda m: m.name)
def test_chosen_prompts_that_become_learnable_are_learned(
    trap: Trap, uniform: tuple[float, float, float], method: Method
) -> None:
    easy, hard, visits = mean_rates(trap, method)
    assert easy > 0.9 and hard > 0.75 * uniform[1]
    assert visits > 0.2 * uniform[2]
