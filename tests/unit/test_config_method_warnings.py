"""Flags of ours that were given and change nothing: every one is named, with the reason, and no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.method_rules import without_effect

Flags = dict[str, str | None]
ArgvWith = Callable[[Flags], list[str]]

OFF = {"--ada_mode": "off"}
SEQ = {"--ada_mode": "seq", "--algo.advantage.estimator": "dr_grpo"}
EST = {"--ada_mode": "est", "--algo.advantage.estimator": "dr_grpo"}

WITH_EFFECT: list[Flags] = [
    OFF,
    OFF | {"--ada_log_texts": "1", "--ada_eval_ends": "", "--eval.dataset": "org/heldout", "--verbose": ""},
    OFF | {"--trust_remote_code": "", "--ada_verify_sync": "always"},
    OFF | {"--ada_loss": "sequence-constant", "--ada_loss_length": "9"},
    SEQ,
    SEQ | {"--ada_wave": "4", "--ada_exit": "pos", "--ada_k_pos": "2", "--ada_max_samples": "12"},
    SEQ | {"--ada_exit": "fixed", "--ada_select": "max_variance", "--ada_positive_threshold": "0.25"},
    SEQ | {"--ada_correction": "stratum", "--ada_objective": "sqrt", "--ada_floor": "0.1"},
    SEQ | {"--ada_baseline": "estimator", "--ada_half_life": "9"},
    SEQ | {"--ada_baseline": "critic", "--ada_trust_steps": "9"},
    SEQ | {"--ada_baseline": "estimator", "--ada_correction": "stratum", "--ada_baseline_factor": "least_noise"},
    SEQ | {"--ada_unresolved": "refill", "--ada_refill_limit": "1"},
    EST,
    EST | {"--ada_allocation": "inverse", "--ada_floor": "0.1", "--ada_give_up": "9"},
    EST | {"--ada_budget": "6", "--ada_min_samples": "5", "--ada_max_samples": "7"},
    EST | {"--ada_estimator": "critic"},
]

WITHOUT_EFFECT: list[tuple[Flags, Flags, str]] = [
    # mode, what changes nothing in it (in the order of --help), the flag that makes it so
    (OFF, {"--ada_exit": "pos", "--ada_wave": "4"}, "--ada_mode"),
    (OFF, {"--ada_logprob_steps": "6"}, "--ada_mode"),
    (OFF, {"--ada_budget": "6"}, "--ada_mode"),
    (
        SEQ,
        {"--ada_budget": "6", "--ada_allocation": "odds", "--ada_give_up": "9", "--ada_min_samples": "3"},
        "--ada_mode",
    ),
    (EST, {"--ada_exit": "pos", "--ada_wave": "4", "--ada_k_pos": "2"}, "--ada_mode"),
    (
        SEQ,
        {"--ada_estimator": "critic", "--ada_half_life": "9"},
        "--ada_baseline estimator",
    ),
    (EST, {"--ada_trust_steps": "9"}, "--ada_estimator critic"),
    (SEQ, {"--ada_objective": "sqrt"}, "--ada_correction none"),
    (SEQ, {"--ada_floor": "0.1"}, "pass rate"),
    (SEQ | {"--ada_exit": "fixed"}, {"--ada_wave": "4"}, "exit fixed"),
    (SEQ | {"--ada_exit": "pos"}, {"--ada_k_neg": "2"}, "--ada_exit pos"),
    (SEQ | {"--ada_exit": "fixed"}, {"--ada_k_pos": "2"}, "--ada_exit fixed"),
    (SEQ, {"--ada_pilot": "4"}, "--ada_exit gate"),
    (SEQ, {"--ada_gate_low": "0.2", "--ada_gate_high": "0.5"}, "--ada_exit is balance"),
    (SEQ, {"--ada_refill_limit": "3"}, "--ada_unresolved is keep"),
    (SEQ, {"--ada_loss_length": "3"}, "--ada_loss is host"),
    (SEQ, {"--ada_choice": "mopps"}, "--ada_candidates"),
    (OFF, {"--ada_candidates": "2"}, "--ada_mode is off"),
    (SEQ, {"--ada_baseline_rounding": "0.2"}, "--ada_baseline pool"),
    (SEQ, {"--ada_baseline_factor": "least_noise"}, "--ada_baseline pool"),
    (OFF, {"--ada_wrong_epochs": "1"}, "--ada_mode is off"),
    (SEQ | {"--ada_scheduler": "waves"}, {"--ada_speculation": "3"}, "--ada_scheduler is waves"),
]


def warnings_of(argv: list[str]) -> list[str]:
    args = parse(argv)
    return without_effect(args.ada)


@pytest.mark.parametrize("flags", WITH_EFFECT, ids=" ".join)
def test_flags_that_change_something_are_not_named(argv_with: ArgvWith, flags: Flags) -> None:
    assert warnings_of(argv_with(flags)) == []


@pytest.mark.parametrize(
    ("mode", "flags", "cause"),
    WITHOUT_EFFECT,
    ids=[" ".join([mode["--ada_mode"] or "", *flags]) for mode, flags, _ in WITHOUT_EFFECT],
)
def test_flags_without_effect_are_named_with_the_reason(
    argv_with: ArgvWith, mode: Flags, flags: Flags, cause: str
) -> None:
    (warning,) = warnings_of(argv_with(mode | flags))
    head, _, rest = warning.partition(":")
    assert head == ", ".join(flags)
    assert cause in rest


def test_every_reason_has_a_line_of_its_own(argv_with: ArgvWith) -> None:
    lines = warnings_of(argv_with(SEQ | {"--ada_budget": "6", "--ada_half_life": "9", "--ada_objective": "sqrt"}))
    assert [line.split(":")[0] for line in lines] == ["--ada_budget", "--ada_half_life", "--ada_objective"]


@pytest.mark.parametrize(("wave", "is_told"), [("16", True), ("8", True), ("4", False)])
def test_a_wave_as_large_as_the_cap_is_told(argv_with: ArgvWith, wave: str, is_told: bool) -> None:
    told = warnings_of(argv_with(SEQ | {"--ada_wave": wave, "--ada_max_samples": "8"}))
    assert [line.startswith(f"--ada_wave {wave} ") for line in told] == [True] * is_told
