"""--config FILE: what a file's lines become, and how wrong ones are refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from openrlhf_ada.cli.config_file import expanded
from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.flags import ConfigError
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
        "--ada.exit=pos",
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
    assert parse(expanded("train", ["--config", file]))[1].mode == "seq"
    words = ["--ada_mode", "off", *(word.replace("FILE", file) for word in given)]
    assert parse(expanded("train", words))[1].mode == "off"


def test_a_word_that_yaml_takes_for_a_boolean_stays_a_word(tmp_path: Path) -> None:
    assert expanded("train", ["--config", write(tmp_path, "ada_mode: off\n")]) == ["--ada_mode=off"]


@pytest.mark.parametrize(("value", "words"), [("true", ["--verbose"]), ("false", []), ("", []), ("null", [])])
def test_switches_are_true_or_false(tmp_path: Path, value: str, words: list[str]) -> None:
    assert expanded("train", ["--config", write(tmp_path, f"verbose: {value}\n")]) == words


def test_positional_words_have_the_name_that_help_gives_them(tmp_path: Path) -> None:
    file = write(tmp_path, "source: [a.jsonl, b.jsonl]\nmodel: m\nout: o\n")
    words = expanded("prepare-data", ["--n", "4", "--config", file])
    assert words == ["--model=m", "--out=o", "--n", "4", "a.jsonl", "b.jsonl"]


def test_submit_and_what_it_submits_have_files_of_their_own(tmp_path: Path) -> None:
    outer = write(tmp_path, "address: http://head:8265\n", "submit.yaml")
    inner = write(tmp_path, "ada_mode: seq\n")
    words = expanded("submit", ["--config", outer, "train", "--config", inner, "--verbose"])
    assert words == ["--address=http://head:8265", "train", "--ada_mode=seq", "--verbose"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ada_mod: seq\n", "ada_mode"),
        ("rollout:\n  n_samples: 4\n", "rollout.n_samples_per_prompt"),
        ("n_samples_per_prompt: 4\n", "rollout.n_samples_per_prompt"),
        ("ada_mode: seq\nada_mode: est\n", "stands there twice"),
        ("ada_mode: [seq\n", "not valid YAML"),
        ("- ada_mode\n", "one `name: value` for each flag"),
        ("", "one `name: value` for each flag"),
        ("verbose: 3\n", "Write true or false"),
        ("logger.wandb.key: <removed>\n", "does not hold secrets"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        expanded("train", ["--config", write(tmp_path, text)])
    assert said in str(refused.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00", b"{"])
def test_files_that_cannot_be_read_are_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "config.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match="--config"):
        expanded("train", ["--config", str(file)])


def test_two_files_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path, RUN)
    with pytest.raises(ConfigError, match="one file at a time"):
        expanded("train", ["--config", file, "--config", file])


def test_configuration_of_a_run_repeats_it(tmp_path: Path, argv_with: Callable[[dict[str, str]], list[str]]) -> None:
    """All flags are the same, but for folders, which are the repetition's own."""
    run_dir = tmp_path / "first"
    folders = {"--ada_run_dir": str(run_dir), "--ckpt.path": str(run_dir / "ckpt")}
    argv = argv_with(folders | {"--ada_exit": "pos", "--verbose": "", "--actor.adam.lr": "1e-6"})
    args, config = parse(argv)
    nested = json.loads(json.dumps(args, default=vars))
    RunLog(run_dir, nested).close()
    assert (run_dir / METRICS_FILE).exists()
    again, config_again = parse(expanded("train", ["--config", str(run_dir / "config.json")]))
    assert dataclasses.asdict(config_again) | {"run_dir": None} == dataclasses.asdict(config) | {"run_dir": None}
    told = json.loads(json.dumps(again, default=vars))
    for group, name in (("ada", "run_dir"), ("ckpt", "path")):
        assert told[group].pop(name) != nested[group].pop(name)
    assert told == nested
