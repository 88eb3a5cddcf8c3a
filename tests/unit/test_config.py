"""AdaConfig: frozen, generated flags in both spellings, and refusals that say flag, value, rule and remedy."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openrlhf_ada import config as config_module
from openrlhf_ada.config import AdaConfig, ConfigError, add_flags, from_namespace

FIELDS = dataclasses.fields(AdaConfig)

VALUES: dict[str, tuple[str, Any]] = {  # what a user types, and what the field then holds; never the default
    "mode": ("seq", "seq"),
    "exit": ("pos", "pos"),
    "wave": ("3", 3),
    "max_samples": ("17", 17),
    "k_pos": ("2", 2),
    "k_neg": ("5", 5),
    "positive_threshold": ("0.25", 0.25),
    "unresolved": ("keep", "keep"),
    "scheduler": ("rounds", "rounds"),
    "eval_ends": ("", True),
    "run_dir": ("some/where", "some/where"),
    "log_texts": ("0", 0),
    "verbose": ("", True),
}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    return parser


def parse(*argv: str) -> AdaConfig:
    flat = vars(make_parser().parse_args(argv))
    return from_namespace(SimpleNamespace(**{name.removeprefix("ada."): value for name, value in flat.items()}))


# -- flags --------------------------------------------------------------------------------------------------------


def test_every_field_has_a_value_in_these_tests() -> None:
    assert set(VALUES) == {f.name for f in FIELDS}


@pytest.mark.parametrize("spelling", ["--ada_{}", "--ada.{}"])
@pytest.mark.parametrize("name", VALUES)
def test_every_flag_in_both_spellings(name: str, spelling: str) -> None:
    text, value = VALUES[name]
    config = parse(spelling.format(name), *([text] if text else []))
    assert getattr(config, name) == value
    assert type(getattr(config, name)) is type(value)
    others = {f.name: getattr(config, f.name) for f in FIELDS if f.name != name}
    assert others == {f.name: f.default for f in FIELDS if f.name != name}, "a flag sets its own field only"


def test_no_flags_give_the_defaults() -> None:
    assert parse() == AdaConfig()


def test_defaults_are_off_and_the_published_setting() -> None:
    """Reinforce-Ada: Ada-Seq-balance, 8 rollouts a round, 4 rounds."""
    config = AdaConfig()
    assert (config.mode, config.exit, config.wave, config.max_samples) == ("off", "balance", 8, 32)
    assert (config.positive_threshold, config.k_pos, config.k_neg) == (0.5, None, None)


def test_verbose_has_a_short_name() -> None:
    assert parse("--verbose").verbose


def test_help_lists_every_flag_in_both_spellings_with_its_text_and_default() -> None:
    text = " ".join(make_parser().format_help().split())
    for f in FIELDS:
        assert f"--ada_{f.name}" in text
        assert f"--ada.{f.name}" in text
        assert " ".join(f.metadata["help"].split()) in text
        if f.default not in (None, False):
            assert f"Default: {f.default}." in text, f.name
        for choice in f.metadata["choices"] or ():
            assert choice in text


@pytest.mark.parametrize(
    "argv",
    [("--ada_wave", "x"), ("--ada_wave", "2.5"), ("--ada_max_samples",), ("--ada_positive_threshold", "half")],
    ids=" ".join,
)
def test_value_of_the_wrong_type_is_argparses_error(argv: tuple[str, ...], capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as error:
        make_parser().parse_args(argv)
    assert error.value.code == 2
    message = capsys.readouterr().err
    assert argv[0] in message
    assert argv[-1] in message


def test_is_frozen_and_keyword_only() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        AdaConfig().mode = "seq"  # type: ignore[misc]
    with pytest.raises(TypeError):
        AdaConfig("seq")  # type: ignore[misc]
    assert AdaConfig(mode="seq") == AdaConfig(mode="seq")
    assert hash(AdaConfig(mode="seq")) == hash(AdaConfig(mode="seq"))


# -- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "flag", "shown", "rule", "remedy"),
    [
        ({"mode": "sequential"}, "mode", "'sequential'", "expected one of: off, seq", "Try --ada_mode seq"),
        ({"mode": ""}, "mode", "''", "expected one of", "Try --ada_mode seq"),
        ({"mode": "SEQ"}, "mode", "'SEQ'", "expected one of", "Try --ada_mode seq"),
        ({"exit": "both"}, "exit", "'both'", "expected one of: pos, balance", "Try --ada_exit balance"),
        ({"unresolved": "drop"}, "unresolved", "'drop'", "expected one of: keep", "Try --ada_unresolved keep"),
        ({"scheduler": "stream"}, "scheduler", "'stream'", "expected one of: rounds", "Try --ada_scheduler rounds"),
        ({"wave": 0}, "wave", "0", "at least 1", "Try --ada_wave 1"),
        ({"wave": -8}, "wave", "-8", "at least 1", "Try --ada_wave 1"),
        ({"max_samples": 0}, "max_samples", "0", "at least 1", "Try --ada_max_samples 1"),
        ({"log_texts": -1}, "log_texts", "-1", "at least 0", "Try --ada_log_texts"),
        ({"k_pos": 0}, "k_pos", "0", "at least 1", "Try --ada_k_pos 1"),
        ({"k_neg": -2}, "k_neg", "-2", "at least 1", "Try --ada_k_neg 1"),
        ({"k_pos": 33}, "k_pos", "33", "within --ada_max_samples 32", "Lower it to 32"),
        ({"k_neg": 9, "max_samples": 8}, "k_neg", "9", "within --ada_max_samples 8", "Lower it to 8"),
        ({"k_neg": 2, "exit": "pos"}, "k_neg", "2", "counted by exit 'balance' only", "Use --ada_exit balance"),
        ({"positive_threshold": -0.1}, "positive_threshold", "-0.1", "lies in [0, 1)", "0.5 is right"),
        ({"positive_threshold": 1.0}, "positive_threshold", "1.0", "must exceed the threshold", "0.5 is right"),
        ({"positive_threshold": 1.5}, "positive_threshold", "1.5", "lies in [0, 1)", "0.5 is right"),
        ({"positive_threshold": math.nan}, "positive_threshold", "nan", "lies in [0, 1)", "0.5 is right"),
    ],
    ids=lambda value: "-".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_refusal_names_flag_value_rule_and_remedy(
    values: dict[str, Any], flag: str, shown: str, rule: str, remedy: str
) -> None:
    with pytest.raises(ConfigError) as error:
        AdaConfig(**values)
    message = str(error.value)
    assert message.startswith(f"--ada_{flag} is {shown}: ")
    assert error.value.flag == f"--ada_{flag}"
    assert rule in message
    assert remedy in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "values",
    [
        {"positive_threshold": 0.0},
        {"positive_threshold": 0.999},
        {"wave": 1},
        {"wave": 64},  # larger than the cap: one wave, cut
        {"max_samples": 1},
        {"k_pos": 32},
        {"k_pos": 1, "exit": "pos"},
        {"log_texts": 0},
    ],
    ids=str,
)
def test_edge_of_what_is_allowed(values: dict[str, Any]) -> None:
    AdaConfig(**values)


# -- derived values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "n", "counts"),
    [
        ({"exit": "pos"}, 4, (1, 0)),
        ({"exit": "pos", "k_pos": 3}, 4, (3, 0)),
        ({}, 4, (2, 2)),
        ({}, 5, (2, 3)),  # the half is rounded down for positives, as in the selection
        ({}, 2, (1, 1)),
        ({}, 1, (1, 1)),
        ({"k_pos": 1}, 8, (1, 4)),
        ({"k_neg": 1}, 8, (4, 1)),
        ({"k_pos": 3, "k_neg": 1}, 8, (3, 1)),
    ],
)
def test_exit_counts(values: dict[str, Any], n: int, counts: tuple[int, int]) -> None:
    assert AdaConfig(**values).exit_counts(n) == counts


def test_run_dir_is_the_flag_or_the_runs_name_made_safe() -> None:
    assert AdaConfig(run_dir="a/b").resolved_run_dir("ppo_1121T10:53") == Path("a/b")
    assert AdaConfig().resolved_run_dir("ppo_1121T10:53") == Path("runs/ppo_1121T10-53")


SINGLE_CHOICE = {"unresolved", "scheduler"}
"""Flags that name the only behaviour there is so far: they can be checked but not obeyed."""


def test_no_flag_is_dead() -> None:
    """Every field is read: by AdaConfig's own methods after validation, or as `config.x` / `.ada.x` elsewhere."""
    read: set[str] = set()
    for path in Path(config_module.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                owner = ast.unparse(node.value).rpartition(".")[2]
                if owner in ("config", "ada") or (owner == "self" and path.name == "config.py"):
                    read.add(node.attr)
    unread = {f.name for f in FIELDS} - read
    assert unread == SINGLE_CHOICE
    assert all(len(f.metadata["choices"]) == 1 for f in FIELDS if f.name in SINGLE_CHOICE)
