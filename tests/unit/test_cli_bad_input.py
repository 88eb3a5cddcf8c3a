"""R19: a broken command line ends in seconds, in one line that names the flag, the value, the rule and a remedy.

Every case runs the real parser: the host's flags and validation, and ours. Files are in test_cli_bad_files.py; what a
user meets at the shell (exit status, stderr, nothing heavy imported) is in test_cli_process.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config import ConfigError
from openrlhf_ada.host_rules import without_effect
from openrlhf_ada.platforms.cpu_limits import check_cpu_limits

Flags = dict[str, str | None]
Refusal = Callable[[Flags], Exception]

DATA, REWARD, MODEL = "--data.prompt_dataset", "--reward.remote_url", "--actor.model_name_or_path"
N, ESTIMATOR, TRAIN = "--rollout.n_samples_per_prompt", "--algo.advantage.estimator", "--train.batch_size"


def test_the_command_line_that_the_cases_break_is_right(argv_with: Callable[[Flags], list[str]]) -> None:
    args, config = parse(argv_with({}))
    assert (config.mode, args.rollout.n_samples_per_prompt) == ("seq", 4)


# -- combinations of flags ----------------------------------------------------------------------------------------

COMBINATIONS: list[tuple[str, Flags, str, str, str]] = [
    # id, changes, flag in front of the message with its value, part of the rule, part of the remedy
    ("unknown mode", {"--ada_mode": "foo"}, "--ada_mode is 'foo'", "off, seq", "--ada_mode seq"),
    ("unknown exit", {"--ada_exit": "neg"}, "--ada_exit is 'neg'", "pos, balance", "--ada_exit balance"),
    ("dotted flag", {"--ada.exit": "neg"}, "--ada_exit is 'neg'", "pos, balance", "--ada_exit balance"),
    ("wave 0", {"--ada_wave": "0"}, "--ada_wave is 0", "at least 1", "--ada_wave 1"),
    ("negative threshold", {"--ada_positive_threshold": "-1"}, "--ada_positive_threshold is -1.0", "[0, 1)", "0.5"),
    ("threshold 1", {"--ada_positive_threshold": "1"}, "--ada_positive_threshold is 1.0", "[0, 1)", "0.5"),
    ("cap below n", {"--ada_max_samples": "3"}, "--ada_max_samples is 3", "at least 4", "--ada_max_samples 16"),
    ("K above cap", {"--ada_k_pos": "40"}, "--ada_k_pos is 40", "--ada_max_samples 32", "Lower it to 32"),
    (
        "K sum above cap",
        {"--ada_k_pos": "5", "--ada_k_neg": "4", "--ada_max_samples": "8"},
        "--ada_max_samples is 8",
        "5 positives and 4 negatives, 9 in all",
        "lower --ada_k_pos / --ada_k_neg",
    ),
    ("k_neg with pos", {"--ada_exit": "pos", "--ada_k_neg": "2"}, "--ada_k_neg is 2", "'balance' only", "leave"),
    *[
        (f"n=1 with {estimator}", {N: "1", TRAIN: "2", ESTIMATOR: estimator}, f"{N} is 1", estimator, f"{N} 4")
        for estimator in ("group_norm", "dr_grpo", "rloo", "reinforce_baseline")
    ],
    ("n=1 in mode off", {"--ada_mode": "off", N: "1", ESTIMATOR: "rloo"}, f"{N} is 1", "at least 2", f"{N} 4"),
    ("estimator reinforce", {ESTIMATOR: "reinforce"}, f"{ESTIMATOR} is 'reinforce'", "whole batch", "group_norm"),
    ("estimator flash", {ESTIMATOR: "flash_reinforce"}, f"{ESTIMATOR} is 'flash_reinforce'", "biases", "gae"),
    (
        "dynamic filtering",
        {"--algo.dynamic_filtering_enable": ""},
        "--algo.dynamic_filtering_enable is True",
        "already decides",
        "Leave out one",
    ),
    ("async", {"--train.async_enable": ""}, "--train.async_enable is True", "synchronous", "--ada_mode off"),
    ("no reward in mode seq", {REWARD: None}, f"{REWARD} is None", "decides on verdicts", "--train.agent_func_path"),
    (
        "reward model only in mode seq",
        {REWARD: None, "--reward.model_name_or_path": "org/rm"},
        f"{REWARD} is None",
        "come with the rollouts",
        "Give a reward file",
    ),
    ("no reward in mode off", {"--ada_mode": "off", REWARD: None}, f"{REWARD} is None", "good answer", "reward file"),
    ("rollouts do not fill", {TRAIN: "3"}, f"{TRAIN} is 3", "2 x n 4 = 8 rollouts", "divisor of 8"),
    ("batch larger than rollouts", {TRAIN: "16"}, f"{TRAIN} is 16", "would be lost", "divisor of 8"),
    ("micro-batch", {"--train.micro_batch_size": "3"}, "--train.micro_batch_size is 3", "must divide", "divisor"),
    ("no model", {MODEL: None}, f"{MODEL} is None", "no model to train", "hub id"),
    ("no prompts", {DATA: None}, f"{DATA} is None", "no prompts to train on", ".jsonl"),
    ("no engine", {"--vllm.num_engines": "0"}, "--vllm.num_engines is 0", "sampled by vLLM", "--vllm.num_engines 1"),
    ("engines left out", {"--vllm.num_engines": None}, "--vllm.num_engines is None", "vLLM", "--vllm.num_engines 1"),
    ("eval without data", {"--ada_eval_ends": ""}, "--ada_eval_ends is True", "no evaluation set", "--eval.dataset"),
]


@pytest.mark.parametrize(
    ("changes", "head", "rule", "remedy"), [c[1:] for c in COMBINATIONS], ids=[c[0] for c in COMBINATIONS]
)
def test_combination_is_refused(refusal: Refusal, changes: Flags, head: str, rule: str, remedy: str) -> None:
    error = refusal(changes)
    assert isinstance(error, ConfigError)
    assert str(error).startswith(head + ":")
    assert rule in str(error)
    assert remedy in str(error)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--ada_mode": "off", "--rollout.micro_batch_size": "64"}, "number of sample batches"),
        ({"--train.partial_rollout_enable": ""}, "--train.partial_rollout_enable requires --train.async_enable"),
        ({"--rollout.vllm_generate_batch_size": "9"}, "--rollout.vllm_generate_batch_size"),
    ],
)
def test_hosts_own_validation_is_heard(refusal: Refusal, changes: Flags, message: str) -> None:
    assert message in str(refusal(changes))


MISTYPED: list[tuple[list[str], str]] = [
    (["--ada_mod", "seq"], "unrecognized arguments: --ada_mod seq"),
    (["--ada_max", "8"], "unrecognized arguments: --ada_max 8"),  # no abbreviations, of ours or of the host's
    (["--rollout.batch", "8"], "unrecognized arguments: --rollout.batch 8"),
    (["--actor.pretrain", "x"], "unrecognized arguments: --actor.pretrain x"),
    (["stray"], "unrecognized arguments: stray"),
    (["--ada_wave"], "--ada_wave/--ada.wave: expected one argument"),
    (["--ada_wave", "x"], "--ada_wave/--ada.wave: invalid int value: 'x'"),
    (["--ada_positive_threshold", "half"], "invalid float value: 'half'"),
    (["--rollout.batch_size", "1.5"], "--rollout.batch_size: invalid int value: '1.5'"),
    (["--algo.advantage.estimator", "grpo"], "--algo.advantage.estimator: invalid choice: 'grpo' (choose from"),
]


def parser_error(argv: list[str], capsys: pytest.CaptureFixture) -> str:
    with pytest.raises(SystemExit) as error:
        parse(argv)
    assert error.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("openrlhf-ada train: error: ")
    assert err.count("\n") == 1, "not two hundred lines of usage"
    return err


@pytest.mark.parametrize(("extra", "message"), MISTYPED, ids=[" ".join(m[0]) for m in MISTYPED])
def test_mistyped_flag_is_refused_in_one_line(
    argv_with: Callable[[Flags], list[str]], capsys: pytest.CaptureFixture, extra: list[str], message: str
) -> None:
    assert message in parser_error([*argv_with({}), *extra], capsys)


def test_mistyped_flag_gets_a_suggestion(
    argv_with: Callable[[Flags], list[str]], capsys: pytest.CaptureFixture
) -> None:
    assert "--ada_exit" in parser_error([*argv_with({}), "--ada_exti", "pos"], capsys)


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({TRAIN: "0"}, TRAIN),
        ({"--train.micro_batch_size": "0"}, "--train.micro_batch_size"),
        ({"--rollout.micro_batch_size": "0"}, "--rollout.micro_batch_size"),
        ({TRAIN: "-4"}, TRAIN),
        ({"--rollout.batch_size": "0"}, "--rollout.batch_size"),
        ({"--train.num_episodes": "0"}, "--train.num_episodes"),
        ({"--ds.ring_attn_size": "0"}, "--ds.ring_attn_size"),
        ({"--actor.num_gpus_per_node": "0"}, "--actor.num_gpus_per_node"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_sizes_below_one_are_refused(refusal: Refusal, changes: Flags, flag: str) -> None:
    assert str(refusal(changes)).startswith(f"{flag} is ")


def test_micro_batches_that_processes_cannot_share_evenly_are_refused(refusal: Refusal) -> None:
    two = {"--actor.num_gpus_per_node": "2", TRAIN: "8", "--train.micro_batch_size": "4"}
    error = refusal(two | {"--rollout.micro_batch_size": "3"})
    assert str(error).startswith("--rollout.micro_batch_size is 3: ")
    assert "(actor 2)" in str(error)
    assert str(refusal(two | {"--train.micro_batch_size": "8"})).startswith("--train.micro_batch_size is 8: ")


def test_every_model_that_gets_rollouts_must_be_able_to_share_them(refusal: Refusal) -> None:
    """8 rollouts in micro-batches of 4: enough for the policy's one process, not for three of the reference."""
    changes = {"--rollout.micro_batch_size": "4", "--algo.kl.init_coef": "0.1", "--ref.num_gpus_per_node": "3"}
    assert "(actor 1, ref 3)" in str(refusal(changes))
    gae = {"--rollout.micro_batch_size": "8", ESTIMATOR: "gae", "--critic.num_gpus_per_node": "2"}
    assert "(actor 1, critic 2)" in str(refusal(gae))


