"""Methods on the real stack: their command lines, what is kept of a run, the table, and what is refused."""

from __future__ import annotations

import json
import math
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from benchmarks.arena import run_real, trainings
from benchmarks.arena.__main__ import main
from benchmarks.arena.folders import SETTINGS, Results, keep_settings
from benchmarks.arena.methods import METHODS, Peer
from benchmarks.arena.real import (
    MEASURED,
    METHODS_DEFAULT,
    STEP_ROLLOUTS,
    Cell,
    Conditions,
    is_finished,
    plan,
    prompts_per_step,
    result_of,
    rollouts_per_prompt,
    run_flags,
)
from benchmarks.arena.real_table import curve, table, target_of
from openrlhf_ada.cli.demo import TOY, flags_of_any_run, words
from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.method_rules import without_effect
from openrlhf_ada.reporting.run_log import RunLog
from openrlhf_ada.reporting.run_record import Run, read_run
from openrlhf_ada.trainer.preflight import check_without_files

BUDGET, RATE = 1024, 3e-4
CONDITIONS = Conditions("toy", BUDGET, (RATE,), 256, 8)
REFERENCE = "uniform-4-e2"


def record(run_dir: Path, accuracy: Sequence[float], *, drawn: int = 128, first_step: int = 1) -> Run:
    """A run that was evaluated before and after every step: 2 tokens a rollout, half of them trained, 3 s a step."""
    with RunLog(run_dir, {}) as log:
        for step, value in enumerate(accuracy, start=first_step - 1):
            if step >= first_step:
                log.log_step(step, step_row(drawn))
            log.log_evaluation(step, {"eval/accuracy": value, "eval/ci95": 0.03})
    return read_run(run_dir)


def step_row(drawn: int) -> dict[str, Any]:
    return {
        "ada/drawn": drawn, "ada/drawn_tokens": 2 * drawn, "ada/kept_tokens": drawn, "ada/step_s": 3.0,
        "timing/generation": 1.0, "timing/make_experience": 0.5, "timing/ppo_train": 1.0, "timing/broadcast": 0.25,
    }  # fmt: skip


def pace(method: str, seed: int) -> list[float]:
    """The reference learns .05 a step, `pos` twice as much; seeds differ in where they start."""
    return [0.2 + 0.01 * seed + (0.1 if method == "pos" else 0.05) * step for step in range(9)]


def folder_of(folder: Path) -> Results[Cell]:
    keep_settings(folder, {"conditions": asdict(CONDITIONS)}, ())
    return Results(folder, Cell, MEASURED)


@pytest.fixture
def results(tmp_path: Path) -> Results[Cell]:
    """Three seeds of the reference and of `pos`."""
    found = folder_of(tmp_path / "out")
    for cell in plan(CONDITIONS, ["pos"], 3):
        found.add(cell, result_of(record(tmp_path / cell.name, pace(cell.method, cell.seed)), CONDITIONS.kind))
    return found


# -- plan -------------------------------------------------------------------------------------------------------------


def test_whole_rates_come_first_and_the_reference_with_them() -> None:
    assert [cell.name for cell in plan(replace(CONDITIONS, rates=(1e-3, 1e-4)), ["pos", "dapo"], 2)] == [
        f"{method}-rate{rate}-seed{seed}"
        for rate in ("0.001", "0.0001")
        for seed in (0, 1)
        for method in (REFERENCE, "pos", "dapo")
    ]


QUICKLY_CHECKED = (REFERENCE, "rated", "balance")
"""Methods whose command lines are read in the fast tests as well; the slow ones read all."""


@pytest.mark.parametrize(
    "method",
    [
        name if name in QUICKLY_CHECKED else pytest.param(name, marks=pytest.mark.slow)
        for name, method in METHODS.items()
        if method.weight_of is None and not isinstance(method, Peer)
    ],
)
def test_command_line_is_valid_and_has_the_methods_settings(method: str) -> None:
    folder = Path("/nowhere")
    flags = flags_of_any_run(TOY, folder, folder, folder) | run_flags(method, CONDITIONS)
    assert ("ada_baseline_factor" in flags) == METHODS[method].least_noise
    assert flags.get("ada_wrong_epochs") == METHODS[method].wrong_epochs
    args = parse(words(flags), check_without_files)
    settings, expected = args.ada, METHODS[method]
    assert not any("speculation" in line for line in without_effect(settings))
    assert not settings.waits or args.ada.mode == "est" or args.ada.speculation == 0
    assert settings.group_size == expected.n
    ada = {name: value for name, value in expected.ada.items() if not (expected.refill and name == "select")}
    assert {name: getattr(args.ada.given, name) for name in ada} == ada
    assert settings.refills == expected.refill
    assert args.algo.advantage.estimator == expected.estimator
    assert args.train.batch_size * expected.updates == args.rollout.batch_size * expected.n, "one update a part"
    assert args.train.max_epochs == expected.epochs
    assert args.actor.lr_scheduler == "constant"


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS_DEFAULT)
def test_steps_draw_about_the_same(method: str) -> None:
    assert prompts_per_step(method) * rollouts_per_prompt(method) == pytest.approx(STEP_ROLLOUTS, rel=0.1)


