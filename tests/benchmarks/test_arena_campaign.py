"""Trials that are kept, skipped when resumed, tuned by one rule, and compared by what a target costs."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from benchmarks.arena.__main__ import main
from benchmarks.arena.campaign import (
    PROMPTS,
    RATES,
    RUNGS,
    Cell,
    Rung,
    Trials,
    check_folder,
    final_cells,
    run_cell,
    rung_cells,
    tuned,
)
from benchmarks.arena.costs import COSTS, MACHINES, budget_of
from benchmarks.arena.methods import METHODS, Method
from benchmarks.arena.statistics import corrected_tests, cost_to
from benchmarks.arena.tables import REFERENCE, Finals, finals_of, over_tasks

BUDGET = 2400
BEST = (1e-3, 16)
SEEDS = 6
UNITS = ("rollouts", *MACHINES)


def curve(*accuracy: float, prompts: int = 16) -> dict[str, list[object]]:
    """Measured every 300 rollouts, two tokens each; everything is trained."""
    spent = [
        {
            "steps": 300 * at / (8 * prompts),
            "rollouts": 300 * at,
            "tokens": 600 * at,
            "trained": 300 * at,
            "trained_tokens": 600 * at,
            "batches": [[[300 * at // 8, 300 * at]]],
        }
        for at in range(len(accuracy))
    ]
    return {"spent": list(spent), "accuracy": list(accuracy)}


def tuning_trial(results: Trials, task: str, method: str, setting: tuple[float, int], rung: Rung, pace: float) -> None:
    """With a budget of rollouts, and with those of seconds. The trial ends at 1200 rollouts in each case."""
    result = curve(*(0.1 + pace * at for at in range(5)), prompts=setting[1])
    for cost in UNITS:
        limit = budget_of(BUDGET // rung.part, cost)
        results.add(Cell(task, method, *setting, rung.seed, limit, cost), result)


def add_method(results: Trials, task: str, method: str, pace: float) -> None:
    """All trials of a method that learns `pace` per 300 rollouts with one setting, and with others nothing."""
    for rung in RUNGS:
        for setting in product(RATES, PROMPTS):
            tuning_trial(results, task, method, setting, rung, pace if setting == BEST else 0.0)
    for seed, cost in product(range(SEEDS), UNITS):
        cell = Cell(task, method, *BEST, seed, budget_of(BUDGET, cost), cost)
        results.add(cell, curve(*(0.1 + pace * at for at in range(5))))


@pytest.fixture
def results(tmp_path: Path) -> Trials:
    """`pos` learns twice as fast as `uniform-8`."""
    check_folder(tmp_path, [], [])
    found = Trials(tmp_path)
    for method, pace in ((REFERENCE, 0.1), ("pos", 0.2)):
        add_method(found, "graded", method, pace)
    return found


@pytest.mark.parametrize("cost", COSTS)
def test_best_setting_has_most_accuracy_on_the_tuning_worlds(cost: str, results: Trials) -> None:
    assert tuned(results, "graded", "pos", BUDGET, cost) == BEST
    cells = final_cells(results, ["graded"], [REFERENCE, "pos"], 3, BUDGET, cost)
    assert {(cell.rate, cell.prompts) for cell in cells} == {BEST} and len(cells) == 6


def test_every_rung_tries_the_best_of_the_one_before(results: Trials) -> None:
    tried = [rung_cells(results, ["graded"], ["pos"], BUDGET, "rollouts", at) for at in range(len(RUNGS))]
    assert [len(cells) for cells in tried] == [rung.tried for rung in RUNGS] == [len(RATES) * len(PROMPTS), 8, 3]
    for cells, rung in zip(tried, RUNGS, strict=True):
        assert {(cell.seed, cell.budget) for cell in cells} == {(rung.seed, BUDGET // rung.part)}
        assert BEST in {(cell.rate, cell.prompts) for cell in cells}


def test_tuning_follows_the_cost(tmp_path: Path) -> None:
    """Small steps learn most per rollout and take longest, so large steps learn most per second."""
    results = Trials(tmp_path)
    for rung in RUNGS:
        for rate, prompts in product(RATES, PROMPTS):
            pace = 0.1 / prompts**0.1 if rate == BEST[0] else 0.0
            tuning_trial(results, "graded", "pos", (rate, prompts), rung, pace)
    chosen = {cost: tuned(results, "graded", "pos", BUDGET, cost)[1] for cost in ("rollouts", "seconds")}
    assert chosen["rollouts"] == min(PROMPTS) and chosen["seconds"] > 32


def test_cost_is_read_between_measurements() -> None:
    assert cost_to(0.25, [0.1, 0.2, 0.3], [0, 100, 200]) == (pytest.approx(150), True)
    assert cost_to(0.9, [0.1, 0.2, 0.3], [0, 100, 200]) == (200, False)
    assert cost_to(0.1, [0.1, 0.2], [0, 100]) == (0, True)


@pytest.mark.parametrize("cost", ["rollouts", "tokens", "seconds"])
def test_twice_as_fast_costs_half(cost: str, results: Trials) -> None:
    finals = finals_of(results, "graded", ["pos"], SEEDS, BUDGET, cost)
    assert finals.target == pytest.approx(0.1 + 0.8 * 0.4)
    first, second = finals.rows.values()
    assert (first.method, second.method) == ("pos", REFERENCE)
    # Steps are whole, so seconds are not quite in proportion to rollouts.
    assert first.cost.mean == pytest.approx(0.5, rel=0.05) and second.cost.mean == 1.0
    assert (first.cost.low, first.cost.high) == pytest.approx((0.5, 0.5), rel=0.05)
    assert first.missed == 0 and first.final == pytest.approx(0.9)
    assert first.p == pytest.approx(2 / 2**SEEDS) and second.p is None


def test_trial_that_misses_counts_with_the_whole_budget(results: Trials) -> None:
    add_method(results, "graded", "est", 0.01)
    row = finals_of(results, "graded", ["est"], SEEDS, BUDGET, "rollouts").rows["est"]
    assert row.missed == SEEDS and row.cost.mean == pytest.approx(1 / 0.8)


def evenly(rollouts: dict[str, int], accuracy: float = 1.0) -> Finals:
    """Every method's accuracy rises evenly from 0 to `accuracy` over so many rollouts."""
    runs = {
        name: [
            {
                "spent": [{"rollouts": drawn * at // 10} for at in range(11)],
                "accuracy": [accuracy * at / 10 for at in range(11)],
            }
            for _ in range(4)
        ]
        for name, drawn in rollouts.items()
    }
    return Finals("graded", "rollouts", dict.fromkeys(rollouts, (1e-3, 8)), runs)


COSTS_OF = {REFERENCE: 2000, "grpo-4": 1600, "uniform-4-e2": 1000, "uniform-8-as-pos": 100, "spo-n2": 600}


def test_cheapest_uniform_sampling_has_equal_weights() -> None:
    """A control with another weight of prompts is none."""
    finals = evenly(COSTS_OF)
    assert finals.cheapest_uniform() == "uniform-4-e2"
    assert finals.beside("spo-n2", "grpo-4").text(".3f") == "0.375 (0.375 to 0.375)"


def test_methods_that_learn_nothing_cost_the_same() -> None:
    """The target is where they start: a cost of 0 would give no ratio."""
    assert evenly(COSTS_OF, accuracy=0.0).beside("spo-n2", "grpo-4").mean == 1.0


def test_costs_over_tasks_are_geometric_means(results: Trials) -> None:
    for method, pace in ((REFERENCE, 0.1), ("pos", 0.05)):
        add_method(results, "hard", method, pace)
    by_task = [finals_of(results, task, ["pos"], SEEDS, BUDGET, "rollouts") for task in ("graded", "hard")]
    found = over_tasks(by_task)
    assert list(found) == ["pos", REFERENCE] and found[REFERENCE] == (1.0, None)
    assert found["pos"][0] == pytest.approx((0.5 * 1.25) ** 0.5)


def test_too_few_seeds_give_no_test() -> None:
    assert corrected_tests({"pos": np.ones(5)}) == {"pos": None}


def test_trials_that_are_kept_are_not_repeated(results: Trials, tmp_path: Path) -> None:
    again = Trials(tmp_path)
    assert again.by_cell == results.by_cell
    cells = rung_cells(again, ["graded"], [REFERENCE, "pos"], BUDGET, "rollouts", 1)
    assert list(again.run(cells, run_cell, 2)) == []


def test_folder_of_another_grid_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_folder(tmp_path, ["graded"], ["pos"])
    check_folder(tmp_path, ["hard"], ["balance"])
    monkeypatch.setattr("benchmarks.arena.campaign.RATES", (1e-3,))
    with pytest.raises(
        ValueError,
        match=r"made otherwise: tuning grid, rates: \[0.0001, 0.0003, 0.001, 0.003\] there, \[0.001\] here",
    ):
        check_folder(tmp_path, ["graded"], ["pos"])


def test_folder_of_another_method_of_that_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_folder(tmp_path, ["graded"], ["pos", "balance"])
    monkeypatch.setitem(METHODS, "pos", METHODS["balance"])
    with pytest.raises(ValueError, match=r"otherwise: method pos, name: pos there, balance here"):
        check_folder(tmp_path, ["graded"], ["pos"])


def test_folder_made_with_another_default_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flags of the method are the same."""
    check_folder(tmp_path, ["graded"], ["est"])
    settings = Method.settings
    monkeypatch.setattr(Method, "settings", lambda method, prompts: replace(settings(method, prompts), max_samples=99))
    with pytest.raises(ValueError, match=r"otherwise: settings of est, max_samples: 32 there, 99 here\."):
        check_folder(tmp_path, ["graded"], ["est"])


def test_table_of_finished_trials_starts_nothing(results: Trials, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--methods", "pos,pos", "--tasks", "graded", "--seeds", str(SEEDS), "--budget", str(BUDGET)]
    assert main(["campaign", *argv, "--out", str(results.folder)]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last == {"cost_to_target": {"rollouts": {"graded": {"pos": 0.5, "uniform-8": 1.0}}}}
