"""--config FILE: what a file's lines become, and how wrong ones are refused."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from openrlhf_ada.cli.config_file import expanded
from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.flags import ConfigError, words_by_flag
from openrlhf_ada.reporting.redaction import plain
from openrlhf_ada.reporting.run_log import METRICS_FILE, RunLog

RUN = """
# A run.
ada_mode: seq
ada.exit: pos
rollout:
  n_samples_per_prompt: 4
  batch_size: 16
actor:
  model_name_or_path: some/model
  adam:
    lr: 1e-6
data: { prompt_dataset: "a.jsonl", label_key: label }
data.apply_chat_template: true
ada_verbose:
"""


def write(folder: Path, text: str, name: str = "run.yaml") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_names_are_those_of_the_flags(tmp_path: Path) -> None:
    file = write(tmp_path, RUN.replace("ada_verbose:\n", ""))
    assert expanded("train", ["--config", file]) == [
        "--ada_mode=seq",
        "--ada_exit=pos",
        "--rollout.n_samples_per_prompt=4",
        "--rollout.batch_size=16",
        "--actor.model_name_or_path=some/model",
        "--actor.adam.lr=1e-6",
        "--data.prompt_dataset=a.jsonl",
        "--data.label_key=label",
        "--data.apply_chat_template",
    ]


@pytest.mark.parametrize("given", [["--config", "FILE"], ["--config=FILE"]])
def test_flags_that_are_given_win(tmp_path: Path, valid_flags: dict[str, str], given: list[str]) -> None:
    lines = [f"{flag.removeprefix('--')}: {value or 'true'}" for flag, value in valid_flags.items()]
    file = write(tmp_path, "\n".join(lines))
    assert parse(expanded("train", ["--config", file])).ada.mode == "seq"
    words = ["--ada_mode", "off", *(word.replace("FILE", file) for word in given)]
    assert parse(expanded("train", words)).ada.mode == "off"


def test_a_word_that_yaml_takes_for_a_boolean_stays_a_word(tmp_path: Path) -> None:
    assert expanded("train", ["--config", write(tmp_path, "ada_mode: off\n")]) == ["--ada_mode=off"]


@pytest.mark.parametrize(("value", "words"), [("true", ["--ada_verbose"]), ("false", []), ("", []), ("null", [])])
def test_switches_are_true_or_false(tmp_path: Path, value: str, words: list[str]) -> None:
    assert expanded("train", ["--config", write(tmp_path, f"verbose: {value}\n")]) == words


def test_positional_words_have_the_name_that_help_gives_them(tmp_path: Path) -> None:
    file = write(tmp_path, "source: [a.jsonl, b.jsonl]\nmodel: m\nout: o\n")
    words = expanded("prepare-data", ["--n", "4", "--config", file])
    assert words == ["--model=m", "--out=o", "--n", "4", "a.jsonl", "b.jsonl"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("ada_mod: seq\n", "ada_mode"),
        ("rollout:\n  n_samples: 4\n", "rollout.n_samples_per_prompt"),
        ("n_samples_per_prompt: 4\n", "rollout.n_samples_per_prompt"),
        ("ada_mode: seq\nada_mode: est\n", "ada_mode"),
        ("ada_mode: [seq\n", "YAML"),
        ("ada_mode: [seq\n", "line 2"),
        ("rollout:\n  batchsize: 5\n", "rollout.batch_size"),
        ("- ada_mode\n", "name: value"),
        ("", "name: value"),
        ("verbose: 3\n", "true or false"),
        ("logger.wandb.key: <removed>\n", "logger.wandb.key"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, text: str, named: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        expanded("train", ["--config", file])
    assert file in str(refused.value)
    assert named in str(refused.value).replace(file, "")


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00", b"{"])
def test_files_that_cannot_be_read_are_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "config.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match="--config"):
        expanded("train", ["--config", str(file)])


@pytest.mark.parametrize("words", [["--config"], ["--config="]])
def test_a_file_must_be_named(words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        expanded("train", words)
    assert refused.value.flag == "--config"


def test_two_files_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path, RUN)
    with pytest.raises(ConfigError) as refused:
        expanded("train", ["--config", file, "--config", file])
    assert refused.value.flag == "--config"


@pytest.mark.parametrize("spelling", ["ada_run_dir: a", "ada:\n  run_dir: a"])
def test_another_run_directory_takes_what_lies_in_it_along(tmp_path: Path, spelling: str) -> None:
    """Else a second run would write its model over the first one's."""
    file = write(tmp_path, f"{spelling}\nckpt:\n  path: a/ckpt\n  output_dir: kept/model\n")
    words = ["--config", file, "--ada_run_dir", "b"]
    given = dict(words_by_flag(expanded("train", words)))
    assert (given["--ckpt.path"], given["--ckpt.output_dir"]) == (["b/ckpt"], ["kept/model"])
    assert given["--ada_run_dir"] == ["b"], "the command line wins"
    assert dict(words_by_flag(expanded("train", words[:2])))["--ckpt.path"] == ["a/ckpt"]
    given = dict(words_by_flag(expanded("train", [*words, "--ckpt.path", "mine"])))
    assert given["--ckpt.path"] == ["mine"]


