"""docs/migrating.md: commands start, what is refused is, what older versions called a flag is found."""

from __future__ import annotations

import argparse
import json
from functools import cache
from pathlib import Path

import pytest
from documents import ROOT, blocks, command_lines, section, spans, tables

from openrlhf_ada.cli.train_ppo_ray import USER_ERRORS, parse
from openrlhf_ada.config.schema import add_flags
from openrlhf_ada.host.parser import training_parser
from openrlhf_ada.reward.worker import load_grader

TEXT = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
PLAIN, OLDER, VERL, TRL = (
    section(TEXT, title)
    for title in ("From OpenRLHF", "From older versions of OpenRLHF", "From verl's Reinforce-Ada", "From TRL")
)


REWARDS = """
def accuracy(prompts, completions, answer, **columns):
    return [float(text.strip() == right) for text, right in zip(completions, answer, strict=True)]


def reward_func(queries, prompts, labels):
    return [1.0]
"""


@cache
def training_flags() -> dict[str, argparse.Action]:
    return training_parser(add_flags, prog="", description="")._option_string_actions


@pytest.fixture(autouse=True)
def example_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the commands name: prompts, held-out prompts, and a reward file of each trainer."""
    rows = "".join(json.dumps({"input": f"{i}+1=", "label": f"{i + 1}"}) + "\n" for i in range(2048))
    for name in ("prompts.jsonl", "heldout.jsonl"):
        (tmp_path / name).write_text(rows, encoding="utf-8")
    (tmp_path / "reward.py").write_text(REWARDS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


def commands(text: str) -> list[list[str]]:
    """Arguments of the training commands."""
    lines = [words for block in blocks(text) if not block.language for words in command_lines(block.text)]
    starts = (["openrlhf-ada", "train"], ["python", "-m", "openrlhf_ada.cli.train_ppo_ray"])
    return [words[len(start) :] for words in lines for start in starts if words[: len(start)] == start]


# -- from OpenRLHF ----------------------------------------------------------------------------------------------------


def base() -> list[str]:
    """The command with a mode and sizes in place of the method, and without what shares GPUs."""
    shared = ("--train.colocate_all", "--vllm.enable_sleep", "--ds.enable_sleep")
    (command,) = commands(PLAIN)
    at = command.index("--ada_method")
    own = [
        word
        for span in spans(PLAIN)
        if span.startswith(("--ada_mode seq", "--rollout.batch_size 128"))
        for word in span.split()
    ]
    return [*(word for word in [*command[:at], *command[at + 2 :]] if word not in shared), *own]


REFUSED = next(tables(section(TEXT, "What is refused")))[1:]


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row[0])
def test_refused_commands_are_refused_neighbours_pass(row: list[str]) -> None:
    refused, _, instead = row
    for flags in map(str.split, spans(refused)):
        with pytest.raises(USER_ERRORS) as error:
            parse([*base(), *flags])
        assert any(flag in str(error.value) for flag in flags if flag.startswith("--"))
    parse([*base(), *(spans(instead)[0].split() if instead.startswith("`") else [])])


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row[0])
def test_the_first_three_are_refused_in_every_mode(row: list[str]) -> None:
    command = [*base(), *spans(row[0])[0].split(), "--ada_mode", "off"]
    if row in REFUSED[:3]:
        with pytest.raises(USER_ERRORS):
            parse(command)
    elif "n_samples_per_prompt" not in row[0] and "vllm_generate" not in row[0]:
        parse(command)  # these two OpenRLHF refuses with the flags beside them


def test_a_reward_model_alone_needs_a_threshold() -> None:
    words = base()
    at = words.index("--reward.remote_url")
    command = [*words[:at], *words[at + 2 :], "--reward.model_name_or_path", "owner/model"]
    with pytest.raises(USER_ERRORS, match="--ada_positive_threshold is None"):
        parse(command)
    parse([*command, "--ada_positive_threshold", "0"])


def test_dynamic_filtering_draws_n_and_refills() -> None:
    (flags,) = (span for span in spans(section(TEXT, "Dynamic filtering")) if span.startswith("--ada_exit fixed"))
    settings = parse([*base(), *flags.split()]).ada
    assert settings.refills
    assert settings.max_samples == settings.group_size == 4


# -- from older versions ----------------------------------------------------------------------------------------------


NAMED_BY_THE_ERROR = """
algo: advantage_estimator no_advantage_std_norm gamma lambd init_kl_coef kl_target kl_horizon
rollout: n_samples_per_prompt rollout_batch_size vllm_generate_batch_size temperature top_p rollout_max_tokens_per_gpu
train: agent_func_path train_batch_size num_episodes max_epochs seed full_determinism colocate_all_models
train: colocate_actor_ref colocate_critic_reward use_dynamic_batch train_max_tokens_per_gpu enable_ema ema_beta
actor: lr_scheduler lr_warmup_ratio max_norm eps_clip eps_clip_low_high dual_clip policy_loss_type entropy_loss_coef
actor: aux_loss_coef actor_num_nodes actor_num_gpus_per_node gradient_checkpointing
actor: gradient_checkpointing_use_reentrant
critic: value_clip freezing_actor_steps save_value_network critic_num_nodes critic_num_gpus_per_node
ref: ref_num_nodes ref_num_gpus_per_node
reward: remote_rm_url normalize_reward reward_clip_range overlong_buffer_len overlong_penalty_factor reward_num_nodes
reward: reward_num_gpus_per_node
data: prompt_data prompt_data_probs prompt_split input_key label_key input_template apply_chat_template max_samples
data: disable_fast_tokenizer
eval: eval_dataset eval_split eval_steps eval_temperature eval_n_samples_per_prompt
ckpt: ckpt_path save_steps save_hf_ckpt disable_ds_ckpt max_ckpt_num max_ckpt_mem
vllm: vllm_num_engines vllm_tensor_parallel_size vllm_gpu_memory_utilization vllm_sync_backend vllm_sync_with_ray
vllm: enable_prefix_caching enforce_eager vllm_enable_sleep
ds: zero_stage zpg adam_offload overlap_comm deepcompile grad_accum_dtype use_ds_universal_ckpt use_liger_kernel
ds: deepspeed_enable_sleep ds_tensor_parallel_size packing_samples ring_attn_size ring_head_stride value_head_prefix
ds: load_in_4bit lora_alpha lora_dropout target_modules
logger: logging_steps use_tensorboard wandb_org wandb_group wandb_project wandb_run_name
"""
"""Flat flags of OpenRLHF 0.8 by the section in which they are now, but for those in the page's table."""


