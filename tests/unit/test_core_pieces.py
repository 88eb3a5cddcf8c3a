"""A new piece of the method is one function in one table: its flag offers it, and its needs are checked."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_flags import settings_with

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.method_rules import check_settings, without_effect
from openrlhf_ada.config.objective_notes import objective_notes, weights_of
from openrlhf_ada.config.schema import PREDICTORS, SCORES, UNRESOLVED, AdaConfig, add_flags
from openrlhf_ada.config.settings import Settings, make_policy
from openrlhf_ada.core.advantages import BASELINES, ESTIMATORS, Drawn
from openrlhf_ada.core.allocation import GAINS, PILOTED, PRIORITIES, priority
from openrlhf_ada.core.corrections import CORRECTIONS, KeptSamples
from openrlhf_ada.core.objectives import OBJECTIVES, Objective
from openrlhf_ada.core.pieces import Need, Piece, Table, Trait
from openrlhf_ada.core.policies import Draw, TwoStage
from openrlhf_ada.core.selection import SELECTIONS
from openrlhf_ada.core.stopping import EXITS
from openrlhf_ada.core.types import PromptPool, Sample

TABLES: dict[str, Table[Any]] = {
    "baseline": BASELINES,
    "correction": CORRECTIONS,
    "select": SELECTIONS,
    "exit": EXITS,
    "allocation": PRIORITIES,
}
"""By the flag that offers their names."""


@pytest.fixture(autouse=True)
def tables_as_before() -> Iterator[None]:
    tables = [*TABLES.values(), OBJECTIVES, ESTIMATORS, GAINS, PILOTED]
    before = [dict(table) for table in tables]
    yield
    for table, pieces in zip(tables, before, strict=True):
        table.clear()
        table.update(pieces)


def settings_of(**flags: Any) -> Settings:
    return settings_with(**{"mode": "seq"} | flags)


def pool_of(outcomes: list[float]) -> PromptPool:
    return PromptPool(0, [Sample(0, i, outcome, outcome, num_tokens=1) for i, outcome in enumerate(outcomes)])


@pytest.mark.parametrize("flag", TABLES)
def test_new_piece_is_offered_by_its_flag(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="expected one of"):
        AdaConfig(**{flag: "mine"})
    TABLES[flag].add("mine")(lambda *_: None)
    assert getattr(AdaConfig(**{flag: "mine"}), flag) == "mine"
    parser = argparse.ArgumentParser()
    add_flags(parser)
    assert re.search(r",mine[,}]", parser.format_help())


def test_new_baseline_is_trained() -> None:
    @BASELINES.add("median")
    def median(drawn: Drawn) -> np.ndarray:
        return drawn.rewards - np.median(drawn.rewards)

    settings = settings_of(baseline="median", exit="fixed", max_samples=4, select="all")
    check_settings(settings)
    group = make_policy(settings).build(pool_of([0.0, 0.0, 0.0, 1.0]), np.random.default_rng(0))
    assert group.coefficients == (0.0, 0.0, 0.0, 1.0)


def test_new_baseline_is_refused_by_what_it_needs() -> None:
    BASELINES.add("mine", needs={Need.POSITIVES_KEPT})(lambda drawn: drawn.rewards)
    check_settings(settings_of(baseline="mine"))
    with pytest.raises(ConfigError, match=r"^--ada_baseline is 'mine': it needs positives .* --ada_select random"):
        check_settings(settings_of(baseline="mine", select="random"))


def test_new_baseline_is_refused_by_what_it_lacks() -> None:
    BASELINES.add("mine", lacks={Need.WHOLE_POOL: "reads two rollouts"})(lambda drawn: drawn.rewards)
    check_settings(settings_of(baseline="mine"))
    with pytest.raises(ConfigError, match=r"and --ada_baseline mine reads two rollouts\. Use --ada_baseline pool"):
        check_settings(settings_of(baseline="mine", correction="stratum"))


def test_new_predicted_baseline_makes_policy_remember() -> None:
    BASELINES.add("mine", needs={Need.PREDICTION})(lambda drawn: drawn.rewards)
    assert settings_of(baseline="mine").remembers


def test_new_correction_is_trained_and_checked() -> None:
    @CORRECTIONS.add("doubled", needs={Need.POSITIVES_KEPT})
    def doubled(kept: KeptSamples) -> np.ndarray:
        return 2.0 * kept.advantages

    settings = settings_of(correction="doubled")
    check_settings(settings)
    group = make_policy(settings).build(pool_of([0.0, 0.0, 1.0, 1.0]), np.random.default_rng(0))
    assert group.coefficients == (-1.0, -1.0, 1.0, 1.0)
    with pytest.raises(ConfigError, match=r"^--ada_correction is 'doubled': it needs positives in the group"):
        check_settings(settings_of(correction="doubled", select="random"))


def test_new_allocation_is_used_and_checked() -> None:
    PRIORITIES.add("square", lacks={Need.COUNTS_AS_WEIGHT: "is no weight"})(lambda p: p**2)
    assert priority("square", [0.5, 0.2], floor=0.02).tolist() == pytest.approx([0.25, 0.04])
    check_settings(settings_of(mode="est", allocation="square", correction="none"))
    with pytest.raises(ConfigError, match=r"and --ada_allocation square is no weight\. Use --ada_allocation inverse"):
        check_settings(settings_of(mode="est", allocation="square", correction="paper"))


def test_new_gain_is_split_by_and_checked() -> None:
    GAINS.add("mine", lacks={Need.COUNTS_AS_WEIGHT: "is no weight"})(lambda p, n: p / n)
    settings = settings_of(mode="est", allocation="mine", correction="none", budget=4.0)
    check_settings(settings)
    pools = [PromptPool(key, row=key) for key in range(4)]
    assert [action.count for action in make_policy(settings).decide(pools)] == [4, 4, 4, 4]
    with pytest.raises(ConfigError, match=r"and --ada_allocation mine is no weight\. Use --ada_allocation inverse"):
        check_settings(settings_of(mode="est", allocation="mine", correction="paper"))


def test_new_second_round_is_split_by() -> None:
    PILOTED.add("mine")(lambda a, b, extra: a / (a + b) - 0.01 * extra)
    policy = make_policy(settings_of(mode="est", allocation="mine", correction="none", baseline="pool", pilot=2))
    assert isinstance(policy, TwoStage)
    assert policy.decide([PromptPool(0)]) == [Draw(0, 2)]


def test_new_exit_says_how_many_outcomes_it_waits_for() -> None:
    EXITS.add("negative")(lambda group_size: (0, 1))
    settings = settings_of(exit="negative")
    assert (settings.k_pos, settings.k_neg) == (0, 1)
    (warning,) = without_effect(settings_of(exit="negative", k_pos=2))
    assert warning.startswith("--ada_k_pos:") and "negative" in warning


def test_new_exit_takes_the_counts_that_it_waits_for() -> None:
    EXITS.add("three")(lambda group_size: (3, 0))
    settings = settings_of(exit="three", k_pos=2)
    check_settings(settings)
    assert (settings.k_pos, settings.k_neg) == (2, 0)
    (warning,) = without_effect(settings_of(exit="three", k_pos=2, k_neg=1))
    assert warning.startswith("--ada_k_neg:")


def test_new_exit_that_waits_for_nothing_is_fixed() -> None:
    EXITS.add("mine")(lambda group_size: (0, 0))
    check_settings(settings_of(exit="mine", max_samples=4, select="all"))
    (warning,) = without_effect(settings_of(exit="mine", wave=2))
    assert warning == "--ada_wave: without effect, since exit mine has no waves"


def test_new_selection_keeps_what_it_says() -> None:
    SELECTIONS.add("first")(lambda scores, n, threshold, rng: np.arange(n))
    policy = make_policy(settings_of(select="first"))
    assert policy.build(pool_of([0.0] * 8), np.random.default_rng(0)).indices == (0, 1, 2, 3)


@pytest.mark.parametrize("baseline", ["pool", "unbiased"])
def test_new_fair_sample_weighs_prompts_as_random_does(baseline: str) -> None:
    @SELECTIONS.add("mine", lacks={Need.POSITIVES_KEPT: "may keep none"}, traits={Trait.FAIR_SAMPLE})
    def mine(scores: np.ndarray, n: int, threshold: float, rng: np.random.Generator) -> np.ndarray:
        return rng.choice(len(scores), n, replace=False)

    assert weights_of(settings_of(select="mine", baseline=baseline)) == weights_of(
        settings_of(select="random", baseline=baseline)
    )
    pool, factors = pool_of([1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]), set[float]()
    for seed in range(8):
        group = make_policy(settings_of(select="mine")).build(pool, np.random.default_rng(seed))
        factors.update(group.critic_weights)
    assert factors == {1.0}, "a fair sample needs no stratum factors"


def test_selection_without_trait_has_no_figures(tmp_path: Path) -> None:
    SELECTIONS.add("mine")(lambda scores, n, threshold, rng: rng.permutation(len(scores))[:n])
    settings = settings_of(select="mine")
    check_settings(settings)
    (note,) = objective_notes(settings)
    assert "--ada_select mine" in note and "Trait" in note
    with pytest.raises(ValueError, match=r"'mine' .*Trait"):
        weights_of(settings)
    file = tmp_path / "mine.yaml"
    file.write_text("base: reinforce-ada-pos\nflags:\n  ada_select: mine\n")
    with pytest.raises(ConfigError, match=r"matched:.*--ada_select mine .*Trait"):
        settings_of(objective=f"matched:{file}", correction="stratum")


def test_new_objective_has_its_weight() -> None:
    OBJECTIVES.add("cubed", lacks={Need.LOG_OBJECTIVE: "is another"})(lambda p: 3 * p**2)
    assert Objective("cubed").weight(0.5) == 0.75
    assert settings_of(objective="cubed", correction="paper").target == Objective("cubed")
    with pytest.raises(ConfigError, match=r"^--ada_correction is 'positives'.* --ada_objective cubed is another"):
        check_settings(settings_of(objective="cubed", correction="positives"))


@pytest.mark.parametrize("table", [*TABLES.values(), OBJECTIVES, ESTIMATORS], ids=[*TABLES, "objective", "estimator"])
def test_every_piece_says_what_it_computes(table: Table[Any]) -> None:
    assert all(piece.function.__doc__ for piece in table.values())


@pytest.mark.parametrize(
    ("flag", "table"),
    [
        ("estimator", PREDICTORS),
        ("unresolved", UNRESOLVED),
        ("scores", SCORES),
    ],
)
def test_choices_without_a_function_have_pieces(flag: str, table: Mapping[str, Piece[Any]]) -> None:
    assert AdaConfig.__dataclass_fields__[flag].metadata["choices"] is table


def test_every_need_is_of_a_piece() -> None:
    """What nothing needs is a word without a meaning."""
    tables = (*TABLES.values(), OBJECTIVES, ESTIMATORS, UNRESOLVED)
    assert {need for table in tables for piece in table.values() for need in piece.needs} == set(Need)
