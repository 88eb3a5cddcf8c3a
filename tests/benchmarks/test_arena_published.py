"""Published settings at equal seconds: command lines, prompts, size, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as parquet
import pytest

from benchmarks.arena import published, run_real
from benchmarks.arena.__main__ import main
from benchmarks.arena.folders import Results, keep_settings
from benchmarks.arena.page import language_model
from benchmarks.arena.real import MEASURED, Cell, Conditions, plan, result_of, run_flags, sizes
from openrlhf_ada.cli.demo import words
from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.presets import METHODS as PRESETS
from openrlhf_ada.platforms.resources import required_slots
from openrlhf_ada.reporting.run_log import RunLog
from openrlhf_ada.reporting.run_record import read_run
from openrlhf_ada.trainer.preflight import check_without_files

SECONDS = {"uniform-8": 100.0, "reinforce-ada-balance": 200.0, "reinforce-ada-est": 125.0, "lambda-n1-e2": 80.0}
CONDITIONS = Conditions("math-1.5b", 8000, (1e-6,), 0, 4, "MODEL", "none.parquet", 4, SECONDS, 0.01)


@pytest.mark.parametrize("method", published.METHODS)
@pytest.mark.parametrize("model", ["math-1.5b", "math-toy"])
def test_command_lines_are_those_of_the_published_settings(method: str, model: str) -> None:
    is_toy = model == "math-toy"
    conditions = Conditions(model, 24, (3e-4,), 256, 4) if is_toy else CONDITIONS
    args = parse(words(run_flags(method, conditions)), check_without_files)
    assert args.ada.method == method and args.actor.lr_scheduler == "constant"
    assert args.ada.eval_ends and args.eval.n_samples_per_prompt == 4
    assert required_slots(args).gpus >= (1 if is_toy else 4)
    flags = PRESETS[method].flags
    assert args.train.max_epochs == flags.get("train.max_epochs", 1)
    prompts, epochs, updates = sizes(method, conditions)
    assert (prompts, epochs) == (args.rollout.batch_size, args.train.max_epochs)
    assert updates == epochs * (1 if is_toy else 4), "as many updates of an epoch for all"


def test_all_are_evaluated_at_about_the_same_seconds() -> None:
    for method, seconds in SECONDS.items():
        assert run_flags(method, CONDITIONS)["eval.steps"] * seconds == pytest.approx(1000, rel=0.21)


def prepared(file: Path, rows: int) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    measured = {"ada_draws": 16, "ada_positives": 1, "mean_tokens": 700.0}
    parquet.write_table(
        pyarrow.Table.from_pylist([{"input": f"{i}", "label": f"{i}"} | measured for i in range(rows)]), file
    )
    return file


def inputs(file: str) -> set[str]:
    return set(parquet.read_table(file)["input"].to_pylist())


def test_held_out_prompts_are_never_trained_and_differ_by_seed(tmp_path: Path) -> None:
    source = prepared(tmp_path / "all.parquet", published.HELDOUT + 88)
    splits = [published.split(source, tmp_path / f"seed{seed}", seed) for seed in (0, 1)]
    for train, heldout in splits:
        assert len(inputs(heldout)) == published.HELDOUT and len(inputs(train)) == 88
        assert not inputs(train) & inputs(heldout)
    assert inputs(splits[0][1]) != inputs(splits[1][1])
    with pytest.raises(ValueError, match="are held out"):
        published.split(prepared(tmp_path / "few.parquet", published.HELDOUT), tmp_path / "few", 0)


def test_size_is_budget_evaluations_start_and_data() -> None:
    """12 runs on 4 GPUs: 8000 s and half of an eighth, 9 evaluations of 512 x 4 answers, 300 s; 480,000 of data."""
    hours, told = published.size(CONDITIONS, 12)
    run = 8000 * (1 + 1 / 16) + 9 * 512 * 4 * 0.01 + 300
    assert hours == pytest.approx(4 * (12 * run + 30_000 * 16 * 0.01) / 3600)
    assert f"{hours:.0f} GPU-hours" in told and "lambda-n1-e2 100" in told and "12 runs" in told


@pytest.mark.slow
def test_fewer_gpus_take_longer_for_a_step(tmp_path: Path) -> None:
    """Sampling and training by the token, not what is fixed. A measured machine has its own number."""
    many, few = (published.planned("1.5b", tmp_path / "none", ["uniform-8"], gpus)[0] for gpus in (8, 2))
    assert many["seconds"] == pytest.approx(many["sampling_s"] + many["training_s"] + 35.0)
    assert few["seconds"] == pytest.approx(few["sampling_s"] + 4 * many["training_s"] + 35.0)
    assert few["sampling_s"] > 1.5 * many["sampling_s"]
    engine = {"batch_sizes": [1, 64], "step_seconds": [0.01, 0.02], "slots": 64}
    file = tmp_path / "machine.json"
    file.write_text(json.dumps({"engine": engine, "engines": 3, "step": {"per_token": 1e-6, "fixed": 1.0}}))
    assert published.gpus_of(str(file)) == 3


Call = Callable[..., "tuple[int, str, str]"]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """`real --model math-1.5b` in a new folder, with the steps of SECONDS; (status, output, what is said beside)."""

    def planned(machine: str, data: Path, methods: Any, gpus: int) -> list[dict[str, Any]]:
        return [{"method": m, "seconds": SECONDS.get(m, 50.0), "sampling_s": 40.0, "rollouts": 4000} for m in methods]

    monkeypatch.setattr(published, "planned", planned)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def start(*argv: str) -> tuple[int, str, str]:
        status = main(["real", "--model", "math-1.5b", "--out", str(tmp_path / "out"), *argv])
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return start


def test_a_dry_run_says_how_large_it_is_and_starts_nothing(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget is 100 steps of the reference."""
    monkeypatch.setattr(run_real, "alone", None)
    status, told, said = call("--dry-run", "--gpus", "4", "--weights", "Qwen/Qwen3-1.7B-Base")
    assert status == 0 and not (tmp_path / "out").exists()
    assert "12 runs of 2.8 h on 4 GPUs" in said and "GPU-hours" in said and "prepare data" in said
    assert [line.partition(":")[0] for line in told.splitlines()] == list(published.METHODS)


