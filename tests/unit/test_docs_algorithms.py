"""docs/algorithms.md: tables are what the core computes, and figures in its sentences are those of the tables."""

from __future__ import annotations

import re
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from cases import pool_of, sequential
from documents import ROOT, section, spans, tables

from openrlhf_ada.config.objective_notes import choice_shares
from openrlhf_ada.config.presets import METHODS
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import resolve
from openrlhf_ada.core.allocation import allocate, priority
from openrlhf_ada.core.batches import thinned
from openrlhf_ada.core.choice_shares import shares
from openrlhf_ada.core.criteria import CHOICES
from openrlhf_ada.core.objectives import Objective
from openrlhf_ada.core.types import TrainingGroup

TEXT = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import algorithm_figures

    return algorithm_figures


@pytest.mark.slow
@pytest.mark.parametrize("aim", ["published", "linear", "log"])
@pytest.mark.parametrize("table", ["weights_table", "variance_table"])
def test_tables_match_the_benchmark(table: str, aim: str, figures: ModuleType) -> None:
    assert getattr(figures, table)(aim) in TEXT, "print them anew: python benchmarks/algorithm_figures.py"


@pytest.mark.parametrize("table", ["named_weights_table", "named_cost_table"])
def test_tables_of_presets_match_the_benchmark(table: str, figures: ModuleType) -> None:
    assert getattr(figures, table)() in TEXT, "print them anew: python benchmarks/algorithm_figures.py"


@pytest.mark.parametrize("name", METHODS)
def test_every_preset_is_in_the_table(name: str) -> None:
    table = next(tables(section(TEXT, "Presets (`--ada_method`)")))
    (row,) = [row for row in table if row[0] == f"`{name}`"]
    method = METHODS[name]
    assert row[1:] == [method.summary, method.note or "–", method.source]


@pytest.mark.slow
@pytest.mark.parametrize("table", ["cost_table", "prediction_table", "matched_table", "counted_table"])
def test_costs_and_predictions_match_the_benchmark(table: str, figures: ModuleType) -> None:
    assert getattr(figures, table)() in TEXT, "print them anew: python benchmarks/algorithm_figures.py"


def test_shares_of_chosen_prompts() -> None:
    host = SimpleNamespace(
        rollout=SimpleNamespace(n_samples_per_prompt=8, batch_size=64),
        algo=SimpleNamespace(advantage=SimpleNamespace(estimator="dr_grpo")),
    )
    part = section(TEXT, "Which prompts to sample (`--ada_candidates`)")
    (_, *rows_of_choices), *_ = [table for table in tables(part) if table[0][0] == "p"]
    rows = {row[0].strip("`"): [float(cell) for cell in row[1:]] for row in rows_of_choices}
    assert list(rows) == list(CHOICES)
    for choice, shown in rows.items():
        settings = resolve(AdaConfig(mode="seq", exit="fixed", max_samples=8, candidates=4, choice=choice), host)
        assert shown == pytest.approx(choice_shares(settings, (0.01, 0.05, 0.1, 0.3, 0.5, 0.9, 0.99)), rel=0.005)


def test_shares_of_chosen_prompts_by_length() -> None:
    part = section(TEXT, "Which prompts to sample (`--ada_candidates`)")
    _, (_, *rows), *_ = [table for table in tables(part) if table[0][0] == "p"]
    rates = np.repeat(np.arange(1, 100) / 100, 2)
    found = shares("std_per_token", 4, rates, lambda: [], np.tile([2 / 3, 4 / 3], 99))
    for row, which in zip(rows, (0, 1), strict=True):
        at = [2 * (round(100 * p) - 1) + which for p in (0.01, 0.05, 0.1, 0.3, 0.5, 0.9, 0.99)]
        assert [float(cell) for cell in row[1:]] == pytest.approx(found[at], rel=0.005)


def test_figures_in_sentences(figures: ModuleType) -> None:
    assert "38.7 at p = .01 where GRPO with n = 4 has 1.50" in TEXT
    published = figures.PUBLISHED
    assert published["`balance`, `group_norm`"](0.01).effective == pytest.approx(38.7, abs=0.05)
    assert published["GRPO, n = 4"](0.01).effective == pytest.approx(1.50, abs=0.005)
    assert "(10.05 at p = .01)" in TEXT
    assert Objective("arcsin").weight(0.01) == pytest.approx(10.05, abs=0.005)
    assert "up to 1.93 at p = .01 (`pos`) and 1.31 at .05 (`balance`)" in TEXT
    assert figures.LINEAR["PPO, `pos`"](0.01).effective == pytest.approx(1.93, abs=0.005)
    assert figures.LINEAR["PPO, `balance`"](0.05).effective == pytest.approx(1.31, abs=0.005)
    grid = np.linspace(0.005, 0.995, 199)
    for exit_name, most in (("pos", 0.030), ("balance", 0.039)):
        bias = [figures.pool_mean(exit_name, p) - p for p in grid]
        assert max(bias) == pytest.approx(most, abs=5e-4), "the text has +.030 and ±.039"


