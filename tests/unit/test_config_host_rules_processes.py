"""Rollouts that a model's processes cannot share, and models that cannot share GPUs, are refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from refusals import check_refusal

from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.host_values import shares_gpus

Flags = dict[str, str | None]
Refusal = Callable[[Flags], Exception]

N, ESTIMATOR, TRAIN = "--rollout.n_samples_per_prompt", "--algo.advantage.estimator", "--train.batch_size"


def test_uneven_micro_batches_are_refused(refusal: Refusal) -> None:
    two = {"--actor.num_gpus_per_node": "2", TRAIN: "8", "--train.micro_batch_size": "4"}
    error = refusal(two | {"--rollout.micro_batch_size": "3"})
    assert str(error).startswith("--rollout.micro_batch_size is 3: ")
    assert "(actor 2)" in str(error)
    assert str(refusal(two | {"--train.micro_batch_size": "8"})).startswith("--train.micro_batch_size is 8: ")


@pytest.mark.parametrize("mode", ["off", "seq"])
@pytest.mark.parametrize(
    ("changes", "flag", "otherwise"),
    [
        ({"--algo.kl.init_coef": None}, "--ref.num_gpus_per_node", "--algo.kl.init_coef 0"),
        ({ESTIMATOR: None}, "--critic.num_gpus_per_node", ESTIMATOR),
    ],
)
def test_other_models_of_openrlhfs_default_size_are_told_with_what_to_do(
    refusal: Refusal, mode: str, changes: Flags, flag: str, otherwise: str
) -> None:
    """KL and PPO are OpenRLHF's defaults, each with 8 processes. DeepSpeed has no micro-batch of 2 for them."""
    error = refusal(changes | {"--ada_mode": mode, "--train.micro_batch_size": "2"})
    check_refusal(error, f"{flag} is 8", otherwise)


def test_every_model_can_share_its_samples(refusal: Refusal) -> None:
    """8 rollouts in micro-batches of 8: enough for the policy's one process, not for two of the reference."""
    changes = {"--rollout.micro_batch_size": "8", "--algo.kl.init_coef": "0.1", "--ref.num_gpus_per_node": "2"}
    check_refusal(refusal(changes), "--ref.num_gpus_per_node is 2", "--algo.kl.init_coef 0")
    gae = {"--rollout.micro_batch_size": "8", ESTIMATOR: "gae", "--critic.num_gpus_per_node": "2"}
    check_refusal(refusal(gae), "--critic.num_gpus_per_node is 2", "--critic.num_gpus_per_node 1")
    both = gae | {"--actor.num_gpus_per_node": "2", "--critic.num_gpus_per_node": "1"}
    check_refusal(refusal(both), "--rollout.micro_batch_size is 8", "")


DYNAMIC: Flags = {"--train.dynamic_batch_enable": "", "--actor.num_gpus_per_node": "2"}


def test_dynamic_batches_that_lose_samples_are_refused(refusal: Refusal) -> None:
    """Of 8 rollouts in one batch each of three processes would train two (tests/contract/test_dynamic_batches.py)."""
    error = refusal(DYNAMIC | {"--actor.num_gpus_per_node": "3", "--rollout.micro_batch_size": "2"})
    check_refusal(error, f"{TRAIN} is 8", "")


def test_models_that_share_dynamic_batches_get_equally_many(
    refusal: Refusal, argv_with: Callable[[Flags], list[str]]
) -> None:
    flags = DYNAMIC | {"--rollout.micro_batch_size": "4", ESTIMATOR: "gae"}
    error = refusal(flags | {"--critic.num_gpus_per_node": "4"})
    check_refusal(error, "--critic.num_gpus_per_node is 4", "")
    error = refusal(DYNAMIC | {"--rollout.micro_batch_size": "4", "--algo.kl.init_coef": "0.1"})
    check_refusal(error, "--ref.num_gpus_per_node is 8", "")
    args = parse(argv_with(flags | {"--critic.num_gpus_per_node": "1"}))
    assert args.train.dynamic_batch_enable


@pytest.mark.parametrize("mode", ["off", "seq"])
@pytest.mark.parametrize(
    ("changes", "head"),
    [
        ({"--ds.ring_attn_size": "2"}, "--actor.num_gpus_per_node is 1"),
        ({"--ds.tensor_parallel_size": "2", "--actor.num_gpus_per_node": "3"}, "--actor.num_gpus_per_node is 3"),
        ({"--ds.enable_sleep": "", "--ds.zero_stage": "0"}, "--ds.enable_sleep is True"),
    ],
)
def test_late_deepspeed_errors_are_refused_at_once(refusal: Refusal, mode: str, changes: Flags, head: str) -> None:
    check_refusal(refusal(changes | {"--ada_mode": mode}), head, "")


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
        (
            # A critic of our own, in critic-free training, is placed like PPO's.
            {
                "--train.colocate_critic_reward": "",
                "--ada_mode": "est",
                ESTIMATOR: "dr_grpo",
                "--ada_estimator": "critic",
                "--critic.num_gpus_per_node": "1",
                "--reward.num_gpus_per_node": "2",
            },
            "--reward.num_gpus_per_node",
        ),
    ],
)
def test_models_that_share_gpus_have_equally_many(refusal: Refusal, changes: Flags, flag: str) -> None:
    assert str(refusal(changes)).startswith(f"{flag} is ")


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize(("colocates", "is_async", "shares"), [(1, 0, True), (1, 1, False), (0, 0, False)])
def test_policy_and_engines_share_gpus_whatever_way_weights_go(
    backend: str, colocates: int, is_async: int, shares: bool
) -> None:
    train = SimpleNamespace(colocate_all=bool(colocates), async_enable=bool(is_async))
    assert shares_gpus(SimpleNamespace(vllm=SimpleNamespace(sync_backend=backend), train=train)) is shares


@pytest.mark.parametrize(
    ("workers", "remedy"),
    [("2", "Use --vllm.num_engines 4,"), ("3", "--vllm.tensor_parallel_size")],
)
def test_the_remedy_for_shared_gpus_fits_them(refusal: Refusal, workers: str, remedy: str) -> None:
    shared = {"--train.colocate_all": "", "--actor.num_gpus_per_node": "8", "--vllm.num_engines": "1"}
    error = refusal(shared | {"--vllm.tensor_parallel_size": workers})
    check_refusal(error, "--train.colocate_all is True", remedy)
