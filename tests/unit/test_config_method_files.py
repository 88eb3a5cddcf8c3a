"""A method of the user's own: one YAML file, by its path, without any other change."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documents import ROOT, blocks

from openrlhf_ada.cli import methods
from openrlhf_ada.cli.config_file import words_of
from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.presets import METHODS, method_named
from openrlhf_ada.config.settings import make_policy
from openrlhf_ada.reporting.redaction import plain
from openrlhf_ada.simulation.coin_flips import simulate

STRANGERS = """
summary: waves of 2 until one is right
source: nobody's
base: recipe
flags:
  ada_mode: seq
  ada_exit: pos
  ada_wave: 2
  ada_max_samples: 6
  ada.positive_threshold: 0.7
  rollout.n_samples_per_prompt: 2
  rollout.batch_size: 16
  train.batch_size: 32
  actor.adam.lr: 2e-6
  actor.eps_clip_low_high: [.2, .3]
"""

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file; returns its path."""

    def written(text: str | bytes, name: str = "mine.yaml") -> str:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return str(path)

    return written


@pytest.mark.parametrize("says", ["ada_scores: raw", "ada_positive_quantile: 0.5"])
def test_a_method_of_raw_scores_has_its_own_threshold(method_argv: list[str], write: Write, says: str) -> None:
    """The threshold of a method whose scores lie in [0, 1] says nothing of raw ones."""
    path = write(f"{STRANGERS.rstrip()}\n  {says}\n")
    assert parse([*method_argv, "--ada_method", path]).ada.positive_threshold == 0.7
    name, value = says.split(": ")
    with pytest.raises(ConfigError) as refused:
        parse([*method_argv, "--ada_method", write(STRANGERS), f"--{name}", value])
    assert refused.value.flag == "--ada_positive_threshold"


