"""One process beside the real stack: the command line that makes them equal, the comparison, and what is refused."""

from __future__ import annotations

import json
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.arena import agreement, run_agreement, trainings
from benchmarks.arena.agreement import (
    LEARNER,
    MARKS,
    MEASURED,
    REAL,
    REPEATS,
    Cell,
    Conditions,
    Row,
    contrast,
    plan,
    real_result,
    settings_of,
    table,
    train_flags,
)
from benchmarks.arena.folders import Results, keep_settings
from benchmarks.arena.methods import METHODS
from benchmarks.arena.trainings import UnfinishedTrainingError
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
    return {"accuracy": accuracy, "rollouts": rollouts, "tokens": [4 * drawn for drawn in rollouts]}


def trials(shift: float = 0.0) -> dict[Cell, dict[str, Any]]:
    """Three seeds; the real stack's accuracy is higher by `shift`."""
    cells = plan(COMPARED, 3, LEARNER) + plan(COMPARED, 3, REAL)
    return {cell: result(cell, shift + NOISE[cell.seed] if cell.stack == REAL else 0.0) for cell in cells}


@pytest.fixture
def results(tmp_path: Path) -> Results[Cell]:
    found = Results(tmp_path / "out", Cell, MEASURED)
    for cell, of in trials().items():
        found.add(cell, of)
    return found


# -- what makes the two equal -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [*COMPARED, "spo-n2"])
def test_command_line_is_valid_and_trains_as_the_learner_does(method: str) -> None:
    folder, expected = Path("/nowhere"), METHODS[method]
    flags = flags_of_any_run(TOY, folder, folder, folder) | train_flags(expected, CONDITIONS)
    args = parse(words(flags), check_without_files)
    assert args.ada.group_size == expected.n
    assert {name: getattr(args.ada.given, name) for name in expected.ada} == expected.ada
    assert args.train.batch_size == args.train.micro_batch_size == 32 * expected.n // expected.updates, "one a part"
    assert (args.train.max_epochs, list(args.actor.eps_clip_low_high)) == (expected.epochs, [0.2, 0.28])
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
    monkeypatch.setattr(agreement, "load_model", lambda folder: folder)
    monkeypatch.setattr(agreement, "pass_rates", lambda model, prompts: np.full(2, 0.25))
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


# -- the command ------------------------------------------------------------------------------------------------------


def test_folder_of_other_settings_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another method may come later."""
    for methods in (COMPARED, ["raft"], COMPARED):
        keep_settings(tmp_path, settings_of(CONDITIONS, methods), ())
    monkeypatch.setattr(agreement, "MAX_NORM", 2.0)
    with pytest.raises(ValueError, match=r"made otherwise: uniform-4, actor.max_norm: 1.0 there, 2.0 here"):
        keep_settings(tmp_path, settings_of(CONDITIONS, COMPARED), ())


def test_finished_comparison_is_shown_again(results: Results[Cell], capsys: pytest.CaptureFixture[str]) -> None:
    args = run_agreement.build_parser("").parse_args(["--methods", ",".join(COMPARED), "--seeds", "3"])
    run_agreement.show(args, CONDITIONS, results)
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["seeds"] == {"uniform-4": 3, "pos": 3} and told["left"] == 0
    assert told["agreement"]["pos"]["final accuracy"] == {
        "difference": 0.0,
        "ci95": [-0.00248, 0.00248],
        "agrees": True,
    }


def test_training_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = run_agreement.build_parser("").parse_args(["--out", str(tmp_path / "out")])
    monkeypatch.setattr(trainings.sys, "executable", "false")
    monkeypatch.setattr(trainings, "POLL_S", 0.01)
    with trainings.alone(tmp_path) as lock:
        results = Results(args.out, Cell, MEASURED)
        comparison = run_agreement.Comparison(args, CONDITIONS, results, lock, until=0.0)
        with pytest.raises(UnfinishedTrainingError, match=r"training of pos-seed0 ended with status 1"):
            comparison._run_real(Cell("pos", 0, REAL))
