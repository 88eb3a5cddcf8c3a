"""`openrlhf-ada init`: the files that it writes are those of a valid run, and its reward is right about its rows."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest

from openrlhf_ada.cli import init
from openrlhf_ada.cli.config_file import expanded
from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config import program
from openrlhf_ada.trainer.preflight import check_without_files


@pytest.fixture
def written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Path, str]:
    folder = tmp_path / "mine"
    assert init.main([str(folder)]) == 0
    return folder, capsys.readouterr().out


def test_next_commands_are_said(written: tuple[Path, str]) -> None:
    folder, said = written
    assert f"cd {folder}\n" in said and f"{program.called(elsewhere=True)} train --config run.yaml\n" in said


@pytest.mark.parametrize("machine", ["ON_CPU", "ON_GPU"])
def test_run_is_valid(
    machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(init.without_gpu, "is_needed", lambda: machine == "ON_CPU")
    init.main([str(tmp_path)])
    monkeypatch.chdir(tmp_path)
    args = parse(expanded("train", ["--config", "run.yaml"]), check_without_files)
    assert args.ada.mode == "seq" and args.train.batch_size == 20
    assert args.ada.eval_ends and args.eval.steps == 3, "judged before the first step, and after every third"
    assert ("demo-model" in capsys.readouterr().out) == (machine == "ON_CPU")


def test_the_control_and_the_way_to_many_prompts_that_the_file_names_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init.main([str(tmp_path)])
    monkeypatch.chdir(tmp_path)
    text = (tmp_path / "run.yaml").read_text()
    _, _, words = next(line for line in text.splitlines() if "--ada_exit fixed" in line).partition("#")
    control = parse([*expanded("train", ["--config", "run.yaml"]), *words.split()], check_without_files).ada
    assert (control.exit, control.max_samples, control.zeros) == ("fixed", 4, "skip")
    kept = [
        line for line in text.splitlines() if not re.match(r"(ada_(mode|exit|wave|max)|algo|  (n_sam|batch))", line)
    ]
    for method, n in (("reinforce-ada-balance", 4), ("uniform-8", 8)):
        (tmp_path / "many.yaml").write_text("\n".join([f"ada_method: {method}", *kept]))
        args = parse(expanded("train", ["--config", "many.yaml"]), check_without_files)
        assert (args.ada.method, args.rollout.batch_size, args.rollout.n_samples_per_prompt) == (method, 512, n)


def rows_of(file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_prompts_are_rows_that_the_reward_understands(written: tuple[Path, str]) -> None:
    trained, held_out = (rows_of(written[0] / name) for name in ("prompts.jsonl", "heldout.jsonl"))
    rows = trained + held_out
    assert (len(trained), len({row["input"] for row in rows})) == (10, 16), "no prompt is in both"
    reward = runpy.run_path(str(written[0] / "reward.py"))["reward_func"]
    prompts, labels = [row["input"] for row in rows], [row["label"] for row in rows]
    right = reward([f"{p} It is {label}." for p, label in zip(prompts, labels, strict=True)], prompts, labels)
    wrong = reward([f"{p} It is {label}1." for p, label in zip(prompts, labels, strict=True)], prompts, labels)
    silent = reward(prompts, prompts, labels)
    for name in ("scores", "rewards"):
        assert right[name].tolist() == [1.0] * 16
        assert wrong[name].tolist() == silent[name].tolist() == [0.0] * 16


def test_no_file_is_replaced(written: tuple[Path, str]) -> None:
    file = written[0] / "reward.py"
    file.write_text("mine")
    with pytest.raises(FileExistsError, match=r"reward\.py exists already"):
        init.main([str(written[0])])
    assert file.read_text() == "mine"


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(NotADirectoryError, match="mine is a file; name a folder"):
        init.main([str(tmp_path / "mine")])
