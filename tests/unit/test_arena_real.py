"""Methods on the real stack: their command lines, what is kept of a run, the table, and what is refused."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from documents import ROOT

from openrlhf_ada.arena.methods import METHODS
from openrlhf_ada.arena.page import PACKED
from openrlhf_ada.arena.real import (
    CELLS,
    METHODS_DEFAULT,
    REFERENCE,
    SETTINGS,
    STEP_ROLLOUTS,
    Cell,
    Conditions,
    Results,
    cell_flags,
    curve,
    is_finished,
    plan,
    prompts_per_step,
    rollouts_per_prompt,
)
from openrlhf_ada.arena.real_page import FIGURE, FIRST, LAST, render_real
from openrlhf_ada.arena.real_tables import table, target_of
from openrlhf_ada.cli import arena_page, arena_real
from openrlhf_ada.cli.arena import build_parser, main
from openrlhf_ada.cli.demo import TOY, flags_of_any_run, words
from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.method_rules import without_effect
from openrlhf_ada.reporting.run_log import RunLog
from openrlhf_ada.reporting.run_record import Run, read_run
from openrlhf_ada.trainer.preflight import check_without_files

CONDITIONS = Conditions("toy", 1024, 3e-4, 256, 8)


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


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Three seeds of the reference and of `pos`."""
    found = Results(tmp_path / "out", CONDITIONS)
    found.start()
    for cell in plan(["pos"], 3):
        found.add(cell, record(tmp_path / cell.name, pace(cell.method, cell.seed)))
    return found


# -- plan -------------------------------------------------------------------------------------------------------------


def test_whole_seeds_come_first_and_the_reference_with_them() -> None:
    assert [cell.name for cell in plan(["pos", "dapo"], 2)] == [
        f"{method}-seed{seed}" for seed in (0, 1) for method in (REFERENCE, "pos", "dapo")
    ]


QUICKLY_CHECKED = (REFERENCE, "rated", "balance")
"""Methods whose command lines are read in the fast tests as well; the slow ones read all."""


