"""Trials that are kept, skipped when resumed, tuned by one rule, and compared by what a target costs."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from openrlhf_ada.arena.campaign import (
    PROMPTS,
    RATES,
    TUNING_SEEDS,
    Cell,
    Results,
    final_cells,
    run_cells,
    tuned,
    tuning_cells,
)
from openrlhf_ada.arena.tables import REFERENCE, cost_to, table, target_of
from openrlhf_ada.cli.arena import main

BUDGET = 1000
BEST = (1e-3, 16)


def curve(*accuracy: float) -> dict[str, list[object]]:
    """Measured every 100 rollouts, two tokens each."""
    spent = [
        {"steps": at, "rollouts": 100 * at, "tokens": 200 * at, "trained_tokens": 100 * at, "waves": at}
        for at in range(len(accuracy))
    ]
    return {"spent": list(spent), "accuracy": list(accuracy)}


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """`uniform-8` learns .1 per 100 rollouts and `pos` .2, with one setting; with others they learn nothing."""
    found = Results(tmp_path / "trials.jsonl")
    for method, pace in ((REFERENCE, 0.1), ("pos", 0.2)):
        for seed in (*TUNING_SEEDS, 0, 1, 2):
            for setting in product(RATES, PROMPTS) if seed in TUNING_SEEDS else (BEST,):
                learned = pace if setting == BEST else 0.0
                accuracy = [0.1 + learned * at for at in range(5)]
                found.add(Cell("graded", method, *setting, seed, BUDGET), curve(*accuracy))
    return found


def test_best_setting_has_most_accuracy_on_the_tuning_seeds(results: Results) -> None:
    assert tuned(results, "graded", "pos", BUDGET) == BEST
    cells = final_cells(results, ["graded"], [REFERENCE, "pos"], 3, BUDGET)
    assert {(cell.rate, cell.prompts) for cell in cells} == {BEST} and len(cells) == 6


def test_cost_is_read_between_measurements() -> None:
    assert cost_to(0.25, curve(0.1, 0.2, 0.3), "rollouts") == (pytest.approx(150), True)
    assert cost_to(0.25, curve(0.1, 0.2, 0.3), "tokens") == (pytest.approx(300), True)
    assert cost_to(0.9, curve(0.1, 0.2, 0.3), "rollouts") == (200, False)
    assert cost_to(0.1, curve(0.1, 0.2), "rollouts") == (0, True)


def test_twice_as_fast_costs_half(results: Results) -> None:
    assert target_of(results, "graded", 3, BUDGET) == pytest.approx(0.1 + 0.8 * 0.4)
    first, second = table(results, "graded", ["pos"], 3, BUDGET)
    assert (first.method, second.method) == ("pos", REFERENCE)
    assert first.cost == pytest.approx(0.5) and second.cost == 1.0
    assert (first.low, first.high) == pytest.approx((0.5, 0.5))
    assert first.missed == 0 and first.final == pytest.approx(0.9)


def test_trials_that_are_kept_are_not_repeated(results: Results, tmp_path: Path) -> None:
    again = Results(tmp_path / "trials.jsonl")
    assert again.by_cell == results.by_cell
    cells = tuning_cells(["graded"], [REFERENCE, "pos"], BUDGET)
    assert len(cells) == 2 * len(RATES) * len(PROMPTS) * len(TUNING_SEEDS)
    assert list(run_cells(cells, again, 2)) == []


def test_foreign_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "trials.jsonl"
    file.write_text('{"task": "graded"}\n')
    with pytest.raises(ValueError, match=r"trials.jsonl, line 1 is no result of a trial"):
        Results(file)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--methods", "posh"], "--methods posh: there is no such name. Known are uniform-4"),
        (["--tasks", "grade"], "--tasks grade: there is no such name"),
        (["--seeds", "2"], "an interval needs at least 3"),
        (["--budget", "10"], "nothing is learned of so few rollouts"),
    ],
)
def test_bad_input_is_refused_at_once(
    argv: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*argv, "--out", str(tmp_path)]) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_table_of_finished_trials_starts_nothing(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--methods", "pos", "--tasks", "graded", "--seeds", "3", "--budget", str(BUDGET)]
    assert main([*argv, "--out", str(results.folder)]) == 0
    told = capsys.readouterr().out
    assert "Target 42.0%" in told
    assert told.splitlines()[-1] == '{"cost_to_target": {"pos": 0.5, "uniform-8": 1.0}}'
