"""docs/algorithms.md: tables are what the core computes, and figures in its sentences are those of the tables."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from cases import pool_of, sequential
from documents import ROOT

from openrlhf_ada.core.objectives import Objective

TEXT = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import algorithm_figures

    return algorithm_figures


@pytest.mark.parametrize("aim", ["published", "linear", "log"])
@pytest.mark.parametrize("table", ["weights_table", "variance_table"])
def test_tables_are_what_the_benchmark_prints(table: str, aim: str, figures: ModuleType) -> None:
    assert getattr(figures, table)(aim) in TEXT, "print them anew: python benchmarks/algorithm_figures.py"


@pytest.mark.parametrize("table", ["cost_table", "prediction_table", "matched_table"])
def test_costs_and_predictions_are_what_the_benchmark_prints(table: str, figures: ModuleType) -> None:
    assert getattr(figures, table)() in TEXT, "print them anew: python benchmarks/algorithm_figures.py"


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
    assert "it is 1.2 (p = .01) and 2.1 times (p = .1)" in TEXT
    assert "and 3.5 and 1.8 times with `pos`" in TEXT


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