def test_it_prepares_data_once_and_keeps_what_plan_said(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[Cell] = []

    def train(campaign: run_real.Campaign, cell: Cell, run_dir: Path) -> None:
        trained.append(cell)
        campaign._until = 0.0

    prepared_for: list[str] = []

    def prepare(conditions: Conditions) -> None:
        assert conditions.data is not None
        prepared_for.append(conditions.data)
        prepared(Path(conditions.data), 600)

    monkeypatch.setattr(run_real.Campaign, "_train", train)
    monkeypatch.setattr(published, "prepare", prepare)
    for _ in range(2):
        assert call("--minutes", "5")[0] == 0
        monkeypatch.setattr(published, "planned", None)
    assert [cell.name for cell in trained] == ["uniform-8-rate1e-06-seed0"] * 2
    assert prepared_for == [str(tmp_path / "out" / "data" / "train.parquet")] * 2
    kept = json.loads((tmp_path / "out" / "settings.json").read_text())["conditions"]
    assert (kept["budget"], kept["step_seconds"], kept["gpus"]) == (10_000, SECONDS, 8)
    assert call("--gpus", "4")[0] == 2, "other conditions need another folder"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--methods", "unifrom-8"), "uniform-8"),
        (("--data", "/nowhere.parquet"), "--data /nowhere.parquet"),
        (("--gpus", "0"), "--gpus 0"),
        ((), "--gpus 8: 0 can be used here"),
        (("--budget", "0"), "--budget 0"),
        (("--model", "math-toy", "--gpus", "1"), "--gpus is for --model math-1.5b"),
    ],
)
def test_bad_input_is_named(argv: tuple[str, ...], said: str, call: Call) -> None:
    status, _, told = call(*argv)
    assert status == 2 and said in told


def test_results_are_shown_with_pass_at_k(tmp_path: Path) -> None:
    """Beside the reference, at equal seconds: twice as fast costs half."""
    keep_settings(tmp_path, {}, ())
    found = Results(tmp_path / "out", Cell, MEASURED)
    for cell in plan(CONDITIONS, published.METHODS[:2], 3):
        gain = 0.1 if cell.method == "uniform-8" else 0.2
        with RunLog(tmp_path / cell.name, {}) as log:
            for step in range(9):
                if step:
                    log.log_step(step, STEP | {"ada/step_s": 1000.0})
                at = {
                    "eval/accuracy": 0.1 + gain * step / 8,
                    "eval/ci95": 0.03,
                    "eval/pass@4": 0.5,
                    "eval/tokens": 700.0,
                }
                log.log_evaluation(step, at)
        found.add(cell, result_of(read_run(tmp_path / cell.name), CONDITIONS.kind))
    text = "\n\n".join(language_model(found, CONDITIONS))
    assert "`MODEL` on 4 GPUs" in text and "8,000 seconds" in text and "pass@4" in text
    assert "| `reinforce-ada-balance` | 3 | +5.0 (+5.0 to +5.0) | 0.50 (0.50 to 0.50) |" in text


STEP = {
    "ada/drawn": 100, "ada/drawn_tokens": 1000, "ada/kept_tokens": 500, "timing/generation": 500.0,
    "timing/make_experience": 100.0, "timing/ppo_train": 300.0,
}  # fmt: skip
