"""One process beside the real stack: the command line that makes them equal, the comparison, and what is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documents import ROOT

from openrlhf_ada.arena.agreement import (
    LEARNER,
    MARKS,
    REAL,
    REPEATS,
    TRIALS,
    Cell,
    Conditions,
    Results,
    pack,
    plan,
    real_result,
    train_flags,
    unpack,
)
from openrlhf_ada.arena.agreement_page import FIGURE, FIRST, LAST, render_agreement
from openrlhf_ada.arena.agreement_tables import Row, contrast, table
from openrlhf_ada.arena.campaign import check_folder
from openrlhf_ada.arena.methods import METHODS
from openrlhf_ada.arena.page import inserted
from openrlhf_ada.cli import arena_agreement, arena_page
from openrlhf_ada.cli.arena import build_parser, main
from openrlhf_ada.cli.arena_page import AGREEMENT
from openrlhf_ada.cli.arena_real import UnfinishedTrainingError
from openrlhf_ada.cli.demo import TOY, flags_of_any_run, words
from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.reporting.run_log import RunLog
from openrlhf_ada.reporting.run_record import read_run
from openrlhf_ada.trainer.preflight import check_without_files

CONDITIONS = Conditions()
COMPARED = ("uniform-4", "pos")
NOISE = (0.0, 0.001, -0.001)
"""By seed, on the real stack."""


def result(cell: Cell, shift: float = 0.0) -> dict[str, Any]:
    """Accuracy from .2 up by .02 a measurement (`pos`: .03), with a shift but of the first; 128 rollouts a step."""
    pace = 0.03 if cell.method == "pos" else 0.02
    accuracy = [0.2 + pace * mark + (shift if mark else 0.0) for mark in range(MARKS + 1)]
    rollouts = [256 * mark for mark in range(MARKS + 1)]
    fields = {"method": cell.method, "seed": cell.seed, "stack": cell.stack, "repeat": cell.repeat}
    return fields | {"accuracy": accuracy, "rollouts": rollouts, "tokens": [4 * drawn for drawn in rollouts]}


def trials(shift: float = 0.0) -> dict[Cell, dict[str, Any]]:
    """Three seeds; the real stack's accuracy is higher by `shift`."""
    cells = plan(COMPARED, 3, LEARNER) + plan(COMPARED, 3, REAL)
    return {cell: result(cell, shift + NOISE[cell.seed] if cell.stack == REAL else 0.0) for cell in cells}


@pytest.fixture
def results(tmp_path: Path) -> Results:
    found = Results(tmp_path / "out", CONDITIONS, COMPARED)
    found.start()
    for of in trials().values():
        found.add(of)
    return found


# -- what makes the two equal -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [*COMPARED, "counted"])
def test_command_line_is_valid_and_trains_as_the_learner_does(method: str) -> None:
    folder, expected = Path("/nowhere"), METHODS[method]
    flags = flags_of_any_run(TOY, folder, folder, folder) | train_flags(expected, CONDITIONS)
    args = parse(words(flags), check_without_files)
    assert args.ada.group_size == expected.n
    assert {name: getattr(args.ada.given, name) for name in expected.ada} == expected.ada
    assert args.train.batch_size == args.train.micro_batch_size == 32 * expected.n // expected.parts, "one a part"
    assert (args.train.max_epochs, list(args.actor.eps_clip_low_high)) == (expected.passes, [0.2, 0.28])
    assert (args.ada.loss, args.ada.loss_length, args.actor.loss_agg_mode) == ("sequence-constant", 1, "token-mean")
    adam = args.actor.adam
    assert (adam.lr, list(adam.betas), adam.eps, adam.weight_decay) == (1e-3, [0.9, 0.999], 1e-8, 0.0)
    assert (args.actor.lr_scheduler, args.actor.max_norm, args.actor.entropy_coef) == ("constant", 1.0, None)
    assert (args.rollout.temperature, args.rollout.top_p, args.algo.kl.init_coef) == (1.0, 1.0, 0.0)
    assert args.algo.advantage.is_correction_level == "off"
    assert (args.train.num_episodes, args.ckpt.save_steps, args.rollout.max_new_tokens) == (1, 2, 7)


