"""What is said at the start about the weight of prompts: the figures of the run's own settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.objective_notes import choice_shares, objective_notes
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import resolve
from openrlhf_ada.core.choice import PromptChooser
from openrlhf_ada.core.criteria import CHOICES
from openrlhf_ada.core.pieces import Trait
from openrlhf_ada.core.visits import VisitHistory

Flags = dict[str, str | None]
ArgvWith = Callable[[Flags], list[str]]

ESTIMATOR = "--algo.advantage.estimator"

CHOSEN: Flags = {"--ada_candidates": "3", "--rollout.batch_size": "1", "--train.batch_size": "4"}


def notes_of(argv_with: ArgvWith, flags: Flags) -> list[str]:
    args = parse(argv_with(flags))
    return objective_notes(args.ada)


def test_group_norm_warns_with_the_figures_of_the_run(argv_with: ArgvWith) -> None:
    said, warning = notes_of(argv_with, {"--ada_mode": "seq", ESTIMATOR: "group_norm"})
    assert "0.01 / 0.1 / 0.5 / 0.9 have the weight 38.7 / 12.6 / 1.98 / 12.6" in said
    assert warning.startswith(f"warning: {ESTIMATOR} group_norm divides by the standard deviation of the whole pool")
    assert "Uniform sampling of 4 has 1.5 / 1.46 / 1.4 / 1.46" in warning
    assert "dr_grpo" in warning
    said, _ = notes_of(argv_with, {"--ada_mode": "seq", ESTIMATOR: "group_norm", "--ada_exit": "pos"})
    assert "27.9 / 8.63 / 1.95" in said


def test_group_norm_of_ada_est_warns_too(argv_with: ArgvWith) -> None:
    said, warning = notes_of(argv_with, {"--ada_mode": "est", ESTIMATOR: "group_norm"})
    assert "evenly" in said
    assert "group_norm" in warning


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"--ada_mode": "seq"}, "7.52 / 3.95 / 1 / 3.95"),
        ({"--ada_mode": "seq", "--ada_spread": "0.5"}, "7.52 / 3.95 / 1 / 3.95"),
        ({"--ada_mode": "seq", "--ada_baseline": "estimator"}, "7.82 / 4.13 / 1 / 4.13, if predictions"),
        ({"--ada_mode": "seq", "--ada_exit": "pos"}, "6.61 / 2.8 / 0.973 / 1.58"),
        (
            {"--ada_mode": "seq", "--ada_correction": "stratum"},
            "50 / 10 / 2 / 1.11, if predictions are right; --ada_objective log asks for 100 / 10 / 2 / 1.11",
        ),
        (
            {"--ada_mode": "seq", "--ada_correction": "stratum", "--ada_objective": "linear"},
            "1 / 1 / 1 / 1; --ada_objective linear asks for 1 / 1 / 1 / 1",
        ),
        (
            {"--ada_mode": "est", "--ada_budget": "8"},
            "50 / 10 / 2 / 1.11, in a batch of evenly spread pass rates, if predictions are right, until they are",
        ),
        (
            {"--ada_mode": "seq"} | CHOSEN,
            "1.89 / 2.99 / 1.26 / 2.99, with candidates of evenly spread pass rates, if predictions are right; how "
            "often they are chosen is a factor of 0.251 / 0.757 / 1.26 / 0.757 in it",
        ),
        (
            {"--ada_mode": "seq", "--ada_choice_weight": "inverse"} | CHOSEN,
            "7.52 / 3.95 / 1 / 3.95, whatever their chance to be chosen",
        ),
        (
            {"--ada_mode": "est", "--ada_budget": "8", "--ada_choice_weight": "inverse"} | CHOSEN,
            "50 / 10 / 2 / 1.11, with candidates of evenly spread pass rates, if predictions are right, until",
        ),
        (
            {"--ada_mode": "seq", "--ada_choice": "std_per_token"} | CHOSEN,
            "1.89 / 2.99 / 1.26 / 2.99, with candidates of evenly spread pass rates, if predictions are right, if "
            "answers are equally long; how often",
        ),
        (
            {"--ada_mode": "est", "--ada_budget": "8", "--ada_choice": "greso"} | CHOSEN,
            "not computed, since --ada_choice greso goes by what visits showed, and how many rollouts these have by",
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
    assert "1.5 / 1.46 / 1.4 / 1.46" in note


MEMORYLESS = [name for name, piece in CHOICES.items() if Trait.READS_VISITS not in piece.traits]
"""The others are counted in test_core_visits.py."""


@pytest.mark.parametrize("choice", MEMORYLESS)
def test_chosen_shares_are_those_of_the_chooser(choice: str) -> None:
    """One prompt of each per cent, whose pass rates are known, and a quarter of them chosen: the chances, exactly."""
    settings = resolve(AdaConfig(mode="seq", candidates=4, choice=choice), n=4, advantage="dr_grpo", batch=25)
    rates = np.arange(1, 100) / 100
    chooser = PromptChooser(
        99,
        4,
        np.random.default_rng(0),
        SimpleNamespace(draw=lambda rows, rng: rates[rows]),
        VisitHistory(0.5, 50.0, 2.0),
        value=choice,
    )
    shares: dict[int, float] = {}
    while len(shares) < 99:
        shares |= {choice.row: 99 / 25 * choice.chance for choice in chooser.take(25)}
    assert choice_shares(settings, rates.tolist()) == pytest.approx([shares[row] for row in range(99)], rel=0.02)
    assert choice_shares(replace(settings, choice_weight="inverse"), [0.1]) == [1.0]


def test_slow_enumeration_is_noted(argv_with: ArgvWith) -> None:
    note, warning = notes_of(argv_with, {"--ada_mode": "seq", "--ada_max_samples": "4096", ESTIMATOR: "group_norm"})
    assert "group_norm divides" in warning
    assert note == "objective: not computed, since --ada_max_samples 4096 is above 2048"
