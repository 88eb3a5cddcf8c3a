"""--ada_zeros skip, --ada_baseline_rounding and --ada_baseline_factor are refused where they would change what is
optimised, or cannot be measured.

Every case runs the real parser. That skipping changes no gradient: tests/contract/test_dynamic_batches.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from refusals import check_refusal

from openrlhf_ada.cli.train_ppo_ray import parse

Flags = dict[str, str | None]

SKIP: Flags = {"--ada_zeros": "skip"}

DR_GRPO: Flags = {"--algo.advantage.estimator": "dr_grpo"}

ROUNDED: Flags = DR_GRPO | {"--ada_baseline": "estimator", "--ada_baseline_rounding": "0.3"}

WRONG: Flags = {"--ada_wrong_epochs": "1", "--train.max_epochs": "2"}

FACTOR: Flags = DR_GRPO | {
    "--ada_exit": "fixed",
    "--ada_max_samples": "4",
    "--ada_baseline": "estimator",
    "--ada_baseline_factor": "least_noise",
}

REFUSED: list[tuple[str, Flags, str, str]] = [
    # id, flags, flag in front of the message with its value, flag of the remedy
    ("PPO", SKIP | {"--algo.advantage.estimator": "gae"}, "--algo.advantage.estimator is 'gae'", ""),
    (
        "KL",
        SKIP | {"--algo.kl.init_coef": "0.1", "--ref.num_gpus_per_node": "1"},
        "--algo.kl.init_coef is 0.1",
        "--ada_zeros compute",
    ),
    (
        "entropy",
        SKIP | {"--actor.entropy_coef": "0.1"},
        "--actor.entropy_coef is 0.1",
        "",
    ),
    ("routers", SKIP | {"--actor.aux_loss_coef": "0.1"}, "--actor.aux_loss_coef is 0.1", ""),
    ("unknown factor", FACTOR | {"--ada_baseline_factor": "2"}, "--ada_baseline_factor is '2'", "least_noise"),
    (
        "factor and selection",
        FACTOR | {"--ada_exit": "pos", "--ada_max_samples": "8", "--ada_wave": "4"},
        "--ada_baseline_factor is 'least_noise'",
        "--ada_correction stratum",
    ),
    (
        "factor of others that end sampling",
        FACTOR
        | {
            "--ada_exit": "pos",
            "--ada_max_samples": "8",
            "--ada_wave": "4",
            "--ada_baseline": "blend",
            "--ada_correction": "stratum",
        },
        "--ada_baseline_factor is 'least_noise'",
        "--ada_baseline estimator",
    ),
    (
        "factor and raw scores",
        FACTOR | {"--ada_scores": "raw", "--ada_positive_threshold": "0"},
        "--ada_baseline_factor is 'least_noise'",
        "--ada_scores unit",
    ),
    (
        "factor and a bonus",
        FACTOR | {"--ada_format": "boxed", "--ada_format_bonus": "0.1", "--reward.remote_url": "math"},
        "--ada_baseline_factor is 'least_noise'",
        "--ada_baseline_factor one",
    ),
    (
        "factor and penalties",
        FACTOR | {"--reward.stop_properly_penalty_coef": "0.5"},
        "--reward.stop_properly_penalty_coef is 0.5",
        "",
    ),
    (
        "factor and lengths",
        FACTOR | {"--actor.loss_agg_mode": "seq-mean-token-mean"},
        "--actor.loss_agg_mode is 'seq-mean-token-mean'",
        "--ada_loss sequence-constant",
    ),
    (
        "factor and agents",
        FACTOR | {"--train.agent_func_path": "agent.py", "--reward.remote_url": None},
        "--train.agent_func_path is 'agent.py'",
        "Leave one of the two out",
    ),
    ("wrong epochs in PPO", WRONG | {"--algo.advantage.estimator": "gae"}, "--algo.advantage.estimator is 'gae'", ""),
    (
        "wrong epochs and KL",
        WRONG | {"--algo.kl.init_coef": "0.1", "--ref.num_gpus_per_node": "1"},
        "--algo.kl.init_coef is 0.1",
        "--algo.kl.use_loss",
    ),
    ("wrong epochs below 0", WRONG | {"--ada_wrong_epochs": "-1"}, "--ada_wrong_epochs is -1", ""),
    ("beyond half", ROUNDED | {"--ada_baseline_rounding": "0.6"}, "--ada_baseline_rounding is 0.6", ""),
]


@pytest.mark.parametrize(("flags", "head", "remedy"), [pytest.param(*case, id=name) for name, *case in REFUSED])
def test_refused(refusal: Callable[[Flags], Exception], flags: Flags, head: str, remedy: str) -> None:
    check_refusal(refusal(flags), head, remedy)


@pytest.mark.parametrize(
    "flags",
    [
        SKIP,
        SKIP | ROUNDED,
        SKIP | DR_GRPO | {"--ada_baseline": "blend", "--ada_baseline_rounding": "0.5"},
        SKIP | DR_GRPO | {"--ada_mode": "est", "--ada_baseline_rounding": "0.2"},
        SKIP | {"--train.async_enable": ""},
        SKIP | {"--ada_loss": "sequence-constant"},
        SKIP | WRONG,
        SKIP | FACTOR,
        SKIP | FACTOR | {"--ada_baseline": "blend", "--train.async_enable": ""},
        SKIP | FACTOR | {"--ada_exit": "pos", "--ada_max_samples": "8", "--ada_correction": "stratum"},
        SKIP | DR_GRPO | {"--ada_mode": "est", "--ada_baseline_factor": "least_noise"},
    ],
)
def test_accepted(argv_with: Callable[[Flags], list[str]], flags: Flags) -> None:
    assert parse(argv_with(flags)).ada.zeros == "skip"


def test_a_kl_loss_goes_with_wrong_epochs(argv_with: Callable[[Flags], list[str]]) -> None:
    """It is no part of an advantage. Nor is anything of mode off changed."""
    kl: Flags = {"--algo.kl.init_coef": "0.1", "--ref.num_gpus_per_node": "1"}
    assert parse(argv_with(WRONG | kl | {"--algo.kl.use_loss": ""})).ada.wrong_epochs == 1
    off = parse(argv_with(WRONG | kl | {"--ada_mode": "off"})).ada
    assert off.trains_wrong(0) and off.trains_wrong(1)


def test_a_method_that_skips_can_be_told_to_compute(argv_with: Callable[[Flags], list[str]]) -> None:
    """Its flags are defaults."""
    kl: Flags = {"--algo.kl.init_coef": "0.1", "--ref.num_gpus_per_node": "1", "--ada_zeros": "compute"}
    sizes: Flags = DR_GRPO | {
        "--rollout.n_samples_per_prompt": "2",
        "--rollout.batch_size": "2",
        "--rollout.micro_batch_size": "1",
        "--train.batch_size": "4",
        "--train.micro_batch_size": "1",
    }
    assert parse(argv_with({"--ada_method": "spo-n2"} | sizes | kl)).ada.zeros == "compute"