@pytest.mark.slow
def test_the_error_names_the_section_of_a_flat_name(capsys: pytest.CaptureFixture[str]) -> None:
    for line in NAMED_BY_THE_ERROR.split("\n")[1:-1]:
        section_of, _, names = line.partition(": ")
        for name in names.split():
            with pytest.raises(SystemExit):
                parse([*base(), f"--{name}", "4"])
            _, _, near = capsys.readouterr().err.partition("Did you mean ")
            assert f"--{section_of}." in near, f"{name}: {near}"


def test_flat_names_of_the_table_are_gone_and_their_dotted_ones_exist() -> None:
    (table,) = tables(OLDER)
    for flat, dotted in table[1:]:
        assert not set(spans(flat)) & set(training_flags())
        new = [span.split()[0] for span in spans(dotted)]
        assert len(new) >= len(spans(flat)) or dotted == "gone"
        assert set(new) <= set(training_flags())


# -- from verl and TRL ------------------------------------------------------------------------------------------------


def test_the_command_from_verl_is_the_published_setting(caplog: pytest.LogCaptureFixture) -> None:
    (command,) = commands(VERL)
    args = parse(command)
    assert args.ada.method == "reinforce-ada-balance"
    deviating = [record.getMessage() for record in caplog.records if record.getMessage().startswith("deviation")]
    assert deviating == []
    assert args.train.num_episodes == round(400 * args.rollout.batch_size / 13_650)


def test_the_command_from_trl_has_its_defaults() -> None:
    """8 GPUs with 8 completions each are 64 completions of 8 prompts, trained in one step."""
    args = parse(commands(TRL)[0])
    assert args.rollout.batch_size * args.rollout.n_samples_per_prompt == 64
    assert args.train.batch_size == args.train.micro_batch_size * args.actor.num_gpus_per_node == 64
    assert (args.train.num_episodes, args.train.max_epochs, args.rollout.max_new_tokens) == (3, 1, 256)
    assert (args.rollout.temperature, args.rollout.top_p, args.actor.eps_clip) == (1, 1, 0.2)
    assert (args.algo.kl.init_coef, args.actor.max_norm, args.actor.adam.weight_decay) == (0, 1, 0)
    assert (args.actor.adam.lr, *args.actor.adam.betas) == (1e-6, 0.9, 0.999)
    assert (args.actor.lr_scheduler, args.actor.lr_warmup_ratio) == ("linear", 0)


def test_maxrl_is_paper_correction_on_uniform_groups() -> None:
    """(r - mean) / mean, as TRL's scale_rewards="mean"."""
    import numpy as np

    from openrlhf_ada.config.settings import make_policy
    from openrlhf_ada.core.types import PromptPool, Sample

    (table,) = tables(TRL)
    row = next(row for row in table if row[0] == '`scale_rewards="mean"`')
    flags = f"{spans(row[1])[0]} {spans(row[2])[0]} --ada_max_samples 4"
    args = parse([*base(), *flags.split()])
    pool = PromptPool(0, [Sample(0, i, score, score, 1) for i, score in enumerate([1.0, 0.0, 0.0, 0.0])])
    group = make_policy(args.ada).build(pool, np.random.default_rng(0))
    assert group.coefficients == pytest.approx([(1 - 0.25) / 0.25, -1, -1, -1])


def test_the_reward_of_the_command_from_trl_is_called_as_trl_would() -> None:
    (command,) = commands(TRL)
    grade = load_grader(command[command.index("--reward.remote_url") + 1])
    assert [grade(response, "2", "1+1=").score for response in (" 2", "3")] == [1.0, 0.0]