def test_price_of_exactness(figures: ModuleType) -> None:
    for exit_name, factors in (("balance", (1.2, 2.1)), ("pos", (3.5, 1.8))):
        exact, published = figures.LINEAR[f"`{exit_name}`, `stratum`"], figures.PUBLISHED[f"`{exit_name}`"]
        for p, factor in zip((0.01, 0.1), factors, strict=True):
            assert exact(p).noise ** 2 / published(p).noise ** 2 == pytest.approx(factor, abs=0.05)
    said = " ".join(TEXT.split())
    assert (
        "`stratum` with `balance` is 1.2 times (p = .01) and 2.1 times (p = .1) that of the published weights" in said
    )
    assert "with `pos` it is 3.5 and 1.8 times" in said


NAMES = {
    "--ada_correction": "correction",
    "--ada_baseline": "baseline",
    "--ada_objective": "objective",
    "--algo.advantage.estimator": "advantage",
}
EXAMPLE = next(table for table in tables(section(TEXT, "3. The weight")) if table[0][0] == "Flags")


@pytest.mark.parametrize("row", EXAMPLE[1:], ids=[row[0] for row in EXAMPLE[1:]])
def test_worked_example_by_setting(row: list[str], figures: ModuleType) -> None:
    """The pool of the text: 2 positives of 16, predicted .1, `balance` with groups of 4."""
    words = spans(row[0])[0].split()
    flags = {NAMES[name]: value for name, value in zip(words[::2], words[1::2], strict=True)}
    pool = pool_of([0.0] * 14 + [1.0] * 2)
    pool.predicted = 0.1
    group = figures.sequential("balance", **flags).build(pool, np.random.default_rng(0))
    negative, positive = (float(cell.replace("−", "-")) for cell in reversed(row[4:]))
    assert group.coefficients == pytest.approx([negative, negative, positive, positive], abs=5e-4)
    baseline, share, weight = row[1:4]
    if share != "–":
        policy = figures.sequential("balance", **flags)
        expected = policy.plan.unbiased_rate(16, 2) if "pool" not in flags.values() else 2 / 16
        assert float(share) == pytest.approx(expected, abs=5e-4)
        rebuilt = float(weight) * float(share) * (4 / 2) * (1 - float(baseline))
        assert rebuilt == pytest.approx(positive, rel=0.01)


def test_worked_examples_of_steps_of_varying_size() -> None:
    part = section(TEXT, "Steps of varying size")
    drawn = int(re.findall(r"drawn ([\d,]+) rollouts", part)[0].replace(",", ""))
    prompts, batch = METHODS["rated-pos"].flags["rollout.batch_size"], METHODS["rated-pos"].flags["train.batch_size"]
    assert f"A step of `rated-pos` has {prompts} prompts" in part
    (table,) = (table for table in tables(part) if table[0][0] == "`--train.batch_size`")
    assert table[1][0] == f"{batch} (the preset's)"
    for row in table[1:]:
        size, updates, trained, left_out = (int(cell.partition(" ")[0].replace(",", "")) for cell in row)
        groups = [TrainingGroup(0, tuple(range(drawn)), (0.0,) * drawn, (1.0,) * drawn, True)]
        kept = sum(len(group.indices) for group in thinned(groups, size, np.random.default_rng(0)))
        assert (trained, left_out) == (kept, drawn - kept) and updates * size == trained
    assert "(1 − .9⁸) / .1 = 5.70" in part
    assert round((1 - 0.9**8) / 0.1, 2) == 5.70


def test_worked_example_of_ppo(figures: ModuleType) -> None:
    assert "A positive counts .125/.5 = .25, a negative .875/.5 = 1.75" in " ".join(TEXT.split())
    pool = pool_of([0.0] * 14 + [1.0] * 2)
    group = figures.sequential("balance", advantage="gae").build(pool, np.random.default_rng(0))
    assert group.coefficients == group.critic_weights == pytest.approx((1.75, 1.75, 0.25, 0.25))


def test_worked_example_of_a_split() -> None:
    assert "1/√p is 3.16, 1.83 and 1.05, and they get 13, 7 and 4 samples" in " ".join(TEXT.split())
    shares = priority("inverse_sqrt", np.array([0.1, 0.3, 0.9]), floor=0.02)
    assert np.round(shares, 2).tolist() == [3.16, 1.83, 1.05]
    split = allocate(shares, budget=24, lower=2, upper=32, tie_break=np.arange(3))
    assert split.tolist() == [13, 7, 4]


def test_weights_of_the_objectives_at_a_tenth() -> None:
    (table,) = (table for table in tables(section(TEXT, "3. The weight")) if table[0][0] == "`--ada_objective`")
    for name, *_, said in table[1:]:
        if name.startswith("`power`"):
            assert (said, Objective("power", 0.5).weight(0.1)) == ("3.16 for a = 0.5", pytest.approx(3.16, abs=0.005))
        elif not name.startswith("`matched"):
            assert float(said) == pytest.approx(Objective(spans(name)[0]).weight(0.1), abs=0.005)


def test_worked_examples(figures: ModuleType) -> None:
    policy = sequential(2, 2, n=4, wave=8, cap=32)
    assert policy.plan.unbiased_rate(16, 2) == pytest.approx(0.087, abs=5e-4)
    exact = sequential(
        2, 2, n=4, wave=8, cap=32, baseline="estimator", correction="stratum", objective=Objective("log")
    )
    pool = pool_of([0.0] * 14 + [1.0] * 2)
    pool.predicted = 0.1
    group = exact.build(pool, np.random.default_rng(0))
    assert group.coefficients == pytest.approx([-1.83, -1.83, 1.57, 1.57], abs=0.005)
