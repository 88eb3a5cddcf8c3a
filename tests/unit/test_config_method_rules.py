"""Settings of the method that have no meaning together: refused with the reason, and the nearest right ones are not.

Every case runs the real parser, OpenRLHF's flags and validation included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.flags import ConfigError

Flags = dict[str, str | None]
ArgvWith = Callable[[Flags], list[str]]

N, ESTIMATOR, TRAIN = "--rollout.n_samples_per_prompt", "--algo.advantage.estimator", "--train.batch_size"
EST = {"--ada_mode": "est", ESTIMATOR: "dr_grpo"}
SEQ = {"--ada_mode": "seq", ESTIMATOR: "dr_grpo"}
PPO = {"--ada_mode": "seq", ESTIMATOR: "gae"}
ONE_PROMPT = {"--rollout.batch_size": "1", TRAIN: "4"}
"""The data has three prompts, so two or three candidates are as many as there can be."""
REFILL = SEQ | {"--ada_unresolved": "refill"}
VARYING: Flags = {"--ada_select": "all", "--ada_wave": "4", "--actor.lr_scheduler": "constant_with_warmup"}


class Case(NamedTuple):
    """A refusal: `wrong` flags, the flag and value that are named, and the flags that `mend` it."""

    name: str
    wrong: Flags
    head: str
    mend: Flags


CASES = [
    Case(
        "group of one",
        PPO | {N: "1", TRAIN: "8"},
        f"{N} is 1",
        {N: "4", TRAIN: "8"},
    ),
    Case(
        "cap below n",
        {"--ada_max_samples": "3"},
        "--ada_max_samples is 3",
        {"--ada_max_samples": "16"},
    ),
    Case(
        "cap of one",
        {"--ada_max_samples": "1"},
        "--ada_max_samples is 1",
        {"--ada_max_samples": "4"},
    ),
    Case(
        "more evidence wanted than the cap allows",
        {"--ada_k_pos": "5", "--ada_k_neg": "4", "--ada_max_samples": "8"},
        "--ada_max_samples is 8",
        {"--ada_k_neg": "3"},
    ),
    Case(
        "budget below the bounds",
        EST | {"--ada_budget": "3", "--ada_select": "all", "--ada_min_samples": "4"},
        "--ada_budget is 3.0",
        {"--ada_budget": "4"},
    ),
    Case(
        "budget above the bounds",
        EST | {"--ada_budget": "9", "--ada_max_samples": "8"},
        "--ada_budget is 9.0",
        {"--ada_max_samples": "9"},
    ),
    Case(
        "fewer drawn than a down-sampled group has",
        EST | {"--ada_budget": "8", "--ada_min_samples": "2"},
        "--ada_min_samples is 2",
        {"--ada_budget": "4", "--ada_select": "all"},
    ),
    Case(
        "weights on advantages that are divided by the group's std",
        {"--ada_correction": "stratum"},
        "--ada_correction is 'stratum'",
        {ESTIMATOR: "dr_grpo"},
    ),
    Case(
        "mean of the positives for another objective than log",
        SEQ | {"--ada_correction": "positives", "--ada_objective": "sqrt"},
        "--ada_correction is 'positives'",
        {"--ada_correction": "stratum"},
    ),
    Case(
        "mean of the positives in PPO",
        PPO | {"--ada_correction": "positives"},
        "--ada_correction is 'positives'",
        {ESTIMATOR: "dr_grpo"},
    ),
    Case(
        "another baseline than PPO's own",
        PPO | {"--ada_baseline": "pool"},
        "--ada_baseline is 'pool'",
        {"--ada_baseline": None},
    ),
    Case(
        "baseline of the mean of the positives",
        SEQ | {"--ada_correction": "positives", "--ada_baseline": "pool"},
        "--ada_baseline is 'pool'",
        {"--ada_baseline": None},
    ),
    Case(
        "critic's baseline from counts",
        SEQ | {"--ada_baseline": "critic", "--ada_estimator": "ema"},
        "--ada_baseline is 'critic'",
        {"--ada_estimator": None},
    ),
    Case(
        "critic's baseline by its other name",
        SEQ | {"--ada_baseline": "estimator", "--ada_estimator": "critic"},
        "--ada_baseline is 'estimator'",
        {"--ada_baseline": "critic"},
    ),
    Case(
        "everything trained where a gate ends most prompts",
        SEQ | {"--ada_select": "all", "--ada_exit": "gate"},
        "--ada_select is 'all'",
        {"--ada_exit": "fixed", "--ada_max_samples": "4"},
    ),
    Case(
        "everything trained, of fewer than n",
        SEQ | VARYING | {"--ada_wave": "2"},
        "--ada_wave is 2",
        {"--ada_wave": "4"},
    ),
    Case(
        "everything trained, but less than a batch",
        SEQ | VARYING | {TRAIN: "16"},
        f"{TRAIN} is 16",
        {TRAIN: "8"},
    ),
    Case(
        "everything trained until nobody knows when",
        SEQ | VARYING | {"--actor.lr_scheduler": "cosine_with_min_lr"},
        "--actor.lr_scheduler is 'cosine_with_min_lr'",
        {"--actor.lr_scheduler": "constant_with_warmup"},
    ),
    Case(
        "everything trained in batches by tokens",
        SEQ | VARYING | {"--train.dynamic_batch_enable": ""},
        "--train.dynamic_batch_enable is True",
        {"--train.dynamic_batch_enable": None},
    ),
    Case(
        "everything trained of a larger budget",
        EST | {"--ada_select": "all", "--ada_budget": "8"},
        "--ada_select is 'all'",
        {"--ada_budget": "4"},
    ),
    Case(
        "strata of a group that may miss one",
        SEQ | {"--ada_select": "random", "--ada_correction": "stratum"},
        "--ada_correction is 'stratum'",
        {"--ada_select": "balanced"},
    ),
    Case(
        "extremes of a pool for PPO's critic",
        PPO | {"--ada_select": "max_variance"},
        f"{ESTIMATOR} is 'gae'",
        {"--ada_select": "balanced"},
    ),
    Case(
        "strata of the extremes of a pool",
        SEQ | {"--ada_select": "max_variance", "--ada_correction": "stratum"},
        "--ada_correction is 'stratum'",
        {"--ada_select": "balanced"},
    ),
    Case(
        "mean of the positives with a bonus for the format",
        SEQ | {"--ada_correction": "positives", "--ada_format": "boxed", "--ada_format_bonus": "0.1"},
        "--ada_correction is 'positives'",
        {"--ada_format": None, "--ada_format_bonus": None},
    ),
    Case(
        "paper's weight where rollouts are spent against variance",
        EST | {"--ada_correction": "paper", "--ada_allocation": "odds"},
        "--ada_correction is 'paper'",
        {"--ada_allocation": "inverse_sqrt"},
    ),
    Case(
        "a baseline that trains constant pools, divided by their spread",
        {"--ada_baseline": "none"},
        f"{ESTIMATOR} is 'group_norm'",
        {ESTIMATOR: "dr_grpo"},
    ),
    Case(
        "candidates of raw scores",
        EST | {"--ada_candidates": "2", "--ada_scores": "raw", "--ada_positive_threshold": "1.5"},
        "--ada_candidates is 2",
        {"--ada_candidates": None},
    ),
    Case(
        "candidates for a policy that may not remember",
        SEQ | {"--ada_candidates": "2", "--ada_policy": "examples/policies/give_up.py"},
        "--ada_candidates is 2",
        {"--ada_policy": None} | ONE_PROMPT,
    ),
    Case(
        "more candidates than prompts",
        SEQ | ONE_PROMPT | {"--ada_candidates": "4"},
        "--ada_candidates is 4",
        {"--ada_candidates": "3"},
    ),
    Case(
        "candidates where every batch has most of the data",
        SEQ | {"--ada_candidates": "2"},
        "--ada_candidates is 2",
        {"--ada_candidates": None},
    ),
    Case(
        "no candidates",
        SEQ | {"--ada_candidates": "0"},
        "--ada_candidates is 0",
        {"--ada_candidates": "1"},
    ),
    Case(
        "right answers alone by raw scores",
        SEQ | {"--ada_baseline": "none", "--ada_scores": "raw", "--ada_positive_threshold": "1.5"},
        "--ada_baseline is 'none'",
        {"--ada_baseline": "pool"},
    ),
    Case(
        "replacing where everything drawn is trained",
        EST | {"--ada_unresolved": "refill"},
        "--ada_unresolved is 'refill'",
        {"--ada_budget": "6", "--ada_baseline": "pool"},
    ),
    Case(
        "statistics of the kept rollouts with weights of the whole pool",
        SEQ | {ESTIMATOR: "dr_grpo", "--ada_baseline": "kept", "--ada_correction": "stratum"},
        "--ada_correction is 'stratum'",
        {"--ada_correction": "none"},
    ),
    *[
        Case(
            f"replacing prompts with a gradient: {name}",
            REFILL | changes,
            "--ada_unresolved is 'refill'",
            {"--ada_unresolved": "keep"},
        )
        for name, changes, named in (
            ("PPO", PPO, "--algo.advantage.estimator gae"),
            ("baseline none", {"--ada_baseline": "none"}, "--ada_baseline none"),
            ("baseline estimator", {"--ada_baseline": "estimator"}, "--ada_baseline estimator"),
            ("mean of the positives", {"--ada_correction": "positives"}, "--ada_correction positives"),
        )
    ],
]

cases = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


@cases
def test_meaningless_combination_is_refused(refusal: Callable[[Flags], Exception], case: Case) -> None:
    error = refusal(case.wrong)
    assert isinstance(error, ConfigError)
    assert str(error).startswith(case.head + ":")
    assert str(error).startswith(error.flag + " ")


@cases
def test_nearest_right_command_passes(argv_with: ArgvWith, case: Case) -> None:
    parse(argv_with(case.wrong | case.mend))