@pytest.mark.parametrize(
    "method", [name if name in QUICKLY_CHECKED else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def test_command_line_is_valid_and_has_the_methods_settings(method: str) -> None:
    folder = Path("/nowhere")
    flags = flags_of_any_run(TOY, folder, folder, folder) | cell_flags(Cell(method, 2), CONDITIONS)
    args = parse(words(flags), check_without_files)
    settings, expected = args.ada, METHODS[method]
    assert not any("speculation" in line for line in without_effect(settings))
    assert not settings.waits or args.ada.mode == "est" or args.ada.speculation == 0
    assert settings.group_size == expected.n
    ada = {name: value for name, value in expected.ada.items() if not (expected.refill and name == "select")}
    assert {name: getattr(args.ada.given, name) for name in ada} == ada
    assert settings.refills == expected.refill
    assert args.algo.advantage.estimator == expected.estimator
    assert args.train.batch_size * expected.parts == args.rollout.batch_size * expected.n, "one update a part"
    assert args.train.max_epochs == expected.passes
    assert (args.actor.adam.lr, args.actor.lr_scheduler) == (CONDITIONS.rate, "constant")


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS_DEFAULT)
def test_steps_draw_about_the_same(method: str) -> None:
    assert prompts_per_step(method) * rollouts_per_prompt(method) == pytest.approx(STEP_ROLLOUTS, rel=0.1)


def test_replaced_prompts_count() -> None:
    """8 rollouts at a pass rate of Beta(1, 1.5): all wrong with chance .158, all right with .047; 128 * .795 / 8."""
    assert prompts_per_step("uniform-8") == 16
    assert prompts_per_step("dapo-8") == 13


def test_budget_is_measured_at_eight_places() -> None:
    assert Conditions("smollm2", 6144, 2e-5, 1024, 2).eval_steps == 6
    assert Conditions("toy", 384, 3e-4, 256, 8).eval_steps == 1


# -- a run's record ---------------------------------------------------------------------------------------------------


def test_run_ends_at_the_evaluation_after_its_budget(tmp_path: Path) -> None:
    run = record(tmp_path, [0.2, 0.3, 0.4])
    assert is_finished(run, 256) and not is_finished(run, 257)
    late = record(tmp_path / "late", [0.3, 0.4], first_step=2)
    assert not is_finished(late, 128), "no evaluation at the start"


def test_result_has_costs_of_every_step_up_to_the_last_evaluation(tmp_path: Path) -> None:
    with RunLog(tmp_path, {}) as log:
        log.log_evaluation(0, {"eval/accuracy": 0.2, "eval/ci95": 0.03})
        log.log_step(1, step_row(100))
        log.log_step(2, step_row(156))
        log.log_evaluation(2, {"eval/accuracy": 0.4, "eval/ci95": 0.04})
        log.log_step(3, step_row(128))
    found = Results(tmp_path / "out", CONDITIONS)
    found.start()
    found.add(Cell("pos", 0), read_run(tmp_path))
    result = json.loads((tmp_path / "out" / CELLS).read_text())
    assert result["by_step"] == {
        "rollouts": [100, 156], "tokens": [200, 312], "trained_tokens": [100, 156], "sampling_seconds": [1.0, 1.0],
        "training_seconds": [1.5, 1.5], "seconds": [3.0, 3.0],
    }  # fmt: skip
    assert result["evaluations"] == {"step": [0, 2], "accuracy": [0.2, 0.4], "half_width": [0.03, 0.04]}
    assert curve(result, "rollouts") == ([0, 256], [0.2, 0.4])
    assert curve(result, "seconds") == ([0, 6.0], [0.2, 0.4])


# -- results ----------------------------------------------------------------------------------------------------------


def test_finished_runs_are_read_again(results: Results) -> None:
    again = Results(results.folder, CONDITIONS)
    assert again.by_cell == results.by_cell and len(again.by_cell) == 6


def test_folder_of_other_conditions_is_refused(results: Results) -> None:
    other = Conditions("toy", 2048, 3e-4, 256, 8)
    with pytest.raises(ValueError, match="other settings: budget is 1024 there and 2048 here"):
        Results(results.folder, other)


def test_run_with_other_flags_is_refused(results: Results) -> None:
    file = results.folder / CELLS
    file.write_text(file.read_text().replace('"rollout.batch_size": 32', '"rollout.batch_size": 16'))
    with pytest.raises(
        ValueError,
        match=r"line 1 \(uniform-4-twice-seed0\) has other settings: rollout.batch_size is 16 there and 32 here",
    ):
        Results(results.folder, CONDITIONS)


@pytest.mark.parametrize(("line", "says"), [("{", "line 1 is no result"), ("{}", "no 'method'")])
def test_foreign_line_is_named(line: str, says: str, tmp_path: Path) -> None:
    (tmp_path / CELLS).write_text(line + "\n")
    with pytest.raises(ValueError, match=says):
        Results(tmp_path, CONDITIONS)


# -- table ------------------------------------------------------------------------------------------------------------


def test_twice_as_fast_costs_half(results: Results) -> None:
    """The reference starts at .21 on average and gains .4; 80 % of it are .53: after 6.4 steps, or 3.2."""
    assert target_of(results, 3) == pytest.approx(0.21 + 0.8 * 0.4)
    reference, pos = table(results, ["pos"], 3)
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


def test_interval_is_students_and_paired(results: Results, tmp_path: Path) -> None:
    """Gains of .05, .10 and .15 in mean accuracy: mean .1, standard deviation .05, t(2) = 4.303."""
    for seed, step in enumerate((0.0625, 0.075, 0.0875)):
        curve_of = [0.2 + 0.01 * seed + step * at for at in range(9)]
        results.add(Cell("balance", seed), record(tmp_path / f"b{seed}", curve_of))
    row = next(row for row in table(results, ["balance"], 3) if row.method == "balance")
    half = 4.3027 * 0.05 / 3**0.5
    assert row.gain and row.gain.low is not None and row.gain.high is not None
    assert (row.gain.mean, row.gain.low, row.gain.high) == pytest.approx((0.1, 0.1 - half, 0.1 + half), abs=1e-4)


def test_two_seeds_have_no_interval(results: Results) -> None:
    pos = table(results, ["pos"], 2)[1]
    assert pos.gain and (pos.gain.low, pos.gain.high) == (None, None)


def test_method_without_the_reference_is_not_compared(tmp_path: Path) -> None:
    found = Results(tmp_path / "out", CONDITIONS)
    found.start()
    found.add(Cell("pos", 0), record(tmp_path / "run", pace("pos", 0)))
    (row,) = table(found, ["pos"], 3)
    assert (row.gain, row.cost, target_of(found, 3)) == (None, None, None)


# -- command ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--methods", "posh"], "--methods posh: there is no such name. Did you mean pos? Known are uniform-2"),
        (["--methods", ","], "--methods names nothing"),
        (["--seeds", "0"], "--seeds 0: at least 1 is needed, and 3 for an interval"),
        (["--budget", "100"], "--budget 100: a run needs at least 384 rollouts"),
        (["--budget", "0"], "--budget 0: a run needs at least 384 rollouts"),
        (["--minutes", "0"], "--minutes 0: expected a number above 0"),
        (["--minutes", "nan"], "--minutes nan: expected a number above 0"),
        (["--rate", "0"], "--rate 0: a learning rate lies between 0 and 1"),
        (["--rate", "nan"], "--rate nan: a learning rate lies between 0 and 1"),
        (["--tasks", "graded"], "--tasks does not go with --real"),
        (["--quick"], "--quick does not go with --real"),
    ],
)
def test_bad_input_is_refused_at_once(
    argv: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--real", *argv, "--out", str(tmp_path)]) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_flag_of_real_runs_needs_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--minutes", "5"]) == 2
    assert "--minutes goes with --real or --agreement only" in capsys.readouterr().err


