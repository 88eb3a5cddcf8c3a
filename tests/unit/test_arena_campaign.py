"""Trials that are kept, skipped when resumed, tuned by one rule, and compared by what a target costs."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from openrlhf_ada.arena import campaign
from openrlhf_ada.arena.campaign import (
    PROMPTS,
    RATES,
    RUNGS,
    TRIALS,
    Cell,
    Results,
    Rung,
    check_folder,
    final_cells,
    run_cells,
    rung_cells,
    tuned,
)
from openrlhf_ada.arena.costs import COSTS, STEP_MODELS, budget_of
from openrlhf_ada.arena.methods import METHODS, Method
from openrlhf_ada.arena.tables import REFERENCE, corrected_tests, cost_to, finals_of, ranks, table
from openrlhf_ada.arena.tasks import TASKS
from openrlhf_ada.cli.arena import QUICK, build_parser, main
from openrlhf_ada.cli.arena_real import alone

BUDGET = 2400
BEST = (1e-3, 16)
SEEDS = 6
UNITS = ("rollouts", *STEP_MODELS)


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


def tuning_trial(
    results: Results, task: str, method: str, setting: tuple[float, int], rung: Rung, pace: float
) -> None:
    """With a budget of rollouts, and with those of seconds. The trial ends at 1200 rollouts in each case."""
    result = curve(*(0.1 + pace * at for at in range(5)), prompts=setting[1])
    for cost in UNITS:
        limit = budget_of(BUDGET // rung.part, cost)
        results.add(Cell(task, method, *setting, rung.seed, limit, cost), result)


def add_method(results: Results, task: str, method: str, pace: float) -> None:
    """All trials of a method that learns `pace` per 300 rollouts with one setting, and with others nothing."""
    for rung in RUNGS:
        for setting in product(RATES, PROMPTS):
            tuning_trial(results, task, method, setting, rung, pace if setting == BEST else 0.0)
    for seed, cost in product(range(SEEDS), UNITS):
        cell = Cell(task, method, *BEST, seed, budget_of(BUDGET, cost), cost)
        results.add(cell, curve(*(0.1 + pace * at for at in range(5))))


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """`pos` learns twice as fast as `uniform-8`."""
    check_folder(tmp_path, [], [])
    found = Results(tmp_path / TRIALS)
    for method, pace in ((REFERENCE, 0.1), ("pos", 0.2)):
        add_method(found, "graded", method, pace)
    return found


@pytest.mark.parametrize("cost", COSTS)
def test_best_setting_has_most_accuracy_on_the_tuning_worlds(cost: str, results: Results) -> None:
    assert tuned(results, "graded", "pos", BUDGET, cost) == BEST
    cells = final_cells(results, ["graded"], [REFERENCE, "pos"], 3, BUDGET, cost)
    assert {(cell.rate, cell.prompts) for cell in cells} == {BEST} and len(cells) == 6


def test_every_rung_tries_the_best_of_the_one_before(results: Results) -> None:
    tried = [rung_cells(results, ["graded"], ["pos"], BUDGET, "rollouts", at) for at in range(len(RUNGS))]
    assert [len(cells) for cells in tried] == [rung.tried for rung in RUNGS] == [len(RATES) * len(PROMPTS), 8, 3]
    for cells, rung in zip(tried, RUNGS, strict=True):
        assert {(cell.seed, cell.budget) for cell in cells} == {(rung.seed, BUDGET // rung.part)}
        assert BEST in {(cell.rate, cell.prompts) for cell in cells}


def test_tuning_follows_the_cost(tmp_path: Path) -> None:
    """Small steps learn most per rollout and take longest, so large steps learn most per second."""
    results = Results(tmp_path / TRIALS)
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
def test_twice_as_fast_costs_half(cost: str, results: Results) -> None:
    finals = finals_of(results, "graded", ["pos"], SEEDS, BUDGET, cost)
    assert finals.target == pytest.approx(0.1 + 0.8 * 0.4)
    first, second = table(finals)
    assert (first.method, second.method) == ("pos", REFERENCE)
    # Steps are whole, so seconds are not quite in proportion to rollouts.
    assert first.cost == pytest.approx(0.5, rel=0.05) and second.cost == 1.0
    assert (first.low, first.high) == pytest.approx((0.5, 0.5), rel=0.05)
    assert first.missed == 0 and first.final == pytest.approx(0.9)
    assert first.p == pytest.approx(2 / 2**SEEDS) and second.p is None


def test_trial_that_misses_counts_with_the_whole_budget(results: Results) -> None:
    add_method(results, "graded", "est", 0.01)
    row = next(row for row in table(finals_of(results, "graded", ["est"], SEEDS, BUDGET, "rollouts")) if row.missed)
    assert (row.method, row.missed) == ("est", SEEDS) and row.cost == pytest.approx(1 / 0.8)


def test_ranks_are_means_over_tasks(results: Results) -> None:
    for method, pace in ((REFERENCE, 0.1), ("pos", 0.05)):
        add_method(results, "hard", method, pace)
    by_task = [finals_of(results, task, ["pos"], SEEDS, BUDGET, "rollouts") for task in ("graded", "hard")]
    found = {rank.method: rank for rank in ranks(by_task)}
    assert found["pos"].rank == found[REFERENCE].rank == 1.5
    assert found["pos"].cost == pytest.approx((0.5 * 1.25) ** 0.5)


def test_too_few_seeds_give_no_test() -> None:
    assert corrected_tests({"pos": np.ones(5)}) == {"pos": None}


def test_trials_that_are_kept_are_not_repeated(results: Results, tmp_path: Path) -> None:
    again = Results(tmp_path / TRIALS)
    assert again.by_cell == results.by_cell
    cells = rung_cells(again, ["graded"], [REFERENCE, "pos"], BUDGET, "rollouts", 1)
    assert list(run_cells(cells, again, 2)) == []


@pytest.mark.slow
def test_interrupted_campaign_starts_no_other_trial(tmp_path: Path) -> None:
    """One has ended, and the process has begun the next or has it in its queue. Each begins by making its starting
    model."""
    results = Results(tmp_path / TRIALS)
    cells = [Cell("graded", "uniform-4", 1e-3, 8, seed, budget=100) for seed in range(12)]
    running = run_cells(cells, results, 1)
    next(running)
    running.close()
    assert 1 <= len(list(tmp_path.glob("starts/*.pt"))) <= 4
    assert len(results.by_cell) == 1 and not multiprocessing.active_children()


def test_folder_of_another_grid_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_folder(tmp_path, ["graded"], ["pos"])
    check_folder(tmp_path, ["hard"], ["balance"])
    monkeypatch.setattr("openrlhf_ada.arena.campaign.RATES", (1e-3,))
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


def test_trials_of_an_older_version_are_refused(tmp_path: Path) -> None:
    (tmp_path / TRIALS).write_text("{}")
    with pytest.raises(ValueError, match=r"it holds something else \(there is no settings.json\)"):
        check_folder(tmp_path, ["graded"], ["pos"])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("[]", "settings.json holds no settings of this command (no 'tuning grid')"),
        ("{bad", "settings.json is no JSON"),
        ('{"conditions": {}}', "holds no settings of this command (no 'tuning grid'). Take another --out"),
        ('{"model": "toy", "budget": 6144}', "holds no settings of this command (no 'tuning grid')"),
    ],
)
def test_settings_of_something_else_are_refused(
    settings: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of --agreement and of --real, too."""
    (tmp_path / "settings.json").write_text(settings)
    assert main(["--out", str(tmp_path)]) == 2
    assert says in capsys.readouterr().err
    assert (tmp_path / "settings.json").read_text() == settings


