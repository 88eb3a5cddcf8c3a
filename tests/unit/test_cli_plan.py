"""`openrlhf-ada plan`: steps by hand and by enumeration, sources, recorded runs, budgets, and wrong input."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from openrlhf_ada.cli.main import main as program
from openrlhf_ada.cli.plan import main
from openrlhf_ada.config.presets import METHODS
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.simulation.step_seconds import STEP_MODELS
from openrlhf_ada.simulation.virtual_engines import EngineModel

ENGINE = EngineModel(batch_sizes=(1, 64), step_seconds=(0.01, 0.01), slots=64)


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """Ten milliseconds a token, however many rollouts."""
    file = tmp_path / "engine.json"
    file.write_text(json.dumps(asdict(ENGINE)))
    return file


def planned(tmp_path: Path, *argv: str) -> dict[str, dict[str, Any]]:
    """By method."""
    out = tmp_path / "plan.json"
    assert main([*argv, "--json", str(out)]) == 0
    return {row["method"]: row for row in json.loads(out.read_text())}


def fails(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """What `openrlhf-ada plan` says, with status 2."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["openrlhf-ada", "plan", *argv])
        try:
            assert program() == 2
        except SystemExit as stop:
            assert stop.code == 2
    return capsys.readouterr().err


@pytest.mark.slow
def test_uniform_sampling_has_the_signal_of_its_pass_rates(tmp_path: Path, engine: Path) -> None:
    """Under Beta(1, 1), 4 rollouts are of one outcome with 2/5; each trained token takes its time."""
    few = ("--methods", "grpo", "--beta", "1,1", "--engine", str(engine), "--prompts", "400", "--max_tokens", "40")
    plan = planned(tmp_path, *few)["grpo"]
    assert plan["signal"] == pytest.approx(0.6, abs=0.07)
    assert (plan["rollouts"], plan["trained"]) == (1600, 1600)
    # Over the standard deviation of 4: a little more where outcomes are rare.
    assert plan["weights"] == pytest.approx([1.046, 1.046], abs=1e-3)
    assert plan["fixed_s"] == STEP_MODELS["1.5b"].fixed
    assert plan["training_s"] == pytest.approx(STEP_MODELS["1.5b"].per_token * (plan["tokens"] + 128 * 1600))
    # 200 rollouts of up to 40 tokens on each engine of 64 slots: four of the longest after each other.
    assert plan["sampling_s"] == pytest.approx(4 * 40 * 0.01, rel=0.05)
    assert plan["seconds"] == pytest.approx(plan["sampling_s"] + plan["training_s"] + plan["fixed_s"])