def test_configuration_of_a_run_repeats_it(tmp_path: Path, argv_with: Callable[[dict[str, str]], list[str]]) -> None:
    """All flags are the same, but for folders, which are the repetition's own."""
    run_dir = tmp_path / "first"
    folders = {"--ada_run_dir": str(run_dir), "--ckpt.path": str(run_dir / "ckpt")}
    argv = argv_with(folders | {"--ada_exit": "pos", "--verbose": "", "--actor.adam.lr": "1e-6"})
    args = parse(argv)
    nested = json.loads(json.dumps(plain(args)))
    RunLog(run_dir, nested).close()
    assert (run_dir / METRICS_FILE).exists()
    again = parse(expanded("train", ["--config", str(run_dir / "config.json")]))
    assert dataclasses.replace(again.ada.given, run_dir=None) == dataclasses.replace(args.ada.given, run_dir=None)
    told = json.loads(json.dumps(plain(again)))
    for group, name in (("ada", "run_dir"), ("ckpt", "path"), ("ckpt", "output_dir")):
        assert told[group].pop(name) != nested[group].pop(name)
    # Its name is its time.
    for nest in (told, nested):
        assert nest["logger"]["wandb"].pop("run_name").startswith("ppo_")
    assert told == nested


# -- the configuration of a run: repeated in a folder of its own, resumed where it is -------------------------------


def record(run_dir: Path, **flags: object) -> str:
    """The configuration of a run that wrote into this folder."""
    run_dir.mkdir(parents=True)
    (run_dir / METRICS_FILE).write_text("")
    config = {"ada": {"mode": "seq", "run_dir": str(run_dir)}, "ckpt": {"path": str(run_dir / "ckpt")}} | flags
    return write(run_dir, json.dumps(config), "config.json")


def folders(words: list[str]) -> dict[str, str]:
    names = ("--ada_run_dir", "--ckpt.path", "--ckpt.output_dir")
    return dict(word.split("=", 1) for word in words if word.startswith(names) and "=" in word)


def test_a_repetition_has_the_next_folder_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, second = record(tmp_path / "first"), tmp_path / "first-2"
    with caplog.at_level("INFO"):
        found = folders(expanded("train", ["--config", file]))
    assert found == {
        "--ada_run_dir": str(second),
        "--ckpt.path": str(second / "ckpt"),
        "--ckpt.output_dir": str(second / "model"),
    }
    assert f"in {second} (with --ckpt.load_enable" in caplog.text
    record(second)
    assert folders(expanded("train", ["--config", file]))["--ada_run_dir"] == str(tmp_path / "first-3")


@pytest.mark.parametrize("given", [["--ada_run_dir", "DIR"], ["--ada_run_dir=DIR"]])
def test_a_repetition_takes_the_folder_that_is_given(tmp_path: Path, given: list[str]) -> None:
    file, mine = record(tmp_path / "first"), str(tmp_path / "mine")
    words = expanded("train", ["--config", file, *(word.replace("DIR", mine) for word in given)])
    assert folders(words)["--ckpt.path"] == f"{mine}/ckpt" and folders(words)["--ckpt.output_dir"] == f"{mine}/model"
    assert parse_folder(words) == mine


def parse_folder(words: list[str]) -> str:
    """The last one wins."""
    at = max(i for i, word in enumerate(words) if word.startswith("--ada_run_dir"))
    return words[at].partition("=")[2] or words[at + 1]


def test_a_repetition_never_writes_to_the_checkpoints_of_the_first(tmp_path: Path) -> None:
    elsewhere = {"path": "/checkpoints", "output_dir": "/models/mine", "load_enable": True}
    words = expanded("train", ["--config", record(tmp_path / "first", ckpt=elsewhere)])
    second = tmp_path / "first-2"
    assert folders(words)["--ckpt.path"] == str(second / "ckpt")
    assert folders(words)["--ckpt.output_dir"] == str(second / "model")
    assert "--ckpt.load_enable" not in words, "it would begin with another run's checkpoint"


def test_a_run_is_resumed_where_its_file_lies(tmp_path: Path) -> None:
    """It may have been moved to another machine. Checkpoints that lie elsewhere stay there."""
    output = {"path": str(tmp_path / "first" / "ckpt"), "output_dir": "/models/mine"}
    record(tmp_path / "first", ckpt=output)
    moved = (tmp_path / "first").rename(tmp_path / "moved")
    words = expanded("train", ["--config", str(moved / "config.json"), "--ckpt.load_enable"])
    assert folders(words) == {
        "--ada_run_dir": str(moved),
        "--ckpt.path": str(moved / "ckpt"),
        "--ckpt.output_dir": "/models/mine",
    }


def test_what_openrlhf_never_does_is_repeated(tmp_path: Path) -> None:
    """It replaces a number of steps of -1 by infinity before the run is recorded."""
    never = {"eval": {"steps": math.inf}, "ckpt": {"save_steps": math.inf, "max_mem": math.inf}}
    RunLog(tmp_path / "first", never).close()
    words = expanded("train", ["--config", str(tmp_path / "first" / "config.json")])
    assert {"--eval.steps=-1", "--ckpt.save_steps=-1", "--ckpt.max_mem=inf"} <= set(words)


@pytest.mark.parametrize(("name", "kept"), [("ppo_1124T23:07", False), ("my-run", True)])
def test_a_name_of_ones_own_is_repeated(tmp_path: Path, name: str, kept: bool) -> None:
    file = record(tmp_path / "first", logger={"wandb": {"run_name": name}})
    words = expanded("train", ["--config", file])
    assert (f"--logger.wandb.run_name={name}" in words) == kept


@pytest.mark.parametrize("deep", [10, 300, 1000, 100_000])
@pytest.mark.parametrize("name", ["deep.json", "deep.yaml"])
def test_sections_without_end_are_refused(tmp_path: Path, name: str, deep: int) -> None:
    file = write(tmp_path, '{"a": ' * deep + "1" + "}" * deep, name)
    with pytest.raises(ConfigError, match=r"\b8\b|too deeply|KiB"):
        expanded("train", ["--config", file])