def test_replaced_prompts_count() -> None:
    """8 rollouts at a pass rate of Beta(1, 1.5): all wrong with chance .158, all right with .047; 128 * .795 / 8."""
    assert prompts_per_step("uniform-8") == 16
    assert prompts_per_step("dapo-8") == 13


def test_budget_is_measured_at_eight_places() -> None:
    assert Conditions("smollm2", 6144, (2e-5,), 1024, 2).eval_steps == 6
    assert Conditions("toy", 384, (3e-4,), 256, 8).eval_steps == 1


# -- a run's record ---------------------------------------------------------------------------------------------------


def test_run_ends_at_the_evaluation_after_its_budget(tmp_path: Path) -> None:
    run = record(tmp_path, [0.2, 0.3, 0.4])
    assert is_finished(run, replace(CONDITIONS, budget=256)) and not is_finished(run, replace(CONDITIONS, budget=257))
    in_tokens = replace(CONDITIONS, model="totals-10", budget=512)
    assert is_finished(run, in_tokens) and not is_finished(run, replace(in_tokens, budget=513))
    late = record(tmp_path / "late", [0.3, 0.4], first_step=2)
    assert not is_finished(late, replace(CONDITIONS, budget=128)), "no evaluation at the start"


def test_result_has_costs_of_every_step_up_to_the_last_evaluation(tmp_path: Path) -> None:
    with RunLog(tmp_path, {}) as log:
        log.log_evaluation(0, {"eval/accuracy": 0.2, "eval/ci95": 0.03})
        log.log_step(1, step_row(100))
        log.log_step(2, step_row(156))
        log.log_evaluation(2, {"eval/accuracy": 0.4, "eval/ci95": 0.04})
        log.log_step(3, step_row(128))
    result = result_of(read_run(tmp_path), CONDITIONS.kind)
    assert result["by_step"] == {
        "rollouts": [100, 156], "tokens": [200, 312], "trained_tokens": [100, 156], "sampling_seconds": [1.0, 1.0],
        "training_seconds": [1.5, 1.5], "seconds": [3.0, 3.0],
    }  # fmt: skip
    assert result["evaluations"] == {"step": [0, 2], "accuracy": [0.2, 0.4], "half_width": [0.03, 0.04]}
    assert curve(result, "rollouts") == ([0, 256], [0.2, 0.4])
    assert curve(result, "seconds") == ([0, 6.0], [0.2, 0.4])


# -- table ------------------------------------------------------------------------------------------------------------


def test_twice_as_fast_costs_half(results: Results[Cell]) -> None:
    """The reference starts at .21 on average and gains .4; 80 % of it are .53: after 6.4 steps, or 3.2."""
    assert target_of(results, CONDITIONS) == pytest.approx(0.21 + 0.8 * 0.4)
    reference, pos = table(results, ["pos"], CONDITIONS)
    assert (reference.method, pos.method, pos.seeds, pos.missed) == (REFERENCE, "pos", 3, 0)
    assert reference.cost and pos.cost and pos.gain
    assert reference.cost["rollouts"].mean == 1.0
    for cost in ("rollouts", "tokens", "seconds"):
        assert pos.cost[cost].mean == pytest.approx(0.5)
    assert pos.gain.mean == pytest.approx(0.2)
    assert pos.gain.low == pytest.approx(0.2) and pos.gain.high == pytest.approx(0.2)
    assert (pos.start, pos.final) == (pytest.approx(0.21), pytest.approx(1.01))
    assert pos.half_width == pytest.approx(0.03 / 3**0.5)
    assert pos.spent["training_seconds"] == pytest.approx(12.0)