def test_file_is_no_folder_for_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for track in ([], ["--real"], ["--agreement"]):
        assert main([*track, "--out", str(tmp_path / "file")]) == 2
        assert f"--out {tmp_path / 'file'}: it is a file. Name a folder" in capsys.readouterr().err
        assert main([*track, "--out", str(tmp_path / "file" / "below")]) == 2
        assert "this folder cannot be made (Not a directory). Take another one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"task": "graded"}', r"line 1 is no result \(no 'method'\). Remove this line"),
        ('{"task": "graded", "met', r"line 1 is no result \(Unterminated string.*\). Remove this line"),
        ("[]", r"line 1 is no result \(no 'task'\)"),
        ("7", r"line 1 is no result \(.*int.*\). Remove this line"),
        (
            '{"task": [], "method": "pos", "rate": 1, "prompts": 8, "seed": 0, "budget": 9, "unit": "seconds", '
            '"spent": [], "accuracy": []}',
            r"line 1 is no result \(unhashable type: 'list'\). Remove this line",
        ),
    ],
)
def test_foreign_line_is_named(line: str, says: str, tmp_path: Path) -> None:
    """As the end of one is that a full disk has cut off."""
    file = tmp_path / TRIALS
    file.write_text(line)
    with pytest.raises(ValueError, match=says):
        Results(file)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--methods", "posh"], "--methods posh: there is no such name. Did you mean pos? Known are uniform-2"),
        (["--tasks", "grade"], "--tasks grade: there is no such name"),
        (["--cost", "euros"], "--cost euros: there is no such name. Known are rollouts, tokens"),
        (["--seeds", "2"], "an interval needs at least 3"),
        (["--budget", "10"], "nothing is learned of so few rollouts"),
        (["--budget", "1500", "--methods", "uniform-4,pos"], "Give 2304 or more, or leave pos out"),
        (["--methods", ""], "--methods names nothing. Known are uniform-2"),
        (["--tasks", ","], "--tasks names nothing. Known are graded"),
        (["--cost", ""], "--cost names nothing"),
        (["--processes", "0"], "--processes 0: at least 1 is needed"),
        (["--quick", "--seeds", "10"], "--seeds does not go with --quick, which sets it"),
        (["--quick", "--methods", "pos"], "--methods does not go with --quick, which sets it"),
    ],
)
def test_bad_input_is_refused_at_once(
    argv: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*argv, "--out", str(tmp_path)]) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_folder_in_use_is_refused(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    with alone(results.folder):
        assert main(["--methods", "pos", "--tasks", "graded", "--out", str(results.folder)]) == 2
    assert "is in use by another call. Wait for it, or take another --out" in capsys.readouterr().err


def test_name_that_is_given_twice_counts_once() -> None:
    given = build_parser().parse_args(["--tasks", "graded,hard,graded", "--cost", "seconds,seconds"])
    assert (given.tasks, given.cost) == (["graded", "hard"], ["seconds"])


def test_table_of_finished_trials_starts_nothing(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--methods", "pos", "--tasks", "graded", "--seeds", str(SEEDS), "--budget", str(BUDGET)]
    assert main([*argv, "--out", str(results.folder)]) == 0
    told = capsys.readouterr().out
    assert "Target 42.0%" in told
    assert told.splitlines()[-1] == '{"cost_to_target": {"pos": 0.5, "uniform-8": 1.0}}'


def test_quick_comparison_is_of_known_names() -> None:
    assert set(QUICK["methods"]) <= set(METHODS) and set(QUICK["tasks"]) <= set(TASKS)


@pytest.mark.slow
def test_quick_comparison_ends_with_what_each_method_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With half of its rollouts and one setting to tune: all stages, and three seeds of four methods."""
    monkeypatch.setitem(QUICK, "budget", 2400)
    monkeypatch.setattr(campaign, "RATES", (1e-3,))
    monkeypatch.setattr(campaign, "PROMPTS", (8,))
    assert main(["--quick", "--out", str(tmp_path / "out")]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["cost_to_target"].keys() == set(QUICK["methods"]) and last["cost_to_target"]["uniform-8"] == 1.0
    finals = [cell for cell in Results(tmp_path / "out" / TRIALS).by_cell if cell.budget == 2400]
    assert {cell.method for cell in finals} == set(QUICK["methods"])
