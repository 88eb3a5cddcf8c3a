"""--ada_overlap: every combination whose early gradients would not be those of the whole step is refused.

Every case runs the real parser. That the accepted ones are exact: tests/contract/test_dynamic_batches.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from refusals import check_refusal

from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.host_rules import batch_plan
from openrlhf_ada.config.overlap_rules import groups_of_a_part
from openrlhf_ada.config.settings import settings_of

Flags = dict[str, str | None]

OVERLAP: Flags = {
    # Of three prompts.
    "--train.num_episodes": "16",
    "--ada_overlap": "",
    "--train.batch_size": "64",
    "--rollout.batch_size": "16",
    "--rollout.n_samples_per_prompt": "4",
    "--rollout.micro_batch_size": "8",
    "--train.micro_batch_size": "4",
}

TWO_TOKENS_KINDS: Flags = {"--algo.kl.use_loss": "", "--algo.kl.init_coef": "0.1", "--ref.num_gpus_per_node": "1"}

REFUSED: list[tuple[str, Flags, str, str, str]] = [
    # id, changes, flag in front of the message with its value, part of the rule, part of the remedy
    ("asynchronous", {"--train.async_enable": ""}, "--train.async_enable is True", "overlap there", "one of the two"),
    ("shared GPUs", {"--train.colocate_all": ""}, "--train.colocate_all is True", "take turns on a GPU", "one of"),
    ("engines sleep", {"--vllm.enable_sleep": ""}, "--vllm.enable_sleep is True", "at the same time", "one of"),
    ("policy sleeps", {"--ds.enable_sleep": ""}, "--ds.enable_sleep is True", "at the same time", "one of"),
    ("ZeRO 1", {"--ds.zero_stage": "1"}, "--ds.zero_stage is 1", "stages 2 and 3", "--ds.zero_stage 2"),
    ("two updates", {"--train.batch_size": "32"}, "--train.batch_size is 32", "one step", "--train.batch_size 64"),
    ("two passes", {"--train.max_epochs": "2"}, "--train.max_epochs is 2", "trains a group once", "Use 1"),
    ("by tokens", {"--train.dynamic_batch_enable": ""}, "--train.dynamic_batch_enable is True", "deals all", "one of"),
    (
        "all are trained",
        {"--ada_select": "all", "--actor.lr_scheduler": "constant"},
        "--ada_select is 'all'",
        "different numbers of rollouts",
        "--ada_select balanced",
    ),
    (
        "refilled",
        {"--ada_unresolved": "refill"},
        "--ada_unresolved is 'refill'",
        "replaced at the end",
        "--ada_unresolved keep",
    ),
    (
        "PPO",
        {"--algo.advantage.estimator": "gae"},
        "--algo.advantage.estimator is 'gae'",
        "without a critic",
        "dr_grpo",
    ),
    (
        "whitened",
        {"--algo.advantage.estimator": "reinforce_baseline"},
        "--algo.advantage.estimator is 'reinforce_baseline'",
        "over the whole step",
        "Add --algo.advantage.no_std_norm",
    ),
    (
        "est trains all",
        {"--ada_mode": "est"},
        "--ada_select is 'all'",
        "different numbers of rollouts",
        "--ada_select balanced",
    ),
    ("muon", {"--actor.optim": "muon"}, "--actor.optim is 'muon'", "before DeepSpeed scales", "Use adam"),
    ("frozen", {"--critic.freezing_steps": "0"}, "--critic.freezing_steps is 0", "does not train", "one of the two"),
    ("routers", {"--actor.aux_loss_coef": "0.1"}, "--actor.aux_loss_coef is 0.1", "total of the step", "Use 0"),
    *[
        (f"{loss}, {name}", {"--ada_loss": loss} | extra, f"--{name} is {value}", "a mean over tokens", "token-mean")
        for loss in ("sequence-constant", "prompt-mean")
        for name, value, extra in (
            ("algo.kl.use_loss", True, TWO_TOKENS_KINDS),
            ("actor.entropy_coef", 0.0, {"--actor.entropy_coef": "0"}),
        )
    ],
    (
        "too few prompts",
        {"--rollout.micro_batch_size": "64", "--train.micro_batch_size": "64"},
        "--ada_overlap is True",
        "need the groups of 16 prompts",
        "--rollout.batch_size 32",
    ),
]


@pytest.mark.parametrize(
    ("changes", "head", "rule", "remedy"), [pytest.param(*case, id=name) for name, *case in REFUSED]
)
def test_refused(refusal: Callable[[Flags], Exception], changes: Flags, head: str, rule: str, remedy: str) -> None:
    check_refusal(refusal(OVERLAP | changes), head, rule, remedy)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"--ada_mode": "est", "--ada_budget": "8", "--ada_select": "balanced"},
        {"--ada_exit": "fixed", "--ada_max_samples": "4", "--ada_select": "all"},
        {"--ada_loss": "sequence-constant"},
        {"--actor.loss_agg_mode": "seq-mean-token-mean", "--ada_correction": "none"},
        TWO_TOKENS_KINDS,
        {"--actor.entropy_coef": "0.1"},
        {"--algo.advantage.estimator": "reinforce_baseline", "--algo.advantage.no_std_norm": ""},
        {"--ds.zero_stage": "3"},
    ],
)
def test_accepted(argv_with: Callable[[Flags], list[str]], changes: Flags) -> None:
    assert parse(argv_with(OVERLAP | changes))[0].ada.overlap


@pytest.mark.parametrize(
    ("changes", "processes", "groups"),
    [
        # Groups of 4 samples; micro-batches of 8 in the forward pass, of 4 in training.
        ({}, 1, 2),
        ({"--rollout.micro_batch_size": "2", "--train.micro_batch_size": "2"}, 1, 1),
        ({"--actor.num_gpus_per_node": "2"}, 2, 4),
        ({"--rollout.micro_batch_size": "6", "--rollout.batch_size": "24", "--train.batch_size": "96"}, 1, 3),
    ],
)
def test_groups_of_a_part(
    argv_with: Callable[[Flags], list[str]], changes: Flags, processes: int, groups: int
) -> None:
    """So many that every process gets equally many full micro-batches, in both passes."""
    args, _ = parse(argv_with(OVERLAP | changes))
    assert groups_of_a_part(args, batch_plan(args, settings_of(args)), processes) == groups