def test_two_passes_train_every_token_twice(tmp_path: Path, engine: Path) -> None:
    argv = ("--methods", "rated-pos", "--engine", str(engine), "--prompts", "64")
    plan = planned(tmp_path, *argv, "--max_tokens", "1")["rated-pos"]
    assert plan["training_s"] == pytest.approx(2 * STEP_MODELS["1.5b"].per_token * 129 * plan["trained"])
    assert plan["weights"][0] > 1 > plan["weights"][1]


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Two engines of ten milliseconds a token; 1 ms for each trained token, and 7 s."""
    file = tmp_path / "machine.json"
    step = {"per_token": 1e-3, "fixed": 7.0}
    file.write_text(json.dumps({"engine": asdict(ENGINE), "engines": 2, "step": step, "parts": {}}))
    return file


def test_a_measured_machine_gives_all_seconds(tmp_path: Path, machine: Path) -> None:
    """200 rollouts on 2 engines of 64 slots: two of the longest after each other."""
    argv = (
        "--methods",
        "grpo",
        "--machine",
        str(machine),
        "--prompts",
        "50",
        "--max_tokens",
        "40",
        "--tokens",
        "9000",
    )
    plan = planned(tmp_path, *argv)["grpo"]
    assert plan["sampling_s"] == pytest.approx(2 * 40 * 0.01, rel=0.05)
    assert plan["training_s"] == pytest.approx(1e-3 * 200 * (40 + 128))
    assert plan["fixed_s"] == 7.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "--machine"),
        ("{}", "does not describe a machine"),
        ('{"parts": {}, "engine": {}}', "not everything is measured"),
        ("[1]", "does not describe a machine"),
    ],
)
def test_a_file_of_no_machine_is_refused(
    text: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "none.json"
    if text is not None:
        file.write_text(text)
    error = fails(capsys, "--machine", str(file))
    assert said in error and str(file) in error


@pytest.mark.slow
def test_answers_are_as_long_as_is_said(tmp_path: Path, engine: Path) -> None:
    argv = ("--methods", "grpo", "--engine", str(engine), "--prompts", "512")
    plan = planned(tmp_path, *argv, "--tokens", "9000")["grpo"]
    assert plan["tokens"] / plan["rollouts"] == pytest.approx(9000, rel=0.1)
    plan = planned(tmp_path, *argv, "--tokens", "9000", "--max_tokens", "100")["grpo"]
    assert plan["tokens"] / plan["rollouts"] == pytest.approx(100, rel=0.02)


@pytest.mark.slow
def test_a_prepared_data_set_gives_pass_rates_and_lengths(tmp_path: Path, engine: Path) -> None:
    """Half never right and half always: with little shrinkage, hardly a group has both outcomes."""
    rows = [{"ada_draws": 1000, "ada_positives": 1000 * (i % 2), "mean_tokens": 20.0} for i in range(40)]
    data = tmp_path / "train.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), data)
    plan = planned(tmp_path, str(data), "--methods", "grpo", "--engine", str(engine), "--prompts", "256")["grpo"]
    assert plan["signal"] < 0.05
    assert plan["tokens"] / plan["rollouts"] == pytest.approx(20, rel=0.1)


@pytest.fixture
def run_dir(tmp_path: Path, engine: Path) -> Path:
    """A step of two prompts: 3 and 4 rollouts of 10 tokens, 2 of each trained, 5 s of which 2 for sampling."""
    run = tmp_path / "run"
    run.mkdir()
    flags: dict[str, Any] = {
        "ada": asdict(AdaConfig(mode="seq", wave=2, max_samples=4, k_pos=1, k_neg=1)),
        "rollout": {"n_samples_per_prompt": 2, "batch_size": 2},
        "algo": {"advantage": {"estimator": "dr_grpo"}},
        "train": {"seed": 1, "max_epochs": 1},
        "vllm": {"num_engines": 3},
    }
    (run / "config.json").write_text(json.dumps(flags))
    step = {"step": 1, "timing/generation": 2.0, "ada/step_s": 5.0, "ada/kept": 4, "ada/kept_tokens": 40}
    (run / "metrics.jsonl").write_text(json.dumps(step) + "\n")
    samples = [
        {"step": 1, "prompt_id": row, "key": row, "index": k, "metric": score, "reward": score, "tokens": 10}
        for row, scores in enumerate(([1, 0], [0, 0, 1, 1]))
        for k, score in enumerate(scores)
    ]
    (run / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    (run / "engine.json").write_text(engine.read_text())
    return run


def test_a_run_gives_prompts_engines_and_seconds_of_training(run_dir: Path, tmp_path: Path) -> None:
    """Its steps took 3 s outside sampling for 4 trained rollouts of 10 tokens and their prompts."""
    plan = planned(tmp_path, str(run_dir), "--methods", "grpo", "--prompts", "30")["grpo"]
    assert plan["training_s"] == pytest.approx(120 * (10 + 128) * 3 / (40 + 4 * 128), rel=0.01)
    assert plan["fixed_s"] == 0
    # 120 rollouts on 3 engines of 64 slots: all at once.
    assert plan["sampling_s"] == pytest.approx(0.1, rel=0.11)


def test_wrong_answers_of_one_epoch_take_time_once(run_dir: Path, tmp_path: Path) -> None:
    """Where rollouts that are not trained are not computed."""
    file, flags = run_dir / "config.json", json.loads((run_dir / "config.json").read_text())
    seconds: dict[tuple[str, int], float] = {}
    for zeros, wrong in product(("compute", "skip"), (0, 1)):
        flags["train"]["max_epochs"] = 2
        flags["ada"] |= {"zeros": zeros, "wrong_epochs": wrong}
        file.write_text(json.dumps(flags))
        plan = planned(tmp_path, str(run_dir), "--methods", "recorded", "--prompts", "30")["recorded"]
        seconds[zeros, wrong] = plan["training_s"]
    assert seconds["compute", 0] == seconds["compute", 1] >= seconds["skip", 0]
    # Of groups of two, with one of each outcome.
    assert seconds["skip", 1] == pytest.approx(0.75 * seconds["skip", 0], rel=1e-3)


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_runs_own_settings_stand_beside_methods_at_equal_prompts(run_dir: Path, tmp_path: Path, epochs: int) -> None:
    """Half of its rollouts were right: 2 of each prompt, and 2 more where these are of one outcome."""
    file = run_dir / "config.json"
    file.write_text(file.read_text().replace('"max_epochs": 1', f'"max_epochs": {epochs}'))
    rows = planned(tmp_path, str(run_dir), "--methods", "recorded,grpo", "--engines", "1")
    assert [row["prompts"] for row in rows.values()] == [2, 2]
    own = rows["recorded"]
    assert 4 <= own["rollouts"] <= 8 and own["trained"] == 4
    assert own["tokens"] == pytest.approx(10 * own["rollouts"], rel=0.11)
    assert own["training_s"] == pytest.approx(3.0, rel=0.01), "as it took"
    assert own["groups_a_minute"] == pytest.approx(60 * 2 * own["signal"] / own["seconds"])


def test_pass_rates_of_a_run_are_those_of_its_prompts(run_dir: Path, tmp_path: Path) -> None:
    """One prompt of two was always right, and one never: hardly a group of two has both outcomes."""
    samples = [
        {"step": 1, "prompt_id": key, "key": key, "index": k, "metric": key, "reward": key, "tokens": 10}
        for key in (0, 1)
        for k in range(500)
    ]
    (run_dir / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    assert planned(tmp_path, str(run_dir), "--methods", "grpo", "--prompts", "200")["grpo"]["signal"] < 0.05


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda run: (run / "engine.json").unlink(), "plan --calibrate"),
        (lambda run: (run / "engine.json").write_text("[1]"), "engine.json"),
        (lambda run: (run / "samples.jsonl").unlink(), "has no record of single rollouts"),
        (lambda run: (run / "config.json").unlink(), "is not a run directory"),
        (lambda run: with_mode(run, '"seq", "old_flag": 1'), "--ada_old_flag"),
    ],
)
def test_a_run_that_cannot_be_planned_is_named(
    run_dir: Path, break_it: Callable[[Path], object], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    break_it(run_dir)
    error = fails(capsys, str(run_dir), "--methods", "recorded")
    assert said in error and ("--ada_" in said or str(run_dir) in error)


def test_a_run_of_mode_off_is_not_calibrated(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_mode(run_dir, '"off"')
    assert "--ada_mode off" in fails(capsys, str(run_dir), "--calibrate")


def with_mode(run: Path, mode: str) -> None:
    config = run / "config.json"
    config.write_text(config.read_text().replace('"mode": "seq"', f'"mode": {mode}'))


@pytest.mark.slow
def test_chosen_prompts_have_more_signal_and_a_split_its_budget(tmp_path: Path, engine: Path) -> None:
    argv = ("--methods", "prime-rl-pools,vip", "--engine", str(engine), "--prompts", "64", "--max_tokens", "8")
    chosen, split = planned(tmp_path, *argv).values()
    assert chosen["rollouts"] == split["rollouts"] == 8 * 64
    assert chosen["signal"] > split["signal"] + 0.02


@pytest.mark.slow
def test_what_is_recommended_says_on_which_evidence(tmp_path: Path, engine: Path, capsys: Any) -> None:
    names = ("reinforce-ada-balance", "uniform-8", "spo-n2", "grpo")
    argv = ("--methods", ",".join(names), "--engine", str(engine), "--prompts", "32", "--max_tokens", "20")
    plans = planned(tmp_path, *argv)
    assert tuple(plans) == names
    assert plans["uniform-8"]["trained"] < plans["uniform-8"]["rollouts"] == 8 * 32, "rollouts without an advantage"
    shown = capsys.readouterr().out
    assert "…" not in shown, "no column is cut"
    recommended, control, experiment = (line for line in " ".join(shown.split()).split(" - ")[-3:])
    assert "reinforce-ada-balance is recommended" in recommended and "2510.04996" in recommended
    assert "uniform-8" in control
    assert "first-success-8" in experiment and "docs/arena.md" in experiment


NOT_PLANNED = {"dapo", "greso", "speed", "pilot-commit", "ppo", "reinforce-ada-est-critic"}
"""They replace prompts or read a critic."""


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(METHODS) - NOT_PLANNED))
def test_every_other_method_can_be_planned(name: str, tmp_path: Path, engine: Path) -> None:
    argv = ("--methods", name, "--engine", str(engine), "--prompts", "64", "--max_tokens", "8")
    plan = planned(tmp_path, *argv)[name]
    assert plan["rollouts"] >= plan["trained"] > 0


@pytest.mark.parametrize("name", sorted(NOT_PLANNED))
def test_what_is_not_simulated_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"--methods {name}" in fails(capsys, "--methods", f"grpo,{name}")


def test_a_method_of_ones_own_is_planned(tmp_path: Path, engine: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text("summary: mine\nsource: me\nbase: grpo\nflags: {rollout.n_samples_per_prompt: 2}\n")
    plan = planned(tmp_path, "--methods", str(own), "--engine", str(engine), "--prompts", "8", "--max_tokens", "8")
    assert plan[str(own)]["rollouts"] == 16


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--prompts", "8193"), "argument --prompts: 8193: expected a whole number from 1 to 8,192"),
        (("--json", "nowhere/plan.json"), "--json nowhere/plan.json: there is no folder nowhere"),
        (("--calibrate",), "--calibrate needs the folder of a run"),
        (("--methods", "recorded"), "--methods recorded"),
        (("--engines", "0"), "argument --engines: 0: expected a whole number from 1 to 1,000"),
        (("--beta", "3"), "argument --beta: 3: expected two numbers above 0, such as 0.5,3.5"),
        (("--beta", "1,-1"), "argument --beta: 1,-1: expected two numbers above 0"),
        (("--methods", "gvn"), "--ada_method gvm"),
        (("--engine", "README.md"), "README.md does not describe an engine as --calibrate writes it"),
        (("README.md",), "README.md is no Parquet file with columns ada_draws and ada_positives"),
        (("docs",), "docs is not a run directory: it has no config.json"),
        (("README.md", "--beta", "1,1"), "--beta: the answers are those of README.md. Leave out one of the two"),
    ],
)
def test_wrong_input_says_what_to_do(argv: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in fails(capsys, "--methods", "grpo", *argv)


def test_a_run_has_its_own_lengths(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--tokens: the answers are those of" in fails(capsys, str(run_dir), "--tokens", "9")


@pytest.mark.parametrize(
    "row", ["", '{"step": 1, "ada/step_s": 5.0, "timing/generation": 2.0}\n'], ids=["begun", "off"]
)
def test_a_run_without_a_sampled_step_is_refused(run_dir: Path, row: str, capsys: pytest.CaptureFixture[str]) -> None:
    (run_dir / "metrics.jsonl").write_text(row)
    said = fails(capsys, str(run_dir))
    assert str(run_dir) in said and "--ada_mode seq" in said


@pytest.mark.slow
def test_rows_that_were_never_sampled_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "none.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"ada_draws": [0], "ada_positives": [0]}), data)
    assert "has no row with an answer (ada_draws)" in fails(capsys, str(data), "--methods", "grpo")


@pytest.mark.slow
def test_one_line_says_what_comes_where_no_terminal_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["--methods", "grpo,maxrl"]) == 0
    said = capsys.readouterr().err
    assert "grpo, maxrl: 0/2" in said.splitlines()[0] and said.replace("\n", "").isprintable()