def test_folder_that_is_not_one_of_ours_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trials.jsonl").write_text("{}\n")
    assert main(["--real", "--out", str(tmp_path)]) == 2
    assert f"it holds something else (there is no {SETTINGS})" in capsys.readouterr().err
    assert main(["--real", "--resume", str(tmp_path)]) == 2
    assert f"there is no {SETTINGS}. Start a new folder with --out" in capsys.readouterr().err


def test_folder_in_use_is_refused(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    with arena_real.alone(results.folder):
        assert main(["--real", "--resume", str(results.folder)]) == 2
    assert "is in use by another call" in capsys.readouterr().err


def test_table_of_finished_runs_starts_nothing(
    results: Results, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena_real.Campaign, "_train", mock.Mock(side_effect=AssertionError))
    assert main(["--real", "--resume", str(results.folder), "--methods", "pos"]) == 0
    told = capsys.readouterr().out
    assert "toy on the real stack, 1,024 rollouts a run" in told
    assert "+20.0% [+20.0%, +20.0%]" in told and "partial" not in told
    last = json.loads(told.splitlines()[-1])
    assert last["cost_to_target"] == {REFERENCE: 1.0, "pos": 0.5}
    assert (last["runs"], last["planned"]) == (6, 6)


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """Instead of a training, its record appears; the third one does not end."""
    started: list[Cell] = []

    def train(campaign: arena_real.Campaign, cell: Cell, run_dir: Path) -> None:
        started.append(cell)
        if len(started) < 3:
            record(run_dir, pace(cell.method, cell.seed))
            (run_dir / "ckpt").mkdir()
        else:
            campaign._deadline = 0.0

    monkeypatch.setattr(arena_real.Campaign, "_train", train)
    return started


def test_partial_results_are_reported_as_partial(
    no_training: list[Cell], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--real", "--model", "toy", "--budget", "1024", "--methods", "pos", "--seeds", "2", "--minutes", "5"]
    assert main([*argv, "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "partial: 2 of 4 runs have ended. Left: uniform-4-twice-seed1, pos-seed1" in told
    assert "no intervals for methods with fewer than 3 seeds" in told
    last = json.loads(told.splitlines()[-1])
    assert (last["seeds"], last["runs"], last["planned"]) == ({REFERENCE: 1, "pos": 1}, 2, 4)
    assert len(Results(tmp_path, CONDITIONS).by_cell) == 2
    assert not list(tmp_path.glob("runs/*/ckpt")), "checkpoints of finished runs are removed"
    assert main(["--real", "--resume", str(tmp_path), "--methods", "pos", "--seeds", "2"]) == 0
    assert [cell.name for cell in no_training[2:]] == [f"{REFERENCE}-seed1"] * 2, "finished runs are kept"


def test_rate_is_kept_for_the_folder(
    no_training: list[Cell], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["--real", "--model", "toy", "--budget", "1024", "--methods", REFERENCE, "--seeds", "1"]
    assert main([*start, "--rate", "1e-3", "--out", str(tmp_path)]) == 0
    assert main(["--real", "--resume", str(tmp_path), "--methods", REFERENCE, "--seeds", "1"]) == 0
    (result,) = Results(tmp_path, replace(CONDITIONS, rate=1e-3)).by_cell.values()
    assert result["flags"]["actor.adam.lr"] == 1e-3
    capsys.readouterr()
    assert main(["--real", "--resume", str(tmp_path), "--rate", "2e-3"]) == 2
    assert "rate is 0.001 there and 0.002 here" in capsys.readouterr().err


@pytest.fixture
def campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[arena_real.Campaign]:
    """One whose model and prompts are not built."""
    monkeypatch.setattr(arena_real, "prepare_model", lambda toy, cache: cache / "model")
    monkeypatch.setattr(arena_real, "write_prompts", lambda *args, **kwargs: None)
    monkeypatch.setattr(arena_real, "POLL_S", 0.01)
    results = Results(tmp_path / "out", CONDITIONS)
    results.start()
    args = build_parser().parse_args(["--real", "--methods", "pos", "--seeds", "1", "--minutes", "5"])
    with arena_real.alone(results.folder) as lock:
        yield arena_real.Campaign(args, results, lock)


def test_interrupted_run_goes_on_from_its_checkpoint(campaign: arena_real.Campaign, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    record(run_dir, [0.2])
    (run_dir / "ckpt" / "_actor").mkdir(parents=True)
    (run_dir / "ckpt" / "_actor" / "latest").write_text("global_step1")
    assert "--ckpt.load_enable" in campaign._command(Cell("pos", 0), run_dir)
    assert (run_dir / "metrics.jsonl").exists()


def test_interrupted_run_without_a_checkpoint_starts_anew(campaign: arena_real.Campaign, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    record(run_dir, [0.2])
    assert "--ckpt.load_enable" not in campaign._command(Cell("pos", 0), run_dir)
    assert not run_dir.exists()


def test_failed_training_is_reported(
    campaign: arena_real.Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "_command", lambda cell, run_dir: ["false"])
    message = "training of pos-seed0 ended with status 1 before its budget"
    with pytest.raises(arena_real.UnfinishedTrainingError, match=message):
        campaign._train(Cell("pos", 0), tmp_path / "run")


def test_training_is_told_to_end_when_its_budget_is_spent(
    campaign: arena_real.Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[Any] = []
    monkeypatch.setattr(campaign, "_command", lambda cell, run_dir: ["sleep", "60"])
    monkeypatch.setattr(arena_real, "end_training", lambda process: ended.append(process) or process.kill())
    record(tmp_path / "run", pace("pos", 0))
    campaign._train(Cell("pos", 0), tmp_path / "run")
    assert len(ended) == 1


@pytest.mark.parametrize("reason", ["time is up", "interrupted"])
def test_no_training_is_left_behind(
    reason: str, campaign: arena_real.Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    end = arena_real.end_training
    monkeypatch.setattr(campaign, "_command", lambda cell, run_dir: ["sleep", "60"])
    monkeypatch.setattr(arena_real, "end_training", lambda process: started.append(process) or end(process))
    if reason == "time is up":
        campaign._deadline = 0.0
        campaign._train(Cell("pos", 0), tmp_path / "run")
    else:
        monkeypatch.setattr(campaign, "_progress", mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            campaign._train(Cell("pos", 0), tmp_path / "run")
    assert [process.returncode for process in started] == [-signal.SIGTERM]


# -- the page ---------------------------------------------------------------------------------------------------------


def test_page_says_what_the_runs_say(results: Results) -> None:
    text = render_real(results)
    (reference, pos) = table(results, ["pos"], 3)
    assert reference.method == REFERENCE and pos.gain is not None
    assert f"{100 * pos.gain.mean:+.1f} points" in text and f"| {pos.start:.1%} | {pos.final:.1%}" in text
    assert "Student's t over seeds" in text and "partial" not in text


def test_page_says_what_is_missing(results: Results) -> None:
    del results.by_cell[Cell("pos", 2)]
    text = render_real(results)
    assert "partial. Fewer than 3 seeds, and so no interval: `pos`." in text
    results.by_cell.clear()
    with pytest.raises(ValueError, match=f"no run of {REFERENCE} has ended"):
        render_real(results)


@pytest.mark.slow
def test_page_takes_the_runs_of_a_folder(results: Results, tmp_path: Path) -> None:
    page, kept = tmp_path / "arena.md", tmp_path / "kept"
    shutil.copytree(PACKED, kept)
    page.write_text((ROOT / "docs" / "arena.md").read_text(encoding="utf-8") + f"{FIRST}\n{LAST}\n", encoding="utf-8")
    assert arena_page.main([str(page), "--results", str(kept), "--real", str(results.folder)]) == 0
    assert render_real(results) in page.read_text(encoding="utf-8")
    assert (tmp_path / "images" / FIGURE).stat().st_size > 10_000


def test_page_takes_nothing_of_a_folder_where_no_run_has_ended(tmp_path: Path) -> None:
    new = Results(tmp_path / "new", CONDITIONS)
    new.start()
    with pytest.raises(FileNotFoundError, match=CELLS):
        arena_page.keep_real(new.folder, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_results_of_an_earlier_version_are_shown_and_not_resumed(results: Results) -> None:
    file = results.folder / CELLS
    file.write_text(file.read_text().replace('"ada_eval_ends": true', '"ada_eval_ends": false'))
    with pytest.raises(ValueError, match="has other settings: ada_eval_ends"):
        Results(results.folder, results.conditions)
    assert Results(results.folder, results.conditions, resumes=False).by_cell.keys() == results.by_cell.keys()
