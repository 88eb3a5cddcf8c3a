"""`openrlhf-ada simulate`: a recorded run on other schedulers and numbers of engines; wrong input is said at once."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from openrlhf_ada.cli.simulate import main
from openrlhf_ada.config.presets import METHODS
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.simulation.virtual_engines import GPU_LIKE, EngineModel

ENGINE = EngineModel(batch_sizes=(1, 4), step_seconds=(0.1, 0.1), slots=4)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Two steps of two prompts with waves of two. Prompt A is done at once, B takes a second wave."""
    flags: dict[str, Any] = {
        "ada": asdict(AdaConfig(mode="seq", wave=2, max_samples=4, k_pos=1, k_neg=1)),
        "rollout": {"n_samples_per_prompt": 2, "batch_size": 2},
        "algo": {"advantage": {"estimator": "dr_grpo"}},
        "train": {"seed": 1},
        "vllm": {"num_engines": 1},
    }
    (tmp_path / "config.json").write_text(json.dumps(flags))
    lines = [json.dumps({"step": step, "timing/generation": 2.0 + step}) for step in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    outcomes = {"7": [1, 0], "8": [0, 0, 1, 1]}
    samples = [
        {"step": step, "prompt_id": row, "key": 2 * step + i, "index": k, "metric": m, "reward": m, "tokens": 10 + k}
        for step in (1, 2)
        for i, (row, metrics) in enumerate(outcomes.items())
        for k, m in enumerate(metrics)
    ]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    (tmp_path / "engine.json").write_text(json.dumps(asdict(ENGINE)))
    return tmp_path


def figures(run_dir: Path, *argv: str) -> list[dict[str, Any]]:
    out = run_dir / "out.json"
    assert main([str(run_dir), "--json", str(out), *argv]) == 0
    return json.loads(out.read_text())


def test_recorded_run_by_hand(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four slots: the first wave of both prompts takes 11 steps, B's second wave 13; tenths of a second each."""
    rounds, waves, uniform = figures(run_dir, "--schedulers", "rounds,waves", "--policies", "recorded,uniform")
    assert (rounds["policy"], rounds["scheduler"], rounds["engines"]) == ("recorded", "rounds", 1)
    assert rounds["seconds"] == waves["seconds"] == pytest.approx(2.4)
    assert rounds["rollouts_per_prompt"] == 3
    assert rounds["tokens"] == 10 + 11 + 10 + 11 + 12 + 13
    assert (rounds["waste_share"], rounds["signal_share"]) == (0.0, 1.0)
    assert (uniform["seconds"], uniform["rollouts_per_prompt"], uniform["signal_share"]) == (
        pytest.approx(1.1),
        2,
        0.5,
    )
    output = capsys.readouterr().out
    assert "recorded (stream, 1 engines): 3.5 s of sampling per step" in output


@pytest.mark.parametrize(
    "content", ["{}", "[1]", "no json", '{"batch_sizes": [1, 2], "step_seconds": [1, 1], "slots": 0}']
)
def test_an_engine_file_that_is_none_is_named(run_dir: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    (run_dir / "engine.json").write_text(content)
    assert main([str(run_dir)]) == 2
    error = capsys.readouterr().err
    assert "engine.json" in error and "--calibrate" in error


def test_a_run_of_another_version_is_named(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = run_dir / "config.json"
    config.write_text(config.read_text().replace('"mode": "seq"', '"mode": "seq", "old_flag": 1'))
    assert main([str(run_dir)]) == 2
    error = capsys.readouterr().err
    assert str(run_dir) in error and "--ada_old_flag" in error


def test_a_run_of_mode_off_is_not_calibrated(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = run_dir / "config.json"
    config.write_text(config.read_text().replace('"mode": "seq"', '"mode": "off"'))
    assert main([str(run_dir), "--calibrate"]) == 2
    assert "--ada_mode off" in capsys.readouterr().err


def test_steps_engines_and_prompts_can_be_chosen(run_dir: Path) -> None:
    one = figures(run_dir, "--steps", "1", "--schedulers", "stream", "--policies", "recorded", "--engines", "1,9")
    assert [row["engines"] for row in one] == [1, 9]
    more = figures(run_dir, "--prompts", "40", "--schedulers", "stream", "--policies", "balance,pos")
    assert [row["policy"] for row in more] == ["balance", "pos"]
    assert more[0]["seconds"] > 10 * one[0]["seconds"]


def test_without_a_run_the_workload_is_synthetic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--prompts", "32", "--engines", "1", "--json", str(tmp_path / "out.json")]) == 0
    rows = json.loads((tmp_path / "out.json").read_text())
    assert [(row["policy"], row["scheduler"]) for row in rows] == [
        *(("balance", name) for name in ("rounds", "waves", "stream")),
        ("uniform", "rounds"),
    ]
    assert rows[2]["seconds"] < rows[0]["seconds"]
    assert "recorded" not in capsys.readouterr().out
    assert GPU_LIKE.slots == 256


@pytest.mark.parametrize(
    ("break_it", "argv", "named"),
    [
        ("engine.json", [], "simulate --calibrate"),
        ("samples.jsonl", [], "--ada_mode seq"),
        ("config.json", [], "config.json"),
        (None, ["--calibrate"], "--calibrate"),
    ],
)
def test_missing_input_is_named(
    run_dir: Path, break_it: str | None, argv: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if break_it:
        (run_dir / break_it).unlink()
    assert main(argv if break_it is None else [str(run_dir), *argv]) == 2
    error = capsys.readouterr().err
    assert error.startswith("openrlhf-ada simulate: error: ") and named in error


@pytest.mark.parametrize(
    ("argv", "right"),
    [
        (["--schedulers", "flow"], "rounds, waves, stream"),
        (["--policies", "best"], "recorded, uniform, pos, balance"),
        (["--engines", "0"], "1 to 1000"),
        (["--engines", "two"], "1 to 1000"),
        (["--prompts", "-5"], "at least 1"),
        (["--steps", "0"], "at least 1"),
        (["--speculation", "-3"], "at least 0"),
    ],
)
def test_wrong_values_are_refused_with_the_right_ones(
    argv: list[str], right: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        main(argv)
    assert error.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    flag, value = argv
    assert flag in error and value in error and right in error


METHOD_NAMES = [name for name in METHODS if "critic" not in name]


@pytest.mark.parametrize(
    "name",
    [name if name in ("greso", "pf-ppo") else pytest.param(name, marks=pytest.mark.slow) for name in METHOD_NAMES],
)
def test_methods_by_name_are_simulated(name: str, tmp_path: Path) -> None:
    """What a method that splits a budget draws is the budget; one that learns runs for several steps."""
    out, flags = tmp_path / "out.json", METHODS[name].flags
    argv = ["--prompts", "16", "--steps", "3", "--schedulers", "stream", "--policies", name, "--json", str(out)]
    assert main(argv) == 0
    (row,) = json.loads(out.read_text())
    predicts = flags.get("ada.baseline") in ("blend", "estimator")
    learns = "ada.candidates" in flags or "ada.budget" in flags or predicts
    assert row["steps"] == (3 if learns else 1)
    if "ada.budget" in flags:
        assert row["rollouts_per_prompt"] == flags["ada.budget"]
    elif flags.get("ada.exit") == "fixed":
        assert row["rollouts_per_prompt"] == flags["ada.max_samples"]


def test_what_replacing_prompts_costs_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """DAPO draws 16 for a prompt, and trains those alone that have both outcomes."""
    out = tmp_path / "out.json"
    argv = ["--prompts", "64", "--schedulers", "stream", "--policies", "dapo,uniform", "--json", str(out)]
    assert main(argv) == 0
    dapo, uniform = json.loads(out.read_text())
    assert dapo["rollouts_per_prompt"] == 16 and 0 < dapo["signal_share"] < 1
    assert dapo["rollouts_per_trained_prompt"] == pytest.approx(16 / dapo["signal_share"])
    assert "rollouts_per_trained_prompt" not in uniform
    said = " ".join(capsys.readouterr().out.split())
    assert f"{16 / dapo['signal_share']:.3g} rollouts for every prompt" in said


def test_chosen_prompts_have_more_signal(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    argv = ["--prompts", "64", "--schedulers", "stream", "--policies", "prime-rl-pools,vip", "--json", str(out)]
    assert main(argv) == 0
    chosen, split = json.loads(out.read_text())
    assert chosen["rollouts_per_prompt"] == split["rollouts_per_prompt"] == 8
    assert chosen["signal_share"] > split["signal_share"] + 0.02


def test_method_of_a_critic_is_not_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--policies", "reinforce-ada-est-critic"]) == 2
    assert "reinforce-ada-est-critic" in capsys.readouterr().err