def test_interval_is_students_and_paired(results: Results[Cell], tmp_path: Path) -> None:
    """Gains of .05, .10 and .15 in mean accuracy: mean .1, standard deviation .05, t(2) = 4.303."""
    for seed, step in enumerate((0.0625, 0.075, 0.0875)):
        curve_of = [0.2 + 0.01 * seed + step * at for at in range(9)]
        results.add(Cell("balance", RATE, seed), result_of(record(tmp_path / f"b{seed}", curve_of), CONDITIONS.kind))
    row = next(row for row in table(results, ["balance"], CONDITIONS) if row.method == "balance")
    half = 4.3027 * 0.05 / 3**0.5
    assert row.gain and row.gain.low is not None and row.gain.high is not None
    assert (row.gain.mean, row.gain.low, row.gain.high) == pytest.approx((0.1, 0.1 - half, 0.1 + half), abs=1e-4)


def test_two_seeds_have_no_interval(results: Results[Cell]) -> None:
    del results.by_cell[Cell("pos", RATE, 2)]
    pos = table(results, ["pos"], CONDITIONS)[1]
    assert pos.gain and (pos.gain.low, pos.gain.high) == (None, None)


def test_method_without_the_reference_is_not_compared(tmp_path: Path) -> None:
    found = folder_of(tmp_path / "out")
    found.add(Cell("pos", RATE, 0), result_of(record(tmp_path / "run", pace("pos", 0)), CONDITIONS.kind))
    (row,) = table(found, ["pos"], CONDITIONS)
    assert (row.gain, row.cost, target_of(found, CONDITIONS)) == (None, None, None)


# -- command ----------------------------------------------------------------------------------------------------------


