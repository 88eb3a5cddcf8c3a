"""Effective weights, enumerated and measured in training, and controls that really have them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
import torch

from benchmarks.arena import learner as arena_learner
from benchmarks.arena import weights as arena_weights
from benchmarks.arena.campaign import made_with
from benchmarks.arena.learner import Learner, WarmUp, pass_rates, warm_start
from benchmarks.arena.measured_weights import Given, given, joined, tabulated
from benchmarks.arena.methods import METHODS, OF_PRESET, PUBLISHED
from benchmarks.arena.page import CONTROLS
from benchmarks.arena.tasks import TASKS, World, make_world
from benchmarks.arena.trial import Trial
from benchmarks.arena.weights import ENUMERATED, effective_weight_of, tables
from openrlhf_ada.core.objectives import TabulatedObjective


class Frozen(Learner):
    """Its pass rates stay."""

    def train(self, *_: object) -> None:
        pass


@cache
def started() -> tuple[World, dict[str, torch.Tensor]]:
    world = make_world(TASKS["graded"], 0)
    return world, warm_start(world, 0)


def measured(method: str) -> TabulatedObjective:
    """With a budget of the arena."""
    learner = Frozen(*started(), 1e-3, 0)
    return tabulated(method, given(learner, Trial(learner, METHODS[method], 128, 0), 24_000))


def errors(found: TabulatedObjective, expected: TabulatedObjective) -> np.ndarray:
    """Of the ratio at each rate of the table. A factor in common is seen by no optimiser here."""
    ratios = [found.weight(p) * expected.weight(0.5) / expected.weight(p) for p in found.rates]
    return np.abs(np.array(ratios) - 1)


@pytest.mark.long
@pytest.mark.parametrize("method", ["pods", "dapo"])
def test_measured_weight_is_the_enumerated_one(method: str) -> None:
    """`dapo` replaces prompts: with the same policy that is a factor in common."""
    found = errors(measured(method), effective_weight_of(method, "graded"))
    assert len(found) > 8 and np.median(found) < 0.06 and found.max() < 0.3


@pytest.mark.long
def test_control_has_the_weight_from_the_first_step_on() -> None:
    found = errors(measured("weighed-as-sgpo"), effective_weight_of("sgpo", "graded"))
    assert len(found) > 8 and np.median(found) < 0.06 and found.max() < 0.3


def test_control_is_uniform_sampling_but_for_the_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rollouts, and every group's coefficients times f' at its own pass rate."""
    weight, world = effective_weight_of("maxrl", "graded"), make_world(TASKS["graded"], 0)
    monkeypatch.setattr(arena_learner, "WARM_UP", WarmUp(100, 128, 3e-3))
    weights = warm_start(world, 0)
    first: dict[str, list[tuple[float, ...]]] = {}
    for name in ("uniform-8", "weighed-as-maxrl"):
        learner = Frozen(world, weights, 1e-3, 0)
        groups = Trial(learner, METHODS[name], 32, 0).step()
        first[name] = [group.coefficients for _, group in groups]
        rates = true_rates(learner, [pool.row for pool, _ in groups])
    for plain, weighed, p in zip(first["uniform-8"], first["weighed-as-maxrl"], rates, strict=True):
        assert weighed == pytest.approx(tuple(c * weight.weight(p) for c in plain))


def true_rates(learner: Learner, rows: Sequence[int]) -> list[float]:
    return pass_rates(learner.model, learner.world.train)[list(rows)].tolist()


def test_weight_is_that_of_all_prompts_trained_or_not() -> None:
    """Half of these prompts are never chosen. The others, of p = 0.03, have the weight 1."""
    rates = np.array([1e-6, 0.03] * 100)
    chosen = (rates > 0.01).astype(np.float64)
    seen = Given(rates, chosen * rates, np.zeros(200), chosen, chosen)
    assert seen.weight(np.ones(200, dtype=bool)) == pytest.approx(1.0, rel=1e-4)
    one = Given(*(np.array([value], dtype=np.float64) for value in (0.25, 1.5, 0.3, 2.0, 2.0)))
    assert one.weight(np.array([True])) == pytest.approx(1.5 / 0.25 + 0.3 / 0.75)


def test_too_few_outcomes_make_no_table() -> None:
    few = Given(*(np.full(8, value, dtype=np.float64) for value in (0.5, 1.0, 1.0, 2.0, 2.0)))
    with pytest.raises(ValueError, match="fewer than two ranges with 200 right and wrong answers: train for longer"):
        tabulated("few", joined([few, few]))


def test_prompts_that_cannot_be_solved_are_in_no_range() -> None:
    """They have no gradient, and would make the lowest weight smaller."""
    rates = np.repeat([0.0, 0.2, 0.5, 0.8], 100)
    outcomes = np.where(rates > 0, 4.0, 0.0)
    table = tabulated("some", Given(rates, rates, 1 - rates, outcomes, outcomes))
    assert table.rates == pytest.approx((0.2, 0.5, 0.8)) and table.weights == pytest.approx((1.0, 1.0, 1.0))


def test_every_published_method_has_a_control_of_its_weight() -> None:
    """RAFT draws as many rollouts of every prompt, so it needs none."""
    assert CONTROLS.keys() == {"pos", "balance", "est", *PUBLISHED} - {"raft"}
    assert all(OF_PRESET[preset] == name for name, preset in ENUMERATED.items())
    for of_task in tables().values():
        assert of_task.keys() == CONTROLS.keys() - ENUMERATED.keys()


def test_results_of_another_weight_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results say which weights their trials were made with, by task."""
    before = {task: made_with("weighed-as-hora", task) for task in ("graded", "hard")}
    changed = {task: dict(of_task) for task, of_task in tables().items()}
    changed["hard"]["hora"] = changed["hard"]["sgpo"]
    monkeypatch.setattr(arena_weights, "tables", lambda: changed)
    after = {task: made_with("weighed-as-hora", task) for task in before}
    assert after["graded"] == before["graded"]
    assert {name for name in before["hard"] if before["hard"][name] != after["hard"][name]} == {"weight"}
