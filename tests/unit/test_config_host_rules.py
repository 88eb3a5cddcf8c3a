"""Our flags with OpenRLHF's: what has no meaning together, or would lose rollouts, is refused in one line.

Every case runs the real parser: OpenRLHF's flags and validation, and ours.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from refusals import check_refusal

from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.presets import METHODS

Flags = dict[str, str | None]
Refusal = Callable[[Flags], Exception]

N, ESTIMATOR, TRAIN = "--rollout.n_samples_per_prompt", "--algo.advantage.estimator", "--train.batch_size"
REWARD = "--reward.remote_url"
ASYNC: Flags = {"--train.async_enable": ""}

COMBINATIONS: list[tuple[str, Flags, str, str]] = [
    # id, changes, flag in front of the message with its value, flag of the remedy
    *[
        (f"n=1 with {estimator}", {N: "1", TRAIN: "2", ESTIMATOR: estimator}, f"{N} is 1", f"{N} 4")
        for estimator in ("group_norm", "dr_grpo", "rloo", "reinforce_baseline")
    ],
    ("estimator reinforce", {ESTIMATOR: "reinforce"}, f"{ESTIMATOR} is 'reinforce'", ""),
    ("estimator flash", {ESTIMATOR: "flash_reinforce"}, f"{ESTIMATOR} is 'flash_reinforce'", ""),
    (
        "dynamic filtering",
        {"--algo.dynamic_filtering_enable": ""},
        "--algo.dynamic_filtering_enable is True",
        "--ada_unresolved refill",
    ),
    (
        "cut-off tokens",
        {"--rollout.top_p": "0.9"},
        "--rollout.top_p is 0.9",
        "",
    ),
    (
        "weights change while prompts are sampled",
        ASYNC | {"--train.partial_rollout_enable": ""},
        "--train.partial_rollout_enable is True",
        "--algo.advantage.is_correction_level token",
    ),
    (
        "weights travel without Ray",
        {"--vllm.sync_with_ray": ""},
        "--vllm.sync_with_ray is True",
        "",
    ),
    (
        "weights travel by what is there",
        {"--vllm.sync_backend": "mpi"},
        "--vllm.sync_backend is 'mpi'",
        "",
    ),
    (
        "adapters cannot be merged into 4 bits",
        {"--ds.lora.rank": "8", "--ds.load_in_4bit": ""},
        "--ds.load_in_4bit is True",
        "",
    ),
    ("half precision of another kind", {"--ds.param_dtype": "fp16"}, "--ds.param_dtype is 'fp16'", ""),
    (
        "engines cannot return beside training in parts",
        ASYNC | {"--ds.zero_stage": "3", "--actor.num_gpus_per_node": "2"},
        "--ds.zero_stage is 3",
        "--ada_engine_restarts 0",
    ),
    (
        "sampling ahead by OpenRLHF",
        {"--rollout.vllm_generate_batch_size": "4"},
        "--rollout.vllm_generate_batch_size is 4",
        "",
    ),
    ("no reward in mode seq", {REWARD: None}, f"{REWARD} is None", "--train.agent_func_path"),
    ("rollouts do not fill", {TRAIN: "3"}, f"{TRAIN} is 3", ""),
    ("batch larger than rollouts", {TRAIN: "16"}, f"{TRAIN} is 16", ""),
    ("micro-batch", {"--train.micro_batch_size": "3"}, "--train.micro_batch_size is 3", ""),
]


@pytest.mark.parametrize(
    ("changes", "head", "remedy"), [c[1:] for c in COMBINATIONS], ids=[c[0] for c in COMBINATIONS]
)
def test_combination_is_refused(refusal: Refusal, changes: Flags, head: str, remedy: str) -> None:
    check_refusal(refusal(changes), head, remedy)


# -- sampling and training at the same time -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        ASYNC,
        ASYNC | {"--train.partial_rollout_enable": "", "--algo.advantage.is_correction_level": "token"},
        {"--ds.zero_stage": "3", "--actor.num_gpus_per_node": "2"},
        ASYNC | {"--ds.zero_stage": "3", "--actor.num_gpus_per_node": "1"},
        {"--rollout.vllm_generate_batch_size": "2"},
        {"--ada_mode": "off"} | ASYNC | {"--train.partial_rollout_enable": ""},
        {"--ada_mode": "off"} | ASYNC | {"--rollout.vllm_generate_batch_size": "4"},
    ],
    ids=" ".join,
)
def test_asynchronous_command_that_is_right(argv_with: Callable[[Flags], list[str]], changes: Flags) -> None:
    parse(argv_with(changes))


# -- PPO's critic as the predictor of pass rates ------------------------------------------------------------------

PPO_PREDICTS = {"--ada_mode": "est", ESTIMATOR: "gae", "--ada_estimator": "critic", "--critic.num_gpus_per_node": "1"}
KL, OVERLONG, STOP = "--algo.kl.init_coef", "--reward.overlong_buffer_len", "--reward.stop_properly_penalty_coef"


@pytest.mark.parametrize(
    ("changes", "head"),
    [
        ({KL: "0.1", "--ref.num_gpus_per_node": "1"}, f"{KL} is 0.1"),
        ({OVERLONG: "8"}, f"{OVERLONG} is 8.0"),
        ({STOP: "0.5"}, f"{STOP} is 0.5"),
        ({STOP: "0"}, f"{STOP} is 0.0"),  # truncated answers are worth nothing: the most that it can shape
        ({STOP: "-1"}, f"{STOP} is -1.0"),
        ({"--algo.advantage.gamma": "0.9"}, "--algo.advantage.gamma is 0.9"),
    ],
)
def test_shaped_rewards_give_no_pass_rate(refusal: Refusal, changes: Flags, head: str) -> None:
    check_refusal(refusal(PPO_PREDICTS | changes), head, "--ada_estimator critic")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {KL: "0.1", "--algo.kl.use_loss": "", "--ref.num_gpus_per_node": "1"},
        {"--ada_estimator": "ema", OVERLONG: "8", STOP: "0.5"},
        {ESTIMATOR: "dr_grpo", OVERLONG: "8", KL: "0.1", "--ref.num_gpus_per_node": "1"},
    ],
    ids=["nothing else in the reward", "KL in the loss", "counts predict", "a critic of its own predicts"],
)
def test_shaping_needs_mode_without_pass_rates(argv_with: Callable[[Flags], list[str]], changes: Flags) -> None:
    parse(argv_with(PPO_PREDICTS | changes))


@pytest.mark.parametrize("name", ["raft-n1-e2", "first-success-8", "aero"])
@pytest.mark.parametrize("changes", [{OVERLONG: "8"}, {STOP: "0.5"}], ids=str)
def test_methods_for_rewards_of_0_and_1_take_no_length_penalty(
    argv_with: Callable[[Flags], list[str]], name: str, changes: Flags
) -> None:
    baseline = METHODS[name].flags["ada.baseline"]
    of_another: Flags = {N: None, ESTIMATOR: None, TRAIN: None}
    with pytest.raises(ConfigError, match=f"shapes the reward, but --ada_baseline {baseline} needs rewards that"):
        parse([*argv_with(of_another | changes), "--ada_method", name])


def test_prompts_with_images_have_no_critic(refusal: Refusal) -> None:
    """OpenRLHF refuses PPO's critic for them; a critic of our own reads text alone as well."""
    images = {"--data.max_images_per_prompt": "1", "--ada_mode": "est"}
    assert "critic" in str(refusal(images | {ESTIMATOR: "gae"}))
    own = {ESTIMATOR: "dr_grpo", "--ada_estimator": "critic", "--critic.num_gpus_per_node": "1"}
    check_refusal(refusal(images | own), "--data.max_images_per_prompt is 1", "--ada_estimator ema")


# -- what is switched on ---------------------------------------------------------------------------------------------

PARTIAL: Flags = {
    "--train.async_enable": "",
    "--train.partial_rollout_enable": "",
    "--algo.advantage.is_correction_level": "token",
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        (PARTIAL, True),
        ({"--ada_mode": "off"}, False),
        (PARTIAL | {"--ada_mode": "off", "--vllm.enable_prefix_caching": ""}, True),
    ],
    ids=["adaptive", "partial rollouts", "off", "off, and asked for"],
)
def test_prompts_rollouts_share_its_prefix(
    argv_with: Callable[[Flags], list[str]], changes: Flags, expected: bool
) -> None:
    args = parse(argv_with(changes))
    assert args.vllm.enable_prefix_caching is expected