def test_default_is_one_pass_over_the_prompts_measured_sixteen_times() -> None:
    assert (CONDITIONS.steps, CONDITIONS.episodes, CONDITIONS.steps_between) == (32, 1, 2)
    assert (Conditions(steps=96).episodes, Conditions(steps=96).steps_between) == (3, 6)


def test_every_seed_has_one_training_and_several_repeats() -> None:
    real, learner = plan(["pos"], 2, REAL), plan(["pos"], 2, LEARNER)
    assert [cell.name for cell in real] == ["pos-seed0", "pos-seed1"]
    assert len(set(learner)) == 2 * REPEATS


def test_costs_are_read_at_each_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 rollouts in the first step, 3 in the second, and so on; no weights are read."""
    monkeypatch.setattr("openrlhf_ada.arena.language_model.load_model", lambda folder: folder)
    monkeypatch.setattr("openrlhf_ada.arena.learner.pass_rates", lambda model, prompts: np.full(2, 0.25))
    with RunLog(tmp_path, {}) as log:
        for step in range(1, 33):
            log.log_step(step, {"ada/drawn": step + 1, "ada/drawn_tokens": 10})
    found = real_result(Cell("pos", 0, REAL), CONDITIONS, read_run(tmp_path), [tmp_path] * 17)
    assert found["accuracy"] == [0.25] * 17
    assert found["rollouts"][:3] == [0, 5, 14] and found["tokens"] == list(range(0, 321, 20))


# -- comparison -------------------------------------------------------------------------------------------------------


def by_name(rows: list[Row], method: str) -> dict[str, Row]:
    return {row.quantity.name: row for row in rows if row.method == method}


def test_equal_tracks_agree() -> None:
    """Differences of 0, .1 and -.1 points: their mean is 0 and their interval 4.303 * .1 / sqrt(3) = .248 wide."""
    rows = by_name(table(trials(), COMPARED), "uniform-4")
    final = rows["final accuracy"]
    assert (final.seeds, final.learner, final.real) == (3, pytest.approx(0.52), pytest.approx(0.52))
    assert (final.difference.low, final.difference.high) == pytest.approx((-0.00248, 0.00248), abs=1e-5)
    assert all(row.agrees for row in rows.values())
    assert rows["rollouts"].learner == 4096 and rows["tokens"].difference.mean == 0.0


def test_difference_beyond_the_margin_is_not_agreement() -> None:
    """All measurements but the first are higher by 3 points: the mean over 16 stretches by 3 * 15.5 / 16."""
    rows = by_name(table(trials(0.03), COMPARED), "pos")
    assert rows["final accuracy"].difference.mean == pytest.approx(0.03)
    assert rows["mean accuracy"].difference.mean == pytest.approx(0.03 * 15.5 / 16)
    assert rows["final accuracy"].agrees is False and rows["rollouts"].agrees is True


def test_interval_that_is_too_wide_is_not_agreement() -> None:
    """A mean difference of 0 with 2 points of noise: not shown."""
    noisy = trials()
    for seed, shift in enumerate((0.02, -0.02, 0.0)):
        noisy[Cell("pos", seed, REAL)] = result(Cell("pos", seed, REAL), shift)
    row = by_name(table(noisy, ["pos"]), "pos")["final accuracy"]
    assert row.difference.mean == pytest.approx(0.0) and row.agrees is False and row.verdict == "open"
    assert "**No difference of accuracies is seen**, but more seeds" in render_agreement(CONDITIONS, noisy)


def test_chance_is_what_repeats_in_one_process_say() -> None:
    """Four repeats with a standard deviation of .02, and one run as uncertain: .02 * sqrt(1/4 + 1) = .0224."""
    noisy = trials()
    for cell in [cell for cell in noisy if cell.stack == LEARNER]:
        noisy[cell] = result(cell, 0.02 * (-1.0) ** cell.repeat * sqrt(3 / 4))
    row = by_name(table(noisy, COMPARED), "pos")["final accuracy"]
    assert row.by_chance == pytest.approx(0.02 * sqrt(5 / 4))
    assert row.spread == pytest.approx(0.001), "that of the real stack's seeds"
    assert by_name(table(noisy, COMPARED), "pos")["rollouts"].by_chance == 0.0


def test_two_seeds_have_no_verdict() -> None:
    few = {cell: of for cell, of in trials().items() if cell.seed < 2}
    assert {(row.agrees, row.verdict) for row in table(few, COMPARED)} == {(None, "too few seeds")}


def test_seeds_of_one_track_alone_do_not_count() -> None:
    partial = {cell: of for cell, of in trials().items() if cell.stack == LEARNER or cell.seed == 1}
    assert {row.seeds for row in table(partial, COMPARED)} == {1}
    assert table({cell: of for cell, of in trials().items() if cell.stack == LEARNER}, COMPARED) == []


def test_both_tracks_say_what_the_second_method_gains() -> None:
    """.01 more for each measurement: .08 on average."""
    for stack in (LEARNER, REAL):
        gain = contrast(trials(), COMPARED, stack)
        assert gain is not None and gain.mean == pytest.approx(0.08)


# -- results and page -------------------------------------------------------------------------------------------------


def test_finished_trials_are_read_again(results: Results) -> None:
    again = Results(results.folder, CONDITIONS, COMPARED)
    assert again.by_cell == results.by_cell
    assert again.missing(plan(COMPARED, 4, REAL)) == [Cell(m, 3, REAL) for m in COMPARED]


def test_another_method_may_come_later(results: Results) -> None:
    Results(results.folder, CONDITIONS, ["rated-2"]).start()
    assert len(Results(results.folder, CONDITIONS, COMPARED).by_cell) == 6 * (REPEATS + 1)


def test_folder_of_other_settings_is_refused(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"conditions, has other settings: steps is 32 there and 64 here"):
        Results(results.folder, Conditions(steps=64), COMPARED)
    monkeypatch.setattr("openrlhf_ada.arena.agreement.MAX_NORM", 2.0)
    with pytest.raises(ValueError, match=r"uniform-4, has other settings: actor.max_norm is 1.0 there and 2.0 here"):
        Results(results.folder, CONDITIONS, COMPARED)


@pytest.mark.parametrize(("line", "says"), [("{", "line 1 is no result"), ("{}", "line 1 is no result")])
def test_foreign_line_is_named(line: str, says: str, results: Results) -> None:
    (results.folder / TRIALS).write_text(line + "\n")
    with pytest.raises(ValueError, match=says):
        Results(results.folder, CONDITIONS, COMPARED)


def test_small_file_keeps_all_trials(results: Results, tmp_path: Path) -> None:
    file = tmp_path / "agreement.json"
    pack(results, file)
    assert unpack(file) == (CONDITIONS, results.by_cell)


def test_page_says_what_agrees_and_what_does_not() -> None:
    text = render_agreement(CONDITIONS, trials())
    assert "**The accuracies agree**: all 95 % intervals of the differences are within 2 points" in text
    assert "**The rollouts and tokens agree**" in text and "4 in one process" in text
    assert "| `pos` | final accuracy | 3 | 68.0% | 68.0% | +0.00 points (-0.25 to +0.25) | 0.1 | 0.0 | agree |" in text
    apart = trials()
    for seed in range(3):
        apart[Cell("pos", seed, REAL)] = result(Cell("pos", seed, REAL), 0.03)
    text = render_agreement(CONDITIONS, apart)
    assert "**The accuracies differ**: mean accuracy of `pos`, final accuracy of `pos`. The largest" in text
    with pytest.raises(ValueError, match="no seed was run"):
        render_agreement(CONDITIONS, {})


@pytest.mark.slow
def test_page_takes_the_results_of_a_folder(results: Results, tmp_path: Path) -> None:
    page, kept = tmp_path / "arena.md", tmp_path / "kept"
    shutil.copytree(ROOT / "openrlhf_ada" / "arena" / "results", kept)
    page.write_text((ROOT / "docs" / "arena.md").read_text(encoding="utf-8"), encoding="utf-8")
    pack(results, results.folder / AGREEMENT)
    assert arena_page.main([str(page), "--results", str(kept), "--agreement", str(results.folder)]) == 0
    assert render_agreement(CONDITIONS, trials()) in page.read_text(encoding="utf-8")
    assert (tmp_path / "images" / FIGURE).stat().st_size > 10_000


def test_committed_page_is_of_the_committed_results() -> None:
    page = (ROOT / "docs" / "arena.md").read_text(encoding="utf-8")
    kept = unpack(ROOT / "openrlhf_ada" / "arena" / "results" / "agreement.json")
    assert inserted(page, render_agreement(*kept), (FIRST, LAST)) == page, "write it anew: make arena-docs"


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--methods", "nonsense"], "--methods nonsense: there is no such name"),
        (["--methods", "dapo"], "dapo: methods that replace prompts are not compared"),
        (["--tasks", "graded,hard"], "--tasks graded,hard: expected one of graded, hard"),
        (["--seeds", "0"], "--seeds 0: at least 1"),
        (["--steps", "48"], "--steps 48: expected whole passes over the prompts, of 32 steps each. Try 64"),
        (["--minutes", "nan"], "--minutes nan: expected a number above 0"),
        (["--budget", "100"], "--budget does not go with --agreement"),
        (["--real"], "--real does not go with --agreement"),
        (["--quick"], "--quick does not go with --agreement"),
    ],
)
def test_bad_calls_are_refused(
    flags: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--agreement", "--out", str(tmp_path / "out"), *flags]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_folder_of_another_track_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_folder(tmp_path, ["graded"], ["pos"])
    assert main(["--agreement", "--out", str(tmp_path)]) == 2
    assert "settings.json holds no settings of this command (no 'conditions')" in capsys.readouterr().err


def test_steps_need_agreement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--steps", "32", "--out", str(tmp_path)]) == 2
    assert "--steps goes with --agreement only" in capsys.readouterr().err


def test_finished_comparison_is_shown_again(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    args = build_parser().parse_args(["--agreement", "--methods", ",".join(COMPARED), "--seeds", "3"])
    arena_agreement._show(args, results)
    out = capsys.readouterr().out
    told = json.loads(out.splitlines()[-1])
    assert told["seeds"] == {"uniform-4": 3, "pos": 3} and told["left"] == 0
    assert told["agreement"]["pos"]["final accuracy"] == {
        "difference": 0.0,
        "ci95": [-0.00248, 0.00248],
        "agrees": True,
    }
    assert "mean accuracy of pos - uniform-4 on the real stack: +8.00%" in out
    assert unpack(results.folder / "agreement.json")[1] == results.by_cell


@pytest.mark.slow
def test_training_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = build_parser().parse_args(["--agreement", "--out", str(tmp_path / "out")])
    with (tmp_path / "lock").open("wb") as lock:
        comparison = arena_agreement.Comparison(args, Results(args.out, CONDITIONS, ["pos"]), lock)
        start = subprocess.Popen
        monkeypatch.setattr(subprocess, "Popen", lambda command, **given: start(["false"], **given))
        message = r"training of pos-seed0 ended with status 1\. See .*train\.log"
        with pytest.raises(UnfinishedTrainingError, match=message):
            comparison._run_real(Cell("pos", 0, REAL))