@pytest.mark.parametrize("mode", ["off", "seq"])
@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--rollout.temperature", "0"),
        ("--rollout.top_p", "2"),
        ("--rollout.max_new_tokens", "0"),
        ("--data.max_len", "0"),
        ("--train.seed", "-1"),
        ("--ds.zero_stage", "7"),
        ("--eval.steps", "0"),
        ("--eval.n_samples_per_prompt", "0"),
        ("--logger.logging_steps", "0"),
        ("--ckpt.save_steps", "-2"),
        ("--vllm.tensor_parallel_size", "0"),
        ("--critic.num_gpus_per_node", "-1"),
        ("--rollout.micro_batch_size", "0"),
        ("--reward.overlong_buffer_len", "3000"),
    ],
)
def test_values_that_fail_minutes_later_are_refused_in_every_mode(
    refusal: Refusal, mode: str, flag: str, value: str
) -> None:
    assert str(refusal({"--ada_mode": mode, flag: value})).startswith(f"{flag} is {value}")


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"--train.colocate_all": "", "--vllm.num_engines": "2"}, "--train.colocate_all"),
        ({"--train.colocate_actor_ref": "", "--algo.kl.init_coef": "0.1"}, "--ref.num_gpus_per_node"),
        (
            {
                "--train.colocate_critic_reward": "",
                ESTIMATOR: "gae",
                "--critic.num_gpus_per_node": "1",
                "--reward.num_gpus_per_node": "2",
            },
            "--reward.num_gpus_per_node",
        ),
    ],
)
def test_models_that_share_gpus_have_equally_many(refusal: Refusal, changes: Flags, flag: str) -> None:
    assert str(refusal(changes)).startswith(f"{flag} is ")


