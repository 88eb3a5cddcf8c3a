"""Published settings by name: they are what they say, explicit flags win, and what differs is said.

Every command line goes through the real parser, with nothing given that a preset is there to give.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cases import pool_of

from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.method_rules import without_effect
from openrlhf_ada.config.preset_flags import named_method
from openrlhf_ada.config.presets import METHODS
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import make_policy
from openrlhf_ada.core.policies import Estimated, Sequential
from openrlhf_ada.core.selection import Selection
from openrlhf_ada.core.stopping import ExitRule

Flags = dict[str, str | None]

every_method = pytest.mark.parametrize("name", METHODS)

OURS = ("raft-1-twice", "rated", "rated-pos", "counted", "first-right")


@pytest.fixture
def argv(valid_flags: Flags, tmp_path: Path) -> list[str]:
    """Model, reward, one GPU, and prompts for four published batches: what no preset sets."""
    data = tmp_path / "many.jsonl"
    data.write_text("".join(f'{{"input": "{i}+1=", "label": "{i + 1}"}}\n' for i in range(4 * 512)))
    set_by_presets = {f"--{name}" for method in METHODS.values() for name in method.flags} | {"--ada_mode"}
    needed = {name: value for name, value in valid_flags.items() if name not in set_by_presets}
    return [part for pair in (needed | {"--data.prompt_dataset": str(data)}).items() for part in pair if part]


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
def test_name_alone_gives_every_published_value(argv: list[str], name: str, caplog: pytest.LogCaptureFixture) -> None:
    args = parse([*argv, "--ada_method", name])
    assert {flag: value_of(args, flag) for flag in METHODS[name].flags} == METHODS[name].flags
    assert args.ada.method == name
    assert said(caplog) == [], "nothing deviates"


@every_method
def test_explicit_published_flags_equal_the_preset(
    argv: list[str], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    explicit = [part for flag, value in METHODS[name].flags.items() for part in (f"--{flag}", *as_text(value))]
    args = parse([*argv, *explicit])
    assert {flag: value_of(args, flag) for flag in METHODS[name].flags} == METHODS[name].flags
    parse([*argv, *explicit, "--ada_method", name])
    assert said(caplog) == []


@every_method
def test_published_setting_has_no_flag_without_effect(argv: list[str], name: str) -> None:
    args = parse([*argv, "--ada_method", name])
    assert without_effect(args.ada) == []


@every_method
def test_every_preset_has_the_recipe_of_the_run_scripts(name: str) -> None:
    """Reinforce-Ada, scripts/run_reinforce_ada.sh: a constant rate, dual clip 10, betas of .9 and .999, no decay."""
    published = {
        "actor.adam.lr": 1e-6,
        "actor.adam.betas": (0.9, 0.999),
        "actor.adam.weight_decay": 0.0,
        "actor.lr_scheduler": "constant_with_warmup",
        "actor.max_norm": 1.0,
        "actor.eps_clip_low_high": (0.2, 0.28),
        "actor.dual_clip": 10.0,
        "actor.loss_agg_mode": "token-mean",
        "train.max_epochs": 1,
        "rollout.temperature": 1.0,
        "rollout.top_p": 1.0,
        "algo.kl.init_coef": 0.0,
    }
    passes = {"train.max_epochs": 2} if name in OURS else {}
    flags = METHODS[name].flags
    assert {flag: flags[flag] for flag in published} == published | passes


@every_method
def test_warm_up_of_400_steps_is_10_steps(name: str) -> None:
    """The host counts updates of the weights: 512 prompts times n samples, in parts of --train.batch_size."""
    flags = METHODS[name].flags
    # The only one that trains more than n: 1 + 1/2 + ... + 1/8 a prompt, if all pass rates are equally frequent.
    trained = sum(1 / n for n in range(1, 9)) if name == "rated-pos" else flags["rollout.n_samples_per_prompt"]
    updates = int(flags["rollout.batch_size"] * trained / flags["train.batch_size"])
    # Ours make two passes: `rated` in half as many updates each, the others in as many.
    expected = 8 if name in OURS and name != "rated" else 4
    assert updates * flags["train.max_epochs"] == expected, "mini-batches of 128 prompts"
    assert 400 * updates * flags["actor.lr_warmup_ratio"] == 10 * updates


@pytest.mark.parametrize("name", ["rated", "counted"])
def test_few_rollouts_of_many_prompts_are_as_many_a_step_as_those_of_grpo(name: str) -> None:
    ours, grpo = (
        METHODS[of].flags["rollout.batch_size"] * METHODS[of].flags["rollout.n_samples_per_prompt"]
        for of in (name, "grpo")
    )
    assert ours == grpo


def test_help_lists_the_names() -> None:
    text = AdaConfig.__dataclass_fields__["method"].metadata["help"]
    listed = re.search(r"One of: ([^(]*) \(", text)
    assert listed is not None
    assert listed[1].split(", ") == list(METHODS)


# -- what they come to --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rule"),
    [("reinforce-ada-pos", ExitRule(1, 0, 0.7)), ("reinforce-ada-balance", ExitRule(2, 2, 0.7))],
)
def test_sequential_settings_are_the_published_ones(argv: list[str], name: str, rule: ExitRule) -> None:
    args = parse([*argv, "--ada_method", name])
    policy = make_policy(args.ada)
    assert isinstance(policy, Sequential)
    assert (policy.rule, policy.wave, policy.max_samples, policy.memory) == (rule, 8, 32, None)
    assert policy.builder.selection == Selection("balanced", 4, 0.7)
    assert (policy.builder.baseline, policy.builder.correction) == ("pool", "none")


@pytest.mark.parametrize(("name", "critic"), [("reinforce-ada-est", False), ("reinforce-ada-est-critic", True)])
def test_estimated_settings_are_those_of_the_paper(argv: list[str], name: str, critic: bool) -> None:
    args = parse([*argv, "--ada_method", name])
    policy = make_policy(args.ada)
    assert isinstance(policy, Estimated)
    assert (policy.budget, policy.min_samples, policy.max_samples, policy.allocation) == (8.0, 2, 32, "inverse_sqrt")
    assert policy.builder.selection == Selection("all", 8, 0.7)
    assert (policy.builder.correction, policy.builder.objective.name) == ("paper", "log")
    assert policy.reads_critic is critic
    model = args.actor.model_name_or_path if critic else None
    assert args.critic.model_name_or_path == model, "the critic starts from the policy's model"


def test_raft_trains_all_positives_with_equal_weight(argv: list[str]) -> None:
    args = parse([*argv, "--ada_method", "raft"])
    policy = make_policy(args.ada)
    for outcomes in ((1, 0, 1, 0), (0, 0, 0, 0), (1, 1, 1, 1)):
        group = policy.build(pool_of(outcomes), np.random.default_rng(0))
        assert (group.indices, group.coefficients) == ((0, 1, 2, 3), outcomes)


# -- the name and other flags -------------------------------------------------------------------------------------

SMALL = ["--rollout.batch_size", "8", "--train.batch_size", "8"]


@every_method
def test_explicit_flag_wins_and_is_reported(argv: list[str], name: str, caplog: pytest.LogCaptureFixture) -> None:
    args = parse([*argv, *SMALL, "--ada_method", name])
    assert (args.rollout.batch_size, args.train.batch_size) == (8, 8)
    prompts, train = (METHODS[name].flags[flag] for flag in ("rollout.batch_size", "train.batch_size"))
    assert said(caplog) == [
        f"deviation: --rollout.batch_size is 8, {name} has {prompts}",
        f"deviation: --train.batch_size is 8, {name} has {train}",
    ]
    others = [flag for flag in METHODS[name].flags if flag not in ("rollout.batch_size", "train.batch_size")]
    assert all(value_of(args, flag) == METHODS[name].flags[flag] for flag in others)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (["--ada_exit", "balance"], "--ada.exit is balance, reinforce-ada-pos has pos"),
        (["--ada.wave=4"], "--ada.wave is 4, reinforce-ada-pos has 8"),
        (["--actor.eps_clip_low_high", "0.2", "0.2"], "--actor.eps_clip_low_high is [0.2, 0.2], "),
        (["--actor.dual_clip", "3"], "--actor.dual_clip is 3.0, reinforce-ada-pos has 10.0"),
        (
            ["--actor.lr_scheduler", "linear"],
            "--actor.lr_scheduler is linear, reinforce-ada-pos has constant_with_warmup",
        ),
        (["--actor.entropy_coef", "1e-4"], "--actor.entropy_coef is 0.0001, reinforce-ada-pos leaves it alone"),
    ],
    ids=" ".join,
)
def test_deviation_names_actual_and_published_value(
    argv: list[str], given: list[str], line: str, caplog: pytest.LogCaptureFixture
) -> None:
    parse([*argv, *given, "--ada_method", "reinforce-ada-pos"])
    (message,) = said(caplog)
    assert message.startswith(f"deviation: {line}")


def test_flags_that_no_preset_sets_are_no_deviation(argv: list[str], caplog: pytest.LogCaptureFixture) -> None:
    args = parse([*argv, "--ada_method", "reinforce-ada-pos", "--ada_log_texts", "1", "--train.seed", "7"])
    assert (args.ada.log_texts, args.train.seed) == (1, 7)
    assert said(caplog) == []


def test_senseless_flag_with_preset_is_refused(argv: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"^--ada_unresolved is 'refill': .* --ada_select all trains every rollout"):
        parse([*argv, "--ada_method", "reinforce-ada-est", "--ada_unresolved", "refill"])


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        *(
            (
                name,
                ["--rollout.batch_size", "128", "--rollout.n_samples_per_prompt", "8", "--train.batch_size", "128"],
                f"--rollout.n_samples_per_prompt is 8: --ada_method {name} trains one rollout of each prompt. Leave "
                f"out what --ada_method {name} sets itself: --rollout.n_samples_per_prompt (it has 1).",
            )
            for name in ("raft-1-twice", "first-right", "rated", "rated-pos")
        ),
        (
            "first-right",
            ["--algo.advantage.estimator", "dr_grpo"],
            "--rollout.n_samples_per_prompt is 1: --algo.advantage.estimator dr_grpo compares the samples of one "
            "prompt and needs at least 2. Leave out what --ada_method first-right sets itself: "
            "--algo.advantage.estimator (it has flash_reinforce).",
        ),
        (
            "first-right",
            ["--algo.kl.init_coef", "0.001"],
            "--algo.kl.init_coef is 0.001: the KL penalty counts every rollout, so rollouts of coefficient 0 must be "
            "computed too. Leave out what --ada_method first-right sets itself: --algo.kl.init_coef (it has 0.0).",
        ),
        (
            "maxrl",
            ["--ada_max_samples", "4"],
            "--ada_max_samples is 4: a group of --rollout.n_samples_per_prompt 8 samples is trained, so N_max must be "
            "at least 8. Leave out what --ada_method maxrl sets itself: --ada.max_samples (it has 8); or use "
            "--ada_max_samples 32 (four times the group is a good start).",
        ),
        (
            "raft-1-twice",
            ["--algo.dynamic_filtering_enable"],
            "--algo.dynamic_filtering_enable is True: --ada_mode seq already decides what happens to prompts without "
            "signal. Leave it out; --ada_unresolved refill does the same.",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_flags_of_another_method_are_named_with_what_the_preset_has(
    argv: list[str], name: str, given: list[str], message: str
) -> None:
    """Who adds --ada_method to a command line of GRPO leaves its sizes, estimator and penalties there."""
    with pytest.raises(ConfigError) as refused:
        parse([*argv, *given, "--ada_method", name])
    assert str(refused.value) == message


# -- the name itself ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spelling", [["--ada_method", "{}"], ["--ada.method", "{}"], ["--ada_method={}"], ["--ada.method={}"]]
)
def test_every_spelling_is_understood(argv: list[str], spelling: list[str]) -> None:
    given = [part.format("raft") for part in spelling]
    assert named_method(given) == "raft"
    for command in ([*given, *argv], [*argv, *given]):
        args = parse(command)
        assert (args.ada.method, args.ada.exit, args.rollout.n_samples_per_prompt) == ("raft", "fixed", 4)


def test_no_preset_keeps_the_hosts_defaults(argv: list[str]) -> None:
    assert named_method(argv) is None
    assert parse([*argv, "--rollout.batch_size", "8"]).rollout.n_samples_per_prompt == 1


def test_last_name_counts_as_for_every_flag(argv: list[str]) -> None:
    args = parse([*argv, "--ada_method", "grpo", "--ada_method", "ppo"])
    assert (args.ada.method, args.algo.advantage.estimator) == ("ppo", "gae")


@pytest.mark.parametrize("name", ["GRPO", "reinforce-ada", ""])
def test_unknown_name_error_is_one_line_with_all_names(refusal: Callable[[Flags], Exception], name: str) -> None:
    message = str(refusal({"--ada_method=" + name: ""}))
    assert message.startswith(f"--ada_method is {name!r}: expected one of: {', '.join(METHODS)}. ")


def test_name_left_out_is_the_parsers_error(argv: list[str], capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        parse([*argv, "--ada_method"])
    error = capsys.readouterr().err
    assert "--ada_method/--ada.method: expected one argument" in error
    assert error.count("\n") == 1
