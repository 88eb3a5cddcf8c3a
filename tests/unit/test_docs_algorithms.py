"""docs/algorithms.md: its tables are made anew, and its worked examples are what the core computes."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from cases import pool_of, sequential
from documents import ROOT, section, spans, tables

from openrlhf_ada.core.allocation import allocate, priority
from openrlhf_ada.core.objectives import Objective

TEXT = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import algorithm_figures

    return algorithm_figures


@pytest.mark.slow
def test_tables_are_made_anew(figures: ModuleType) -> None:
    page = TEXT
    for name in figures.TABLES:
        assert figures.marks(name)[0] in TEXT
        page = figures.written(page, name)
    assert page == TEXT, "make them anew: python benchmarks/algorithm_figures.py"


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


def test_weights_of_the_objectives_at_a_tenth() -> None:
    (table,) = (table for table in tables(section(TEXT, "3. The weight")) if table[0][0] == "`--ada_objective`")
    for name, *_, said in table[1:]:
        if name not in ("`power`", "`matched:NAME`"):
            assert float(said) == pytest.approx(Objective(spans(name)[0]).weight(0.1), abs=0.005)


def test_worked_example_of_a_split() -> None:
    shares = priority("inverse_sqrt", np.array([0.1, 0.3, 0.9]), floor=0.02)
    assert np.round(shares, 2).tolist() == [3.16, 1.83, 1.05]
    assert allocate(shares, budget=24, lower=2, upper=32, tie_break=np.arange(3)).tolist() == [13, 7, 4]


def test_worked_example_of_ppo(figures: ModuleType) -> None:
    group = figures.sequential("balance", advantage="gae").build(
        pool_of([0.0] * 14 + [1.0] * 2), np.random.default_rng(0)
    )
    assert group.coefficients == group.critic_weights == pytest.approx((1.75, 1.75, 0.25, 0.25))


def test_worked_example_of_the_unbiased_rate() -> None:
    assert sequential(2, 2, n=4, wave=8, cap=32).plan.unbiased_rate(16, 2) == pytest.approx(0.087, abs=5e-4)
