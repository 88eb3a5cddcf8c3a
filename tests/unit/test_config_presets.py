"""Methods by name: each passes every check, explicit flags win, and what differs is said.

Every command line goes through the real parser, with nothing given that a method is there to give.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config import presets
from openrlhf_ada.config.flags import ConfigError, help_texts, spelt
from openrlhf_ada.config.method_rules import without_effect
from openrlhf_ada.config.objective_notes import objective_notes
from openrlhf_ada.config.preset_flags import named_method
from openrlhf_ada.config.presets import METHODS, OLD_NAMES
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import make_policy
from openrlhf_ada.config.yaml_file import read_yaml

Flags = dict[str, str | None]

every_method = pytest.mark.parametrize("name", METHODS)


def value_of(args: SimpleNamespace, dotted: str) -> Any:
    value: Any = args
    for part in dotted.split("."):
        value = getattr(value, part)
    return tuple(value) if isinstance(value, list) else value


def as_text(value: Any) -> list[str]:
    """What follows the flag; a switch has nothing."""
    if value is True:
        return []
    return [str(part) for part in value] if isinstance(value, tuple) else [str(value)]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


# -- the name alone -----------------------------------------------------------------------------------------------


@every_method
def test_name_alone_gives_every_value_and_passes_every_check(
    method_argv: list[str], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    args = parse([*method_argv, "--ada_method", name])
    method = METHODS[name]
    assert method.summary and method.source, "what it is, and where it is from"
    assert {flag: value_of(args, flag) for flag in method.flags} == method.flags
    assert args.ada.method == args.ada.method == name
    settings = args.ada
    assert without_effect(settings) == []
    assert said(caplog) == [], "nothing deviates"
    if args.ada.mode != "off":
        make_policy(settings)
        assert objective_notes(settings)


@every_method
def test_explicit_flags_equal_the_method(method_argv: list[str], name: str, caplog: pytest.LogCaptureFixture) -> None:
    flags = METHODS[name].flags
    explicit = [part for flag, value in flags.items() for part in (spelt(flag), *as_text(value))]
    args = parse([*method_argv, *explicit, "--ada_method", name])
    assert {flag: value_of(args, flag) for flag in flags} == flags
    assert said(caplog) == []


def test_all_methods_share_the_recipe() -> None:
    """Rate, betas, clipping and loss; sizes and epochs are the methods' own."""
    own = ("batch_size", "n_samples_per_prompt", "max_epochs", "estimator")
    shared = {flag for flag in METHODS["grpo"].flags if not flag.startswith("ada.") and not flag.endswith(own)}
    assert shared
    for flag in shared:
        assert {method.flags[flag] for method in METHODS.values()} == {METHODS["grpo"].flags[flag]}


def test_a_start_reads_the_file_of_its_method_and_what_it_rests_on(
    method_argv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def noted(path: Path, *args: Any, **kwargs: Any) -> Any:
        read.append(path.stem)
        return read_yaml(path, *args, **kwargs)

    monkeypatch.setattr(presets, "read_yaml", noted)
    presets._of_folder.cache_clear()
    parse([*method_argv, "--ada_method", "vip"])
    assert sorted(read) == ["recipe", "vip"]


def test_help_lists_the_names() -> None:
    text = help_texts(AdaConfig)["method"]
    assert all(re.search(rf"\b{re.escape(name)}[,.]", text) for name in METHODS)


# -- the name and other flags -------------------------------------------------------------------------------------


@every_method
def test_explicit_flag_wins_and_is_reported(
    method_argv: list[str], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    args = parse([*method_argv, "--rollout.batch_size", "8", "--train.batch_size", "8", "--ada_method", name])
    assert (args.rollout.batch_size, args.train.batch_size) == (8, 8)
    lines = said(caplog)
    for line, flag in zip(lines, ("rollout.batch_size", "train.batch_size"), strict=True):
        assert f"--{flag} is 8, {name} has {METHODS[name].flags[flag]}" in line


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (["--ada_exit", "balance"], "--ada_exit is balance, reinforce-ada-pos has pos"),
        (["--ada_wave=4"], "--ada_wave is 4, reinforce-ada-pos has 8"),
        (["--actor.eps_clip_low_high", "0.2", "0.2"], "--actor.eps_clip_low_high is [0.2, 0.2], "),
        (["--actor.entropy_coef", "1e-4"], "--actor.entropy_coef is 0.0001, reinforce-ada-pos leaves it alone"),
    ],
    ids=" ".join,
)
def test_deviation_names_actual_and_published_value(
    method_argv: list[str], given: list[str], line: str, caplog: pytest.LogCaptureFixture
) -> None:
    parse([*method_argv, *given, "--ada_method", "reinforce-ada-pos"])
    (message,) = said(caplog)
    assert message.startswith(f"deviation: {line}")


