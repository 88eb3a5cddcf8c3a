"""Where scores come from and which are positive: what cannot work is refused by the real parser, in one line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from refusals import check_refusal

from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.host_values import scored_by_model
from openrlhf_ada.config.method_rules import without_effect
from openrlhf_ada.trainer.sampling import score_threshold

Flags = dict[str, str | None]

URL, MODEL, THRESHOLD = "--reward.remote_url", "--reward.model_name_or_path", "--ada_positive_threshold"
QUANTILE, SCORES, SERVER = "--ada_positive_quantile", "--ada_scores", "http://127.0.0.1:5000/get_reward"
BY_MODEL: Flags = {URL: None, MODEL: "org/rm", THRESHOLD: "0"}
RAW: Flags = {URL: SERVER, SCORES: "raw", THRESHOLD: "0"}
PPO: Flags = {"--algo.advantage.estimator": "gae", "--algo.kl.init_coef": "0"}

REFUSED: list[tuple[str, Flags, str, str]] = [
    # id, changes, flag in front of the message with its value, flag of the remedy
    ("nothing scores", {URL: None}, f"{URL} is None", MODEL),
    ("two things score", {MODEL: "org/rm", THRESHOLD: "0"}, f"{MODEL} is 'org/rm'", f"or {URL} out"),
    (
        "a model and an agent",
        BY_MODEL | {"--train.agent_func_path": "agent.py"},
        f"{MODEL} is 'org/rm'",
        "--train.agent_func_path out",
    ),
    (
        "model without threshold",
        BY_MODEL | {THRESHOLD: None},
        f"{THRESHOLD} is None",
        f"{THRESHOLD} 0",
    ),
    (
        "quantile without threshold",
        {QUANTILE: "0.5"},
        f"{THRESHOLD} is None",
        "",
    ),
    ("server without threshold", RAW | {THRESHOLD: None}, f"{THRESHOLD} is None", f"{THRESHOLD} 0"),
    ("unit scores of a model", BY_MODEL | {SCORES: "unit"}, f"{SCORES} is 'unit'", ""),
    ("unknown scores", {SCORES: "log"}, f"{SCORES} is 'log'", f"{SCORES} raw"),
    ("threshold of unit scores", {THRESHOLD: "1.5"}, f"{THRESHOLD} is 1.5", f"{SCORES} raw"),
    ("and in mode off", {"--ada_mode": "off", THRESHOLD: "-1"}, f"{THRESHOLD} is -1.0", f"{SCORES} raw"),
    ("quantile 0", RAW | {QUANTILE: "0"}, f"{QUANTILE} is 0.0", ""),
    ("quantile 1", RAW | {QUANTILE: "1"}, f"{QUANTILE} is 1.0", ""),
    ("quantile of unit scores", {SCORES: "unit", QUANTILE: "0.5"}, f"{QUANTILE} is 0.5", ""),
    *[
        (
            f"quantile with {name}",
            {URL: name, QUANTILE: "0.5", THRESHOLD: "0.5"},
            f"{QUANTILE} is 0.5",
            "",
        )
        for name in ("math", "code", "arithmetic")
    ],
    *[
        (
            f"{flag} without programs",
            {URL: "math", flag: given},
            f"{flag} is {value}",
            "",
        )
        for flag, given, value in (("--ada_code_imports", "numpy", "'numpy'"), ("--ada_code_partial", "", "True"))
    ],
    (
        "modules that are not there",
        {URL: "code", "--ada_code_imports": "numpy,no_such_module"},
        "--ada_code_imports is 'numpy,no_such_module'",
        "",
    ),
    ("known counts", RAW | {"--ada_known_counts": ""}, "--ada_known_counts is True", ""),
    (
        "PPO's critic as pass rate",
        BY_MODEL | PPO | {"--ada_mode": "est", "--ada_estimator": "critic"},
        "--ada_estimator is 'critic'",
        "--ada_estimator ema",
    ),
    (
        "engines on the model's GPUs",
        BY_MODEL | {"--train.colocate_all": ""},
        "--train.colocate_all is True",
        "",
    ),
    (
        "a critic that trains on the model's GPUs",
        BY_MODEL
        | PPO
        | {"--train.async_enable": "", "--train.colocate_critic_reward": "", "--critic.num_gpus_per_node": "8"},
        "--train.colocate_critic_reward is True",
        f"{URL} http://HOST:5000/get_reward --ada_scores raw",
    ),
    (
        "images",
        BY_MODEL | {"--data.max_images_per_prompt": "1"},
        f"{MODEL} is 'org/rm'",
        "",
    ),
    (
        "processes in groups",
        BY_MODEL
        | {
            "--ds.tensor_parallel_size": "2",
            "--actor.num_gpus_per_node": "2",
            "--reward.num_gpus_per_node": "3",
        },
        "--reward.num_gpus_per_node is 3",
        "",
    ),
]


@pytest.mark.parametrize(("changes", "head", "remedy"), [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED])
def test_combination_is_refused(refusal: Callable[[Flags], Exception], changes: Flags, head: str, remedy: str) -> None:
    check_refusal(refusal(changes), head, remedy)


@pytest.mark.parametrize(
    "changes",
    [
        BY_MODEL,
        BY_MODEL | PPO,
        BY_MODEL | {QUANTILE: "0.7"},
        BY_MODEL | {THRESHOLD: "-4.5", "--ada_mode": "est"},
        BY_MODEL | {"--train.async_enable": ""},
        BY_MODEL | {"--train.async_enable": "", "--train.colocate_critic_reward": ""},  # without a critic
        BY_MODEL | PPO | {"--train.colocate_critic_reward": "", "--critic.num_gpus_per_node": "8"},
        BY_MODEL | {"--algo.advantage.estimator": "dr_grpo", "--ada_correction": "stratum"},
        BY_MODEL | {"--algo.advantage.estimator": "dr_grpo", "--ada_mode": "est", "--ada_estimator": "critic"},
        RAW,
        RAW | {QUANTILE: "0.5"},
        {QUANTILE: "0.5", THRESHOLD: "0.5"},  # a function of the user's
        {URL: "reasoning_gym", QUANTILE: "0.5", THRESHOLD: "0.5"},  # gives partial credit
        {URL: "code", "--ada_code_partial": "", QUANTILE: "0.5", THRESHOLD: "0.5"},
    ],
    ids=str,
)
def test_raw_scores_are_allowed(argv_with: Callable[[Flags], list[str]], changes: Flags) -> None:
    args = parse(argv_with(changes))
    settings = args.ada
    assert settings.scores == "raw"
    assert settings.positive_above == 0.5, "of scores made of raw ones, which are 0 and 1"
    threshold = score_threshold(settings)
    assert threshold is not None
    assert threshold.value == args.ada.positive_threshold


def test_reward_model_gives_the_score_by_default(argv_with: Callable[[Flags], list[str]]) -> None:
    args = parse(argv_with(BY_MODEL))
    assert scored_by_model(args)
    assert args.ada.scores == args.ada.scores == "raw", "the record says so"
    args = parse(argv_with(RAW))
    assert not scored_by_model(args)


@pytest.mark.parametrize("given", [None, "0.25"])
def test_unit_scores_are_unchanged(argv_with: Callable[[Flags], list[str]], given: str | None) -> None:
    args = parse(argv_with({THRESHOLD: given}))
    settings = args.ada
    assert (settings.scores, settings.positive_above) == ("unit", float(given or 0.5))
    assert score_threshold(settings) is None


def test_mode_off_leaves_the_model_to_the_host(argv_with: Callable[[Flags], list[str]]) -> None:
    args = parse(argv_with(BY_MODEL | {"--ada_mode": "off", THRESHOLD: None, "--train.colocate_all": ""}))
    assert args.reward.model_name_or_path == "org/rm"
    assert without_effect(args.ada) == [], "and nobody is warned of flags that were not given"


@pytest.mark.parametrize(("mode", "flags", "count"), [("seq", {}, 4), ("est", {}, 2), ("est", {"budget": "8"}, 4)])
def test_every_prompt_has_the_first_scores(
    argv_with: Callable[[Flags], list[str]], mode: str, flags: dict[str, str], count: int
) -> None:
    """n in mode seq; in mode est what every prompt gets, however easy it is."""
    changes: Flags = {"--ada_mode": mode} | {f"--ada_{name}": value for name, value in flags.items()}
    args = parse(argv_with(BY_MODEL | {"--algo.advantage.estimator": "dr_grpo"} | changes))
    assert args.ada.first_scores == count


def test_the_threshold_of_a_method_is_none_for_raw_scores(argv_with: Callable[[Flags], list[str]]) -> None:
    """0.7 of the published methods is for scores in [0, 1]; a reward model's may never reach it."""
    method = BY_MODEL | {"--ada_method": "reinforce-ada-balance", THRESHOLD: None}
    with pytest.raises(ConfigError, match="--ada_positive_threshold"):
        parse(argv_with({name: value for name, value in method.items() if name != THRESHOLD}))
    config = parse(argv_with(method | {THRESHOLD: "-1.5"})).ada
    assert config.positive_threshold == -1.5
