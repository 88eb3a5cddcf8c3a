"""--ada_zeros skip and --ada_baseline_rounding are refused where they would change what is optimised.

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
    ],
)
def test_accepted(argv_with: Callable[[Flags], list[str]], flags: Flags) -> None:
    assert parse(argv_with(flags)).ada.zeros == "skip"


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