def test_flags_that_no_method_sets_are_no_deviation(method_argv: list[str], caplog: pytest.LogCaptureFixture) -> None:
    parse([*method_argv, "--ada_method", "reinforce-ada-pos", "--ada_log_texts", "1", "--train.seed", "7"])
    assert said(caplog) == []


@pytest.mark.parametrize(
    ("name", "given", "refused", "left_out"),
    [
        *(
            (
                name,
                "--rollout.batch_size 128 --rollout.n_samples_per_prompt 8 --train.batch_size 128",
                "--ada_wave is 1" if name == "rated-pos" else "--ada_max_samples is 1",
                "--rollout.n_samples_per_prompt (it has 1)",
            )
            for name in ("raft-n1-e2", "rated", "rated-pos")
        ),
        (
            "first-success-8",
            "--algo.kl.init_coef 0.001",
            "--algo.kl.init_coef is 0.001",
            "--algo.kl.init_coef (it has 0)",
        ),
        ("maxrl", "--ada_max_samples 4", "--ada_max_samples is 4", "--ada_max_samples (it has 8)"),
        ("reinforce-ada-est", "--ada_unresolved refill", "--ada_unresolved is 'refill'", ""),
        ("raft-n1-e2", "--algo.dynamic_filtering_enable", "--algo.dynamic_filtering_enable is True", ""),
    ],
)
def test_flags_of_another_method_are_named_with_what_this_one_has(
    method_argv: list[str], name: str, given: str, refused: str, left_out: str
) -> None:
    """Who adds --ada_method to a command line of GRPO leaves its sizes, estimator and penalties there."""
    with pytest.raises(ConfigError) as error:
        parse([*method_argv, *given.split(), "--ada_method", name])
    assert str(error.value).startswith(refused)
    assert left_out in str(error.value)


# -- the name itself ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", [["--ada_method", "{}"], ["--ada_method={}"]])
def test_every_spelling_is_understood(method_argv: list[str], spelling: list[str]) -> None:
    given = [part.format("raft") for part in spelling]
    for command in ([*given, *method_argv], [*method_argv, *given]):
        args = parse(command)
        assert (args.ada.method, args.ada.exit, args.rollout.n_samples_per_prompt) == ("raft", "fixed", 4)


def test_without_a_name_openrlhfs_defaults_stay(method_argv: list[str]) -> None:
    assert named_method(method_argv) is None
    assert parse([*method_argv, "--rollout.batch_size", "8"]).rollout.n_samples_per_prompt == 1


def test_last_name_counts_as_for_every_flag(method_argv: list[str]) -> None:
    args = parse([*method_argv, "--ada_method", "grpo", "--ada_method", "ppo"])
    assert (args.ada.method, args.algo.advantage.estimator) == ("ppo", "gae")


@pytest.mark.parametrize(("old", "new"), OLD_NAMES.items())
def test_an_old_name_is_said_once_and_never_recorded(
    method_argv: list[str], old: str, new: str, caplog: pytest.LogCaptureFixture
) -> None:
    args = parse([*method_argv, "--ada_method", old])
    assert args.ada.method == args.ada.given.method == new
    (line,) = said(caplog)
    assert old in line and new in line
    by_old, by_new = (parse([*method_argv, "--ada_method", name]) for name in (old, new))
    assert by_old == by_new


@pytest.mark.parametrize(
    ("name", "near"), [("GRPO", "grpo"), ("reinforce-ada", "reinforce-ada-"), ("first-succes", "first-success-8")]
)
def test_unknown_name_error_names_the_nearest_and_all(
    refusal: Callable[[Flags], Exception], name: str, near: str
) -> None:
    message = str(refusal({"--ada_method=" + name: ""}))
    assert message.startswith(f"--ada_method is {name!r}: ")
    assert f"--ada_method {near}" in message
    assert all(known in message for known in METHODS)


def test_name_left_out_is_the_parsers_error(method_argv: list[str], capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        parse([*method_argv, "--ada_method"])
    error = capsys.readouterr().err
    assert "--ada_method" in error and error.count("\n") == 1
