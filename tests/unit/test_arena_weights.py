"""Weights that are measured in training: they are those of the enumeration, and controls really have them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from openrlhf_ada.arena import agreement, real, weights
from openrlhf_ada.arena.campaign import made_with
from openrlhf_ada.arena.learner import Answers, Learner, warm_start
from openrlhf_ada.arena.methods import ENUMERATED, MEASURED, METHODS, PUBLISHED, check_flags
from openrlhf_ada.arena.tasks import TASKS, World, make_world
from openrlhf_ada.arena.trial import Trial
from openrlhf_ada.arena.weights import Visits, joined, measured, measured_weight, tabulated, visits, weights_of
from openrlhf_ada.cli.arena import main
from openrlhf_ada.config.schema import MATCHED
from openrlhf_ada.config.settings import matched


class Frozen(Learner):
    """Its pass rates stay."""

    def train(
        self, answers: Answers, index: Sequence[int], coefficients: Sequence[float], passes: int = 1, parts: int = 1
    ) -> None:
        pass


@cache
def started() -> tuple[World, dict[str, torch.Tensor]]:
    torch.set_num_threads(1)
    world = make_world(TASKS["graded"], 0)
    return world, warm_start(world, 0)


def seen(method: str, budget: int = 24_000) -> Visits:
    learner = Frozen(*started(), 1e-3, 0)
    return visits(learner, Trial(learner, METHODS[method], 128, 0), budget)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pods", "maxrl", "dapo"])
def test_measured_weight_is_the_enumerated_one(method: str) -> None:
    """Up to a factor, which no optimiser here sees. `dapo` replaces prompts: that is a factor as well."""
    table, exact = tabulated(method, seen(method)), matched(MATCHED + method)
    ratios = np.array([table.weight(p) / exact.weight(p) * exact.weight(0.5) for p in table.rates])
    assert len(ratios) > 8
    assert np.median(np.abs(ratios - 1)) < 0.06 and np.abs(ratios - 1).max() < 0.3


@pytest.mark.slow
def test_control_has_the_weight_that_was_measured() -> None:
    """Once its counts know the pass rates: these are of a few visits, so the extremes are smoothed."""
    late = visits_after(20_000, "uniform-8-as-sgpo", 40_000)
    table, exact = tabulated("uniform-8-as-sgpo", late), measured_weight("sgpo", "graded")
    for p, tolerance in ((0.1, 0.35), (0.3, 0.2), (0.7, 0.2), (0.9, 0.35)):
        assert table.weight(p) == pytest.approx(exact.weight(p), rel=tolerance)


def visits_after(before: int, method: str, budget: int) -> Visits:
    learner = Frozen(*started(), 1e-3, 0)
    trial = Trial(learner, METHODS[method], 128, 0)
    visits(learner, trial, before)
    return visits(learner, trial, budget)


def test_weight_is_that_of_all_prompts_trained_or_not() -> None:
    """Two prompts of p = 0.25, of which one is trained: (C+ / p + C- / (1 - p)) / 2."""
    both = Visits(*(np.array(column) for column in ([0.25, 0.25], [1.5, 0.0], [0.3, 0.0], [2, 0], [2, 0], [1, 0])))
    assert both.weight(np.array([True, True])) == pytest.approx((1.5 / 0.25 + 0.3 / 0.75) / 2)
    assert np.isnan(both.weight(np.array([False, True])))


def test_too_few_outcomes_make_no_table() -> None:
    few = Visits(*(np.full(8, value) for value in (0.5, 1.0, 1.0, 2.0, 2.0, 1.0)))
    with pytest.raises(ValueError, match="fewer than two ranges with 200 right and wrong answers: train for longer"):
        tabulated("few", joined([few, few]))


def test_prompts_that_cannot_be_solved_are_in_no_range() -> None:
    """They have no gradient, and would make the lowest weight smaller."""
    rates = np.repeat([0.0, 0.2, 0.5, 0.8], 100)
    outcomes = np.where(rates > 0, 4.0, 0.0)
    table = tabulated("some", Visits(rates, rates, 1 - rates, outcomes, outcomes, np.ones(400)))
    assert table.rates == pytest.approx((0.2, 0.5, 0.8)) and table.weights == pytest.approx((1.0, 1.0, 1.0))


def test_every_published_method_has_a_control_or_a_nearly_flat_weight() -> None:
    """GVM-RAFT and RAFT train right answers alone: `raft-8-twice` and `raft-twice` are their controls."""
    flat = set(PUBLISHED) - {*ENUMERATED, *MEASURED, "raft", "gvm"}
    assert flat == {"vip", "cures", "mopps", "vade", "mmr1", "greso", "prime-rl-pools"}
    for method in flat:
        for task in weights_of(method):
            found = [measured_weight(method, task).weight(p) for p in (0.1, 0.2, 0.3, 0.5, 0.6, 0.7)]
            assert min(found) > 0.7 and max(found) < 1.35, (method, task)


def test_task_without_a_measured_weight_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--methods", "uniform-8-as-hora", "--tasks", "graded,many", "--out", str(tmp_path)]) == 2
    says = "--methods uniform-8-as-hora --tasks many: the weight of hora was measured on graded, hard only"
    assert says in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_results_of_another_table_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder says which weights its trials were made with, and packed results do too."""
    before, others = made_with("uniform-8-as-hora"), made_with("uniform-8-counts")
    changed = {task: dict(tables) for task, tables in measured().items()}
    changed["hard"]["hora"] = changed["hard"]["sgpo"]
    monkeypatch.setattr(weights, "measured", lambda: changed)
    after = made_with("uniform-8-as-hora")
    assert {name for name in before if before[name] != after[name]} == {"measured weight"}
    assert made_with("uniform-8-counts") == others


def test_real_stack_has_no_measured_weights() -> None:
    says = "--methods uniform-8-as-hora: the weight of hora was measured and has no flag"
    with pytest.raises(ValueError, match=says):
        real.check(["uniform-4", "uniform-8-as-hora"], 3, 6144, 1e-4, None)
    with pytest.raises(ValueError, match=says):
        agreement.check(["uniform-8-as-hora"], 3, agreement.Conditions())
    check_flags(["uniform-8-as-dapo"])