# -- flags that change nothing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({}, None),
        ({"--ada_mode": "off"}, None),
        ({"--ada_mode": "off", "--ada_wave": "4", "--ada_exit": "pos"}, "--ada_exit, --ada_wave: without effect"),
        ({"--ada_mode": "off", "--train.async_enable": ""}, "--ada_run_dir: without effect"),
    ],
)
def test_flags_without_effect_are_named(
    argv_with: Callable[[Flags], list[str]], changes: Flags, warning: str | None
) -> None:
    args, config = parse(argv_with(changes))
    said = without_effect(config, args)
    assert said is None if warning is None else said is not None and said.startswith(warning)


# -- a machine without a GPU --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"--ds.attn_implementation": "flash_attention_2"}, "--ds.attn_implementation"),
        ({"--ds.packing_samples": ""}, "--ds.packing_samples"),
        ({"--ds.lora.rank": "8"}, "--ds.lora.rank"),
        ({"--vllm.sync_backend": "nccl"}, "--vllm.sync_backend"),
        ({"--vllm.tensor_parallel_size": "2"}, "--vllm.tensor_parallel_size"),
        ({}, None),
    ],
)
def test_what_a_cpu_does_not_have_is_refused(
    argv_with: Callable[[Flags], list[str]], changes: Flags, flag: str | None
) -> None:
    args, _ = parse(argv_with({"--ds.attn_implementation": "sdpa", "--vllm.sync_backend": "gloo"} | changes))
    if flag is None:
        check_cpu_limits(args)
        return
    with pytest.raises(ConfigError, match=f"^{re.escape(flag)} is .* no GPU"):
        check_cpu_limits(args)


def test_group_of_one_has_no_meaning_in_mode_seq(refusal: Refusal) -> None:
    assert N in str(refusal({N: "1", ESTIMATOR: "gae", TRAIN: "2"}))


def test_reward_that_is_neither_python_file_nor_url_is_refused(refusal: Refusal) -> None:
    assert REWARD in str(refusal({REWARD: "rewards/arithmetic"}))


def test_data_that_cannot_fill_one_batch_is_refused(refusal: Refusal) -> None:
    assert DATA in str(refusal({"--rollout.batch_size": "8", TRAIN: "32"}))


def test_probabilities_must_match_the_data_sets(refusal: Refusal) -> None:
    assert "--data.prompt_probs" in str(refusal({"--data.prompt_probs": "0.5,0.5"}))


def test_model_scope_that_is_not_installed_is_refused(refusal: Refusal) -> None:
    assert "modelscope" in str(refusal({"--use_ms": ""}))