def test_table_of_finished_runs_starts_nothing(
    results: Results[Cell], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Model, budget and rate are the folder's."""
    monkeypatch.setattr(run_real, "run_training", mock.Mock(side_effect=AssertionError))
    assert main(["real", "--out", str(results.folder), "--methods", "pos"]) == 0
    told = capsys.readouterr().out
    assert "1,024 rollouts" in told and "partial" not in told
    last = json.loads(told.splitlines()[-1])
    assert last["cost_to_target"] == {REFERENCE: 1.0, "pos": 0.5}
    assert (last["runs"], last["planned"]) == (6, 6)


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """Instead of a training, its record appears; the third one does not end."""
    started: list[Cell] = []

    def train(campaign: run_real.Campaign, cell: Cell, run_dir: Path) -> None:
        started.append(cell)
        if len(started) < 3:
            record(run_dir, pace(cell.method, cell.seed))
            (run_dir / "ckpt").mkdir()
        else:
            campaign._until = 0.0

    monkeypatch.setattr(run_real.Campaign, "_train", train)
    return started


def test_partial_results_are_reported_as_partial(
    no_training: list[Cell], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["real", "--model", "toy", "--budget", "1024", "--methods", "pos", "--seeds", "2", "--minutes", "5"]
    assert main([*argv, "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "uniform-4-e2-rate0.0003-seed1, pos-rate0.0003-seed1" in told, "what is left"
    last = json.loads(told.splitlines()[-1])
    assert (last["seeds"], last["runs"], last["planned"]) == ({REFERENCE: 1, "pos": 1}, 2, 4)
    assert len(Results(tmp_path, Cell, MEASURED).by_cell) == 2
    assert not list(tmp_path.glob("runs/*/ckpt")), "checkpoints of finished runs are removed"
    assert main(["real", "--out", str(tmp_path), "--methods", "pos", "--seeds", "2"]) == 0
    assert [cell.name for cell in no_training[2:]] == [f"{REFERENCE}-rate0.0003-seed1"] * 2, "finished runs are kept"


def test_rates_are_kept_for_the_folder(
    no_training: list[Cell], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["real", "--model", "toy", "--budget", "1024", "--methods", REFERENCE, "--seeds", "1"]
    assert main([*start, "--rates", "1e-3,1e-4", "--out", str(tmp_path)]) == 0
    assert main(["real", "--out", str(tmp_path), "--methods", REFERENCE, "--seeds", "1"]) == 0
    assert [cell.rate for cell in no_training] == [1e-3, 1e-4]
    assert json.loads((tmp_path / SETTINGS).read_text())["conditions"]["rates"] == [1e-3, 1e-4]
    capsys.readouterr()
    assert main(["real", "--out", str(tmp_path), "--rates", "2e-3"]) == 2
    assert "conditions, rates: [0.001, 0.0001] there, [0.002] here" in capsys.readouterr().err


def test_a_method_is_shown_at_its_best_rate(tmp_path: Path) -> None:
    found = folder_of(tmp_path / "out")
    for rate, step in ((1e-4, 0.02), (1e-3, 0.08)):
        accuracy = [0.2 + step * at for at in range(9)]
        for seed in range(3):
            run = record(tmp_path / f"{rate}-{seed}", accuracy)
            found.add(Cell("pos", rate, seed), result_of(run, CONDITIONS.kind))
    run = record(tmp_path / "alone", [0.2 + 0.09 * at for at in range(9)])
    found.add(Cell("pos", 1e-2, 0), result_of(run, CONDITIONS.kind))
    (row,) = table(found, ["pos"], CONDITIONS)
    assert (row.rate, row.rates, row.seeds) == (1e-3, 3, 3), "one seed does not win over three"
    assert row.final == pytest.approx(0.84)


def test_workings_are_measured_at_the_budget_in_tokens(tmp_path: Path) -> None:
    conditions = replace(CONDITIONS, model="totals-10", budget=384)
    with RunLog(tmp_path / "run", {}) as log:
        for step, (right, working) in enumerate([(0.2, 0.1), (0.4, 0.3), (0.6, 0.5)]):
            if step:
                log.log_step(step, step_row(128) | {"ada/surprisal": 0.5 / step})
            measured = {"eval/accuracy": right, "eval/score": 0.75 * right + 0.25 * working, "eval/ci95": 0.03}
            log.log_evaluation(step, measured | {"eval/pass@8": 0.9, "eval/tokens": 30.0})
    found = folder_of(tmp_path / "out")
    found.add(Cell("n8/1", 2e-5, 0), result_of(read_run(tmp_path / "run"), conditions.kind))
    (row,) = table(found, [], conditions)
    assert row.final == pytest.approx(0.5), "half-way between two evaluations"
    assert row.measures == {"working_right": pytest.approx(0.4), "pass": pytest.approx(0.9),
                            "length": pytest.approx(30.0), "surprisal": pytest.approx(0.25)}  # fmt: skip


@pytest.fixture
def campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[run_real.Campaign]:
    """One whose model and prompts are not built."""
    subject = run_real.SUBJECTS["toy"]
    free = replace(subject, build=lambda cache: cache / "model", write=lambda *args, **kwargs: None)
    monkeypatch.setitem(run_real.SUBJECTS, "toy", free)
    monkeypatch.setattr(trainings, "POLL_S", 0.01)
    results = folder_of(tmp_path / "out")
    with trainings.alone(results.folder) as lock:
        yield run_real.Campaign(CONDITIONS, plan(CONDITIONS, ["pos"], 1), results, lock, math.inf)


def test_interrupted_run_goes_on_from_its_checkpoint(campaign: run_real.Campaign, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    record(run_dir, [0.2])
    (run_dir / "ckpt" / "_actor").mkdir(parents=True)
    (run_dir / "ckpt" / "_actor" / "latest").write_text("global_step1")
    assert campaign._flags(Cell("pos", RATE, 0), run_dir)["ckpt.load_enable"]
    assert (run_dir / "metrics.jsonl").exists()


def test_interrupted_run_without_a_checkpoint_starts_anew(campaign: run_real.Campaign, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    record(run_dir, [0.2])
    assert "ckpt.load_enable" not in campaign._flags(Cell("pos", RATE, 0), run_dir)
    assert not run_dir.exists()


@pytest.fixture
def sleeping(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Instead of a training, a process that sleeps; all that were told to end."""
    ended: list[subprocess.Popen[bytes]] = []
    start, end = subprocess.Popen, trainings.end_training
    monkeypatch.setattr(subprocess, "Popen", lambda command, **given: start(["sleep", "60"], **given))
    monkeypatch.setattr(trainings, "end_training", lambda process: ended.append(process) or end(process))
    return ended


def test_failed_training_is_reported(
    campaign: run_real.Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainings.sys, "executable", "false")
    with pytest.raises(
        trainings.UnfinishedTrainingError, match=r"training of pos-rate0\.0003-seed0 ended with status 1"
    ):
        campaign._train(Cell("pos", RATE, 0), tmp_path / "run")


@pytest.mark.parametrize("reason", ["budget is spent", "time is up", "interrupted"])
def test_no_training_is_left_behind(
    reason: str,
    campaign: run_real.Campaign,
    sleeping: list[subprocess.Popen[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if reason == "interrupted":
        monkeypatch.setattr(campaign, "_progress", mock.Mock(side_effect=KeyboardInterrupt))
    if reason == "time is up":
        campaign._until = 0.0
    if reason == "budget is spent":
        monkeypatch.setattr(campaign, "_flags", lambda cell, run_dir: {})
        record(tmp_path / "run", pace("pos", 0))
    with pytest.raises(KeyboardInterrupt) if reason == "interrupted" else nullcontext():
        campaign._train(Cell("pos", RATE, 0), tmp_path / "run")
    assert [process.returncode for process in sleeping] == [-signal.SIGTERM]
