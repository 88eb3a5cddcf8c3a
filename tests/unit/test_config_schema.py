"""AdaConfig: frozen, generated flags, and refusals that say flag, value, rule and remedy."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import pytest

from openrlhf_ada.config import schema as config_module
from openrlhf_ada.config.flags import ConfigError, help_texts, kind_of
from openrlhf_ada.config.schema import AdaConfig, add_flags

FIELDS = dataclasses.fields(AdaConfig)

TEXTS = {"objective": "sqrt", "code_imports": "numpy", "chat_template_args": "{}", "sampling_args": "{}"}
"""Of flags that take some words only."""


def other_value(f: dataclasses.Field[Any]) -> bool | str | float:
    """One that the flag takes, and that is not its default."""
    kind, lowest = kind_of(f), float(f.metadata["within"][1:-1].split(",")[0])
    if kind in (bool, str):
        others = [name for name in f.metadata["choices"] or () if name != f.default]
        return True if kind is bool else (others or [TEXTS.get(f.name, "some/where")])[-1]
    return kind((0 if math.isinf(lowest) else lowest) + (5 if kind is int else 0.4))


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    return parser


def parse(*argv: str) -> AdaConfig:
    flat = vars(make_parser().parse_args(argv))
    return AdaConfig(**{name.removeprefix("ada."): value for name, value in flat.items()})


# -- flags --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_every_flag_sets_its_field(field: dataclasses.Field[Any]) -> None:
    value = other_value(field)
    config = parse(f"--ada_{field.name}", *([] if value is True else [str(value)]))
    assert value != field.default and getattr(config, field.name) == value
    assert type(getattr(config, field.name)) is type(value)
    others = {f.name: getattr(config, f.name) for f in FIELDS if f is not field}
    assert others == {f.name: f.default for f in FIELDS if f is not field}, "a flag sets its own field only"


def test_no_flags_give_the_defaults() -> None:
    assert parse() == AdaConfig()


def test_defaults_are_off_and_the_published_setting() -> None:
    """Reinforce-Ada: Ada-Seq-balance, 8 rollouts a round; Ada-Est with 1/√p, for the log objective."""
    config = AdaConfig()
    assert (config.mode, config.exit, config.wave) == ("off", "balance", 8)
    assert (config.allocation, config.objective) == ("inverse_sqrt", "log")
    assert (config.unresolved, config.scheduler) == ("keep", "stream")


def test_dependent_defaults_are_left_open() -> None:
    """Its default is in `settings.resolve`."""
    assert {f.name for f in FIELDS if f.default is None} == {
        *("method", "policy", "run_dir", "engine_args"),
        *("k_pos", "k_neg", "budget", "estimator", "min_samples", "max_samples", "refill_limit"),
        *("correction", "baseline", "select", "speculation", "reward_workers", "loss_length"),
        *("reward_weights", "reward_key", "reward_map"),
        *("chat_template_args", "sampling_args"),
        *("positive_threshold", "scores", "positive_quantile"),
        *("pilot", "gate_low", "gate_high"),
        *("candidates", "choice"),
    }


def test_verbose_has_a_short_name() -> None:
    assert parse("--verbose").verbose


def test_help_lists_every_flag_with_text_and_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # no line breaks within names
    text = " ".join(make_parser().format_help().split())
    for f in FIELDS:
        assert f"--ada_{f.name}" in text
        assert help_texts(AdaConfig)[f.name] in text
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
    ("name", "wrong", "mend"),
    [
        ("mode", "", "est"),
        ("mode", "SEQ", "seq"),
        ("exit", "both", "fixed"),
        ("objective", "exp", "log"),
        ("speculation", -1, None),
        ("engine_restarts", -1, 3),
        ("logprob_steps", -1, 10),
        ("logprob_stop", 0.0, 1),
        ("max_no_score", 1.5, 0.05),
        ("timeout", 0.0, 1800),
        ("wave", 0, 8),
        ("wave", -8, 8),
        ("max_samples", 0, None),
        ("min_samples", 1, None),
        ("give_up", -1, 64),
        ("refill_limit", 0, None),
        ("loss_length", 0, None),
        ("log_texts", -1, 4),
        ("k_pos", 0, None),
        ("k_neg", -2, None),
        ("positive_threshold", math.inf, None),
        ("positive_threshold", math.nan, None),
        ("positive_quantile", 0.0, None),
        ("positive_quantile", 1.0, None),
        ("pilot", 1, None),
        ("gate_low", -0.1, None),
        ("gate_high", 1.1, None),
        ("budget", 1.9, None),
        ("budget", math.inf, None),
        ("half_life", 0.0, 50),
        ("floor", 0.0, 0.02),
        ("floor", 0.5, 0.02),
    ],
)
def test_refusal_names_flag_value_and_a_value_that_is_right(name: str, wrong: Any, mend: Any) -> None:
    with pytest.raises(ConfigError) as error:
        AdaConfig(**{name: wrong})
    assert error.value.flag == f"--ada_{name}"
    assert error.value.value is wrong
    assert str(error.value).startswith(f"--ada_{name} is {wrong!r}: ")
    assert "\n" not in str(error.value)
    assert mend is None or str(mend) in error.value.remedy
    AdaConfig(**{name: mend})


@pytest.mark.parametrize("field", [f for f in FIELDS if f.metadata["choices"]], ids=lambda field: field.name)
def test_refusal_lists_the_choices_and_tries_one(field: dataclasses.Field[Any]) -> None:
    with pytest.raises(ConfigError) as error:
        AdaConfig(**{field.name: "other"})
    assert (error.value.flag, error.value.value) == (f"--ada_{field.name}", "other")
    assert all(choice in error.value.rule for choice in field.metadata["choices"])
    flag, choice = error.value.remedy.split()[-2:]
    assert flag == error.value.flag
    assert choice in field.metadata["choices"]


@pytest.mark.parametrize(
    "values",
    [
        {"positive_threshold": 0.0},
        {"positive_threshold": 0.999},
        {"positive_threshold": -7.5},  # of a reward model
        {"positive_quantile": 0.001},
        {"wave": 1},
        {"wave": 64},  # larger than the cap: one wave, cut
        {"max_samples": 1},
        {"min_samples": 2, "budget": 2.0},
        {"k_pos": 1, "exit": "pos"},
        {"give_up": 0},
        {"half_life": 0.5, "floor": 0.001},
        {"log_texts": 0},
    ],
    ids=str,
)
def test_limits_of_ranges_are_allowed(values: dict[str, Any]) -> None:
    AdaConfig(**values)


# -- derived values -----------------------------------------------------------------------------------------------


def test_run_dir_is_the_flag_or_the_runs_name_made_safe() -> None:
    assert AdaConfig(run_dir="a/b").resolved_run_dir("ppo_1121T10:53") == Path("a/b")
    assert AdaConfig().resolved_run_dir("ppo_1121T10:53") == Path("runs/ppo_1121T10-53")


@pytest.mark.slow
def test_no_flag_is_dead() -> None:
    """Every field is read by somebody, under one of the names that settings have."""
    read: set[str] = set()
    for path in Path(config_module.__file__).parents[1].rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                owner = ast.unparse(node.value).rpartition(".")[2]
                if owner in ("ada", "settings", "s", "given", "config") or path.name in ("schema.py", "settings.py"):
                    read.add(node.attr)
    assert {f.name for f in FIELDS} <= read


def test_help_says_what_every_choice_means() -> None:
    """A piece that is added to a table gets a word there, and so in docs/flags.md."""
    for f in dataclasses.fields(AdaConfig):
        for name in f.metadata["choices"] or ():
            assert re.search(rf"(?<![\w-]){name}(?![\w-])", help_texts(AdaConfig)[f.name]), f"--ada_{f.name} {name}"