def test_a_strangers_method_is_parsed_settled_and_sampled(
    method_argv: list[str], write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    args = parse([*method_argv, "--ada_method", write(STRANGERS)])
    assert (args.ada.mode, args.ada.exit, args.ada.wave, args.ada.positive_threshold) == ("seq", "pos", 2, 0.7)
    assert (args.actor.adam.lr, list(args.actor.eps_clip_low_high)) == (2e-6, [0.2, 0.3])
    assert args.actor.dual_clip == 10.0, "from the recipe"
    assert not caplog.records, "nothing deviates"
    rates = np.full(16, 0.5)
    (step,) = simulate(make_policy(args.ada), iter([list(range(16))]), lambda _, rows: rates[rows], 1)
    assert 2 * 16 <= step.ledger.drawn <= 6 * 16
    assert all(len(group.indices) == 2 for group in step.groups)


def test_the_example_is_the_documents_and_passes_every_check(method_argv: list[str]) -> None:
    example = ROOT / "examples" / "methods" / "few.yaml"
    (shown,) = (
        b for b in blocks((ROOT / "docs" / "extending.md").read_text(encoding="utf-8")) if b.language == "yaml"
    )
    assert shown.text == example.read_text(encoding="utf-8")
    args = parse([*method_argv, "--ada_method", str(example)])
    assert (args.ada.wave, args.ada.correction) == (4, "positives")


def test_given_flags_win_and_deviations_name_the_file(
    method_argv: list[str], write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(STRANGERS)
    args = parse([*method_argv, "--ada_method", path, "--ada_wave", "3"])
    assert args.ada.wave == 3
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "--ada_wave is 3" in line and path in line and "has 2" in line


@pytest.mark.parametrize("word", ["off", "OFF", "'off'", "no"])
def test_yaml_words_that_are_booleans_elsewhere_are_words_here(
    method_argv: list[str], write: Write, word: str
) -> None:
    text = f"base: grpo\nflags:\n  ada_mode: {word}\n"
    if word == "off" or word == "'off'":
        assert parse([*method_argv, "--ada_method", write(text)]).ada.mode == "off"
    else:
        with pytest.raises(ConfigError, match=rf"^--ada_mode is '{word}'.*line 3"):
            parse([*method_argv, "--ada_method", write(text)])


# -- what it rests on ---------------------------------------------------------------------------------------------


def test_a_base_is_a_method_an_old_name_a_part_or_a_file(write: Write) -> None:
    assert method_named(write("base: vip")).flags == METHODS["vip"].flags
    assert method_named(write("base: counted")).flags == METHODS["spo-n2"].flags
    write("base: vip\nflags:\n  ada_budget: 9\n  ada_max_samples: 40", "below.yml")
    top = method_named(write("base: ./below.yml\nflags:\n  ada_budget: 10"))
    assert top.flags == METHODS["vip"].flags | {"ada.budget": 10, "ada.max_samples": 40}


@pytest.mark.parametrize("texts", [{"a": "a"}, {"a": "b", "b": "a"}, {"a": "b", "b": "c", "c": "b"}])
def test_a_circle_of_bases_is_refused(write: Write, texts: dict[str, str]) -> None:
    for name, base in texts.items():
        path = write(f"base: ./{base}.yaml", f"{name}.yaml")
    with pytest.raises(ConfigError, match=r"line 1: .* rests on this very file"):
        method_named(path)


# -- what is refused, with its line --------------------------------------------------------------------------------

FLAGS = "base: recipe\nflags:\n  ada_mode: seq\n"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (FLAGS + "  ada_wavee: 2", ["--ada_wavee is 2", "line 4", "ada_wave"]),
        (FLAGS + "  rollout.n_sample: 2", ["--rollout.n_sample is 2", "line 4", "rollout.n_samples_per_prompt"]),
        (FLAGS + "  ada_method: grpo", ["--ada_method is 'grpo'", "line 4"]),
        (FLAGS + "  ada_wave: two", ["--ada_wave is 'two'", "whole number", "line 4"]),
        (FLAGS + "  ada_wave: 2.5", ["--ada_wave is 2.5", "whole number", "line 4"]),
        (FLAGS + "  ada_wave: true", ["--ada_wave is True", "whole number", "line 4"]),
        (FLAGS + "  ada_wave: [1, 2]", ["--ada_wave is (1, 2)", "one value", "line 4"]),
        (FLAGS + "  actor.adam.lr: fast", ["--actor.adam.lr is 'fast'", "line 4"]),
        (FLAGS + "  actor.adam.betas: 0.9", ["--actor.adam.betas is 0.9", "list", "line 4"]),
        (FLAGS + "  actor.adam.betas: [0.9]", ["--actor.adam.betas is (0.9,)", "2 values", "line 4"]),
        (FLAGS + "  ada_exit: 5", ["--ada_exit is 5", "quotes", "line 4"]),
        (FLAGS + "  ada_known_counts: on", ["--ada_known_counts is 'on'", "true or false", "line 4"]),
        (FLAGS + "  algo.advantage.estimator: grpo", ["--algo.advantage.estimator is 'grpo'", "group_norm", "line 4"]),
        # The rules of all flags, of single ones and together.
        (FLAGS + "  ada_wave: 0", ["--ada_wave is 0", "at least 1", "line 4", "--ada_wave 8"]),
        (FLAGS + "  ada_exit: balanced", ["--ada_exit is 'balanced'", "line 4", "--ada_exit balance"]),
        (FLAGS + "  ada_max_samples: 2", ["--ada_max_samples is 2", "line 4", "--ada_max_samples 16"]),
        # What is no method.
        (FLAGS + "  ada_wave: 2\n  ada_wave: 3", ["line 5", "ada_wave stands there twice"]),
        (FLAGS + "  ada_wave: 2\n  ada.wave: 3", ["line 5", "ada.wave stands there twice"]),
        ("base: recipe\nbase: vip", ["line 2", "base stands there twice"]),
        ("flag:\n  ada_mode: seq", ["line 1", "flag", "flags"]),
        ("base: recipe\nada_mode: seq", ["line 2", "ada_mode", "flags:"]),
        ("base: recipe\nflags: 5", ["line 2", "name: value"]),
        ("- ada_mode", ["name: value"]),
        ("summary: nothing", ["line 1", "flags:"]),
        ("", ["name: value"]),
        (FLAGS + "  ada_wave:", ["line 4", "one value"]),
        (FLAGS + "  ada_wave: {a: 1}", ["line 4", "ada_wave"]),
        ("base: recipee", ["line 1", "recipee", "recipe"]),
        ("base: ./none.yaml", ["line 1", "none.yaml"]),
        ("base: [recipe]", ["line 1", "text"]),
        # What is no text, or asks for more than plain values.
        (FLAGS + "  ada_wave: !!python/object/apply:os.system [ls]", ["line 4", "python/object/apply"]),
        ("!!python/name:os.system {}", ["line 1", "python/name"]),
        (FLAGS + "  ? [a]\n  : 2", ["line 4"]),
        ("a: b: c", ["line 1", "YAML"]),
        ("[" * 700, ["YAML"]),
        ("a: 1\n---\nb: 2", ["YAML"]),
        (b"\x00\x01\x02", ["YAML"]),
        (b"\xff\xfe\xfa", ["no text"]),
        ("#" * 70_000, ["64 KiB"]),
    ],
    ids=lambda value: str(value)[-40:] if isinstance(value, str | bytes) else "",
)
def test_a_wrong_file_is_refused_with_line_flag_and_value(
    method_argv: list[str], write: Write, text: str | bytes, parts: list[str]
) -> None:
    path = write(text)
    with pytest.raises(ConfigError) as error:
        parse([*method_argv, "--ada_method", path])
    message = str(error.value)
    assert "\n" not in message and all(part in message for part in [path.split("/")[-1], *parts]), message


