"""What is said at the start about the weight of prompts: the figures of the run's own settings."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.objective_notes import objective_notes

Flags = dict[str, str | None]
ArgvWith = Callable[[Flags], list[str]]

ESTIMATOR = "--algo.advantage.estimator"

CHOSEN: Flags = {"--ada_candidates": "3", "--rollout.batch_size": "1", "--train.batch_size": "4"}


def notes_of(argv_with: ArgvWith, flags: Flags) -> list[str]:
    """With the weights at the four rates as one word, such as 7.5/4/1/4."""
    args = parse(argv_with(flags))
    notes = [re.sub(r"([\d.]+) at every rate", r"\1/\1/\1/\1", note) for note in objective_notes(args.ada)]
    by_rate = ", ".join(rf"([\d.]+) at {rate}%" for rate in (1, 10, 50, 90))
    return [re.sub(by_rate, r"\1/\2/\3/\4", note) for note in notes]


def test_group_norm_warns_with_the_figures_of_the_run(argv_with: ArgvWith) -> None:
    said, warning = notes_of(argv_with, {"--ada_mode": "seq", ESTIMATOR: "group_norm"})
    assert " 38.7/12.6/1.98/12.6" in said
    assert warning.startswith(f"warning: {ESTIMATOR} group_norm divides by the standard deviation of the whole pool")
    assert "Uniform sampling of 4 has 1.5/1.46/1.4/1.46" in warning
    assert "dr_grpo" in warning
    said, _ = notes_of(argv_with, {"--ada_mode": "seq", ESTIMATOR: "group_norm", "--ada_exit": "pos"})
    assert "27.9/8.63/1.95" in said


def test_group_norm_of_ada_est_warns_too(argv_with: ArgvWith) -> None:
    said, warning = notes_of(argv_with, {"--ada_mode": "est", ESTIMATOR: "group_norm"})
    assert "evenly" in said
    assert "group_norm" in warning


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"--ada_mode": "seq"}, "7.52/3.95/1/3.95"),
        ({"--ada_mode": "seq", "--ada_baseline": "estimator"}, "7.82/4.13/1/4.13, if predictions"),
        ({"--ada_mode": "seq", "--ada_exit": "pos"}, "6.61/2.8/0.973/1.58"),
        (
            {"--ada_mode": "seq", "--ada_correction": "stratum"},
            "50/10/2/1.11, if predictions are right; --ada_objective log asks for 100/10/2/1.11",
        ),
        (
            {"--ada_mode": "seq", "--ada_correction": "stratum", "--ada_objective": "linear"},
            "1/1/1/1; --ada_objective linear asks for 1/1/1/1",
        ),
        (
            {"--ada_mode": "est", "--ada_budget": "8"},
            "50/10/2/1.11, in a batch of evenly spread pass rates, if predictions are right, until they are",
        ),
        (
            {"--ada_mode": "seq", "--ada_wrong_epochs": "1", "--train.max_epochs": "2"},
            "7.52/3.95/1/3.95, before right answers alone are trained (after --ada_wrong_epochs 1)",
        ),
        ({"--ada_mode": "seq", "--ada_choice": "vade"} | CHOSEN, "7.52/3.95/1/3.95, once it is chosen"),
        (
            {"--ada_mode": "est", "--ada_budget": "8"} | CHOSEN,
            "50/10/2/1.11, once it is chosen, which --ada_choice std",
        ),
    ],
)
def test_every_other_run_notes_its_prompt_weights(flags: Flags, said: str, argv_with: ArgvWith) -> None:
    (note,) = notes_of(argv_with, {ESTIMATOR: "dr_grpo"} | flags)
    assert said in note


def test_mode_off_has_no_note(argv_with: ArgvWith) -> None:
    assert notes_of(argv_with, {"--ada_mode": "off", ESTIMATOR: "group_norm"}) == []


def test_group_norm_of_fixed_fully_trained_is_uniform(argv_with: ArgvWith) -> None:
    fixed = {"--ada_mode": "seq", "--ada_exit": "fixed", "--ada_max_samples": "4", ESTIMATOR: "group_norm"}
    (note,) = notes_of(argv_with, fixed)
    assert "1.5/1.46/1.4/1.46" in note


def test_slow_enumeration_is_noted(argv_with: ArgvWith) -> None:
    note, warning = notes_of(argv_with, {"--ada_mode": "seq", "--ada_max_samples": "4096", ESTIMATOR: "group_norm"})
    assert "group_norm divides" in warning
    assert note == "objective: not computed, since --ada_max_samples 4096 is above 2048"
