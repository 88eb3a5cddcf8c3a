"""R19: a broken command line ends in seconds, in one line that names the flag, the value, the rule and a remedy.

Every case runs the real parser: OpenRLHF's flags and validation, and ours. Our flags among each other are in
test_config_method_rules.py, ours with OpenRLHF's in test_config_host_rules.py, files in test_cli_bad_files.py; what a
user meets at the shell (exit status, stderr, nothing heavy imported) is in test_cli_process.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from refusals import check_refusal

from openrlhf_ada.cli.train_ppo_ray import notes, parse
from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.platforms.gpu import check_cpu_limits, check_gpu_limits
from openrlhf_ada.reporting.recorded_flags import flat
from openrlhf_ada.reporting.redaction import plain
from openrlhf_ada.trainer.checkpoints import Origin, differences

Flags = dict[str, str | None]
Refusal = Callable[[Flags], Exception]

DATA, REWARD, MODEL = "--data.prompt_dataset", "--reward.remote_url", "--actor.model_name_or_path"
N, ESTIMATOR, TRAIN = "--rollout.n_samples_per_prompt", "--algo.advantage.estimator", "--train.batch_size"


def test_unbroken_command_line_is_valid(argv_with: Callable[[Flags], list[str]]) -> None:
    args = parse(argv_with({}))
    assert (args.ada.mode, args.rollout.n_samples_per_prompt) == ("seq", 4)


# -- combinations of flags ----------------------------------------------------------------------------------------

COMBINATIONS: list[tuple[str, Flags, str, str]] = [
    # id, changes, flag in front of the message with its value, flag of the remedy
    ("unknown mode", {"--ada_mode": "foo"}, "--ada_mode is 'foo'", "--ada_mode est"),
    ("unknown exit", {"--ada_exit": "neg"}, "--ada_exit is 'neg'", "--ada_exit fixed"),
    ("choice", {"--ada_exit": "neg"}, "--ada_exit is 'neg'", "--ada_exit fixed"),
    ("near exit", {"--ada_exit": "pso"}, "--ada_exit is 'pso'", "--ada_exit pos"),
    ("near method", {"--ada_method": "raft_1_twice"}, "--ada_method is 'raft_1_twice'", ""),
    ("wave 0", {"--ada_wave": "0"}, "--ada_wave is 0", "--ada_wave 8"),
    ("negative threshold", {"--ada_positive_threshold": "-1"}, "--ada_positive_threshold is -1.0", ""),
    ("threshold 1", {"--ada_positive_threshold": "1"}, "--ada_positive_threshold is 1.0", ""),
    ("no reward in mode off", {"--ada_mode": "off", REWARD: None}, f"{REWARD} is None", ""),
    ("no model", {MODEL: None}, f"{MODEL} is None", ""),
    ("no prompts", {DATA: None}, f"{DATA} is None", ""),
    ("no engine", {"--vllm.num_engines": "0"}, "--vllm.num_engines is 0", "--vllm.num_engines 1"),
    ("engines left out", {"--vllm.num_engines": None}, "--vllm.num_engines is None", "--vllm.num_engines 1"),
    ("engine option", {"--ada_engine_args": '{"seed": 1}'}, "--ada_engine_args is 'seed'", "--train.seed"),
    ("engine options", {"--ada_engine_args": "none.yaml"}, "--ada_engine_args is 'none.yaml'", "YAML"),
    ("eval without data", {"--ada_eval_ends": ""}, "--ada_eval_ends is True", "--eval.dataset"),
]


@pytest.mark.parametrize(
    ("changes", "head", "remedy"), [c[1:] for c in COMBINATIONS], ids=[c[0] for c in COMBINATIONS]
)
def test_combination_is_refused(refusal: Refusal, changes: Flags, head: str, remedy: str) -> None:
    check_refusal(refusal(changes), head, remedy)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--ada_mode": "off", "--rollout.micro_batch_size": "64"}, "number of sample batches"),
        (
            {"--ada_mode": "off", "--train.partial_rollout_enable": ""},
            "--train.partial_rollout_enable requires --train.async_enable",
        ),
        (
            {"--ada_mode": "off", "--rollout.vllm_generate_batch_size": "9"},
            "--rollout.vllm_generate_batch_size > --rollout.batch_size requires --train.async_enable",
        ),
    ],
)
def test_hosts_own_validation_is_heard(refusal: Refusal, changes: Flags, message: str) -> None:
    assert message in str(refusal(changes))


# -- spelling -----------------------------------------------------------------------------------------------------

MISTYPED: list[tuple[list[str], str]] = [
    (["--ada_mod", "seq"], "unrecognized arguments: --ada_mod seq"),
    (["--ada_max", "8"], "unrecognized arguments: --ada_max 8"),  # no abbreviations, of ours or of OpenRLHF's
    (["--rollout.batch", "8"], "unrecognized arguments: --rollout.batch 8"),
    (["--actor.pretrain", "x"], "unrecognized arguments: --actor.pretrain x"),
    (["stray"], "unrecognized arguments: stray"),
    (["--ada_wave"], "--ada_wave: expected one argument"),
    (["--ada_wave", "x"], "--ada_wave: invalid int value: 'x'"),
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


@pytest.mark.parametrize(
    ("extra", "meant"),
    [
        (["--ada_exti", "pos"], "--ada_exit"),
        (["--ada.exit", "pos"], "--ada_exit"),
        (["--actor_learning_rate", "1e-6"], "--actor.adam.lr"),
        (["--rollout_batch_size", "8"], "--rollout.batch_size"),
        ([ESTIMATOR, "grpo"], "group_norm"),
        ([ESTIMATOR, "Dr-GRPO"], "dr_grpo"),
        (["--actor.optim", "adamw"], "adam"),
    ],
)
def test_mistyped_flags_and_values_get_a_suggestion(
    argv_with: Callable[[Flags], list[str]], capsys: pytest.CaptureFixture, extra: list[str], meant: str
) -> None:
    assert f"Did you mean {meant}?" in parser_error([*argv_with({}), *extra], capsys)


# -- sizes and values ---------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("mode", ["off", "seq", "est"])
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
        ("--vllm.gpu_memory_utilization", "1.5"),
        ("--train.max_tokens_per_gpu", "0"),
        ("--rollout.max_tokens_per_gpu", "-1"),
    ],
)
def test_values_that_fail_late_are_refused_in_every_mode(refusal: Refusal, mode: str, flag: str, value: str) -> None:
    assert str(refusal({"--ada_mode": mode, flag: value})).startswith(f"{flag} is {value}")


# -- a machine without a GPU --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"--ds.attn_implementation": "flash_attention_2"}, "--ds.attn_implementation"),
        ({"--ds.packing_samples": ""}, "--ds.packing_samples"),
        ({"--vllm.sync_backend": "nccl"}, "--vllm.sync_backend"),
        ({"--vllm.tensor_parallel_size": "2"}, None),
        ({"--ada_engine_args": '{"spec_method": "ngram"}'}, "--ada_engine_args"),
        ({"--ada_engine_args": '{"enable_chunked_prefill": true}'}, "--ada_engine_args"),
        ({"--ada_engine_args": '{"max_num_seqs": 8}'}, None),
        ({}, None),
    ],
)
def test_gpu_only_features_are_refused_on_cpu(
    argv_with: Callable[[Flags], list[str]], changes: Flags, flag: str | None
) -> None:
    args = parse(argv_with({"--ds.attn_implementation": "sdpa", "--vllm.sync_backend": "gloo"} | changes))
    if flag is None:
        check_cpu_limits(args)
        return
    with pytest.raises(ConfigError, match=f"(?m)^{re.escape(flag)} is .* no GPU"):
        check_cpu_limits(args)


def test_one_message_names_all_that_a_cpu_cannot_do(argv_with: Callable[[Flags], list[str]]) -> None:
    args = parse(
        argv_with({"--ds.packing_samples": "", "--ds.attn_implementation": None, "--vllm.sync_backend": None})
    )
    with pytest.raises(ConfigError) as error:
        check_cpu_limits(args)
    flags = [line.split(" is ")[0] for line in str(error.value).splitlines()]
    assert flags == ["--ds.attn_implementation", "--vllm.sync_backend", "--ds.packing_samples"]
    assert "--ada_device cpu" in error.value.remedy


def test_one_flag_sets_what_a_cpu_needs_and_given_ones_win(argv_with: Callable[[Flags], list[str]]) -> None:
    cpu: Flags = {"--ada_device": "cpu", "--vllm.num_engines": None, "--actor.num_gpus_per_node": None}
    args = parse(argv_with(cpu))
    check_cpu_limits(args)
    assert (args.vllm.num_engines, args.actor.num_gpus_per_node, args.ref.num_gpus_per_node) == (1, 1, 1)
    assert parse(argv_with(cpu | {"--vllm.num_engines": "2"})).vllm.num_engines == 2
    with pytest.raises(ConfigError, match=r"^--ada_device is 'cpu'.* GPU"):
        check_gpu_limits(args)


def test_one_message_names_all_that_is_missing() -> None:
    with pytest.raises(ConfigError) as error:
        parse([])
    names = [line.split(" is ")[0] for line in str(error.value).splitlines()]
    assert len(names) == 4 and names[0] == "--actor.model_name_or_path" and names[-1] == "--reward.remote_url"


@pytest.mark.parametrize(
    ("changes", "absent", "told"),
    [
        (
            {},
            "flash_attn",
            "--ds.attn_implementation is 'flash_attention_2': on GPUs OpenRLHF needs the package flash_attn",
        ),
        (
            {"--ds.load_in_4bit": ""},
            "bitsandbytes",
            "--ds.load_in_4bit is True: on GPUs it needs the package bitsandbytes",
        ),
        (
            {"--ds.ring_attn_size": "2", "--actor.num_gpus_per_node": "2", "--rollout.micro_batch_size": "4"},
            "ring_flash_attn",
            "--ds.ring_attn_size is 2: on GPUs it needs the package ring_flash_attn",
        ),
        ({}, "ring_flash_attn", ""),
    ],
)
def test_gpu_run_needs_its_packages(
    argv_with: Callable[[Flags], list[str]], monkeypatch: pytest.MonkeyPatch, changes: Flags, absent: str, told: str
) -> None:
    args = parse(argv_with(changes))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == absent else object())
    if not told:
        check_gpu_limits(args)
        return
    with pytest.raises(ConfigError, match=f"^{re.escape(told)}"):
        check_gpu_limits(args)


def test_reward_neither_file_nor_url_is_refused(refusal: Refusal) -> None:
    assert REWARD in str(refusal({REWARD: "rewards/arithmetic"}))


def test_data_that_cannot_fill_one_batch_is_refused(refusal: Refusal) -> None:
    assert DATA in str(refusal({"--rollout.batch_size": "8", TRAIN: "32"}))


def test_probabilities_must_match_the_data_sets(refusal: Refusal) -> None:
    assert "--data.prompt_probs" in str(refusal({"--data.prompt_probs": "0.5,0.5"}))


def test_model_scope_that_is_not_installed_is_refused(refusal: Refusal) -> None:
    assert "modelscope" in str(refusal({"--use_ms": ""}))


SHARED: Flags = {"--train.colocate_all": "", "--vllm.sync_backend": None, "--ds.attn_implementation": None}


@pytest.mark.parametrize(
    "config",
    [
        '{"num_local_experts": 8}',
        '{"text_config": {"num_experts": 128}}',
        '{"n_routed_experts": 256}',
        '{"moe_num_experts": [64, 64]}',
        '{"block_configs": [{"block_type": "attention"}, {"block_type": "moe", "n_routed_experts": 4}]}',
    ],
)
def test_experts_are_refused_without_checks(refusal: Refusal, valid_flags: dict[str, str], config: str) -> None:
    (Path(valid_flags[MODEL]) / "config.json").write_text(config)
    error = refusal({"--ada_verify_sync": "off"})
    check_refusal(error, "--ada_verify_sync is 'off'", "")


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        ('{"num_experts": 0}', {"--ada_verify_sync": "off"}),
        ('{"num_experts": 8}', {}),
        ('{"num_experts": 8}', SHARED),
        ('{"num_experts": 8}', SHARED | {"--train.async_enable": ""}),
    ],
)
def test_dense_models_and_experts_that_are_checked_are_not_refused(
    argv_with: Callable[[Flags], list[str]], valid_flags: dict[str, str], config: str, changes: Flags
) -> None:
    (Path(valid_flags[MODEL]) / "config.json").write_text(config)
    parse(argv_with(changes))


def test_engine_options_are_recorded_by_what_their_file_says(
    argv_with: Callable[[Flags], list[str]], tmp_path: Path
) -> None:
    """A resumed run is told of others, as of all flags of engines."""
    file = tmp_path / "engine.yaml"
    origins: list[Origin] = []
    for seqs in (64, 32):
        file.write_text(f"kv-cache-dtype: fp8\nmax_num_seqs: {seqs}\n")
        args = parse(argv_with({"--ada_engine_args": str(file)}))
        origins.append(Origin(dict(flat(plain(args))), ""))
        assert args.ada.engine_args == f'{{"kv_cache_dtype": "fp8", "max_num_seqs": {seqs}}}'
        assert any("kv_cache_dtype" in note and "ada/logprob_gap_mean" in note for note in notes(args))
    assert [name for name, _, _ in differences(*origins)] == ["ada.engine_args"]