def test_no_file_and_no_regular_file_are_refused(tmp_path: Path) -> None:
    for path in ("./none.yaml", str(tmp_path / "no"), str(tmp_path), "/dev/zero"):
        with pytest.raises(ConfigError, match=r"^--ada_method is .*YAML file"):
            method_named(path)


# -- what a run keeps of it ---------------------------------------------------------------------------------------


def test_a_run_is_repeated_and_resumed_without_the_file(
    method_argv: list[str], write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(STRANGERS)
    args = parse([*method_argv, "--ada_method", path])
    record: dict[str, Any] = json.loads(json.dumps(plain(args)))
    write("base: vip")
    for change in (lambda: None, Path(path).unlink):
        change()
        again = parse(words_of("train", record))
        assert again.ada == args.ada
        assert json.loads(json.dumps(plain(again))) == record
        assert not caplog.records, "a flag that has its default is no deviation"
    said = json.loads(record["ada"]["method"])
    assert said["name"] == path and said["flags"]["ada.wave"] == 2


@pytest.mark.parametrize("text", ["{", "{}", '{"name": 1}', '{"name": "", "summary": "", "source": "", "flags": 5}'])
def test_a_broken_record_is_refused(method_argv: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--ada_method is"):
        parse([*method_argv, f"--ada_method={text}"])


# -- the command ----------------------------------------------------------------------------------------------------


def test_methods_are_listed_and_shown(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert methods.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} == set(METHODS)
    kinds = {line.split()[0]: line.split()[1] for line in lines}
    assert [kinds[name] for name in ("reinforce-ada-balance", "uniform-8", "spo-n2")] == [
        *("recommended", "control", "experiment"),
    ]
    for name, shown in (
        ("reinforce-ada-est-critic", ["critic", "inverse_sqrt", "dual_clip"]),
        (write(STRANGERS), ["wave"]),
    ):
        assert methods.main([name]) == 0
        out = capsys.readouterr().out
        assert all(part in out for part in shown)
    with pytest.raises(ConfigError, match="grpo"):
        methods.main(["grpoo"])
