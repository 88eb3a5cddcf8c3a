"""Pass rates without stopping bias, by the flags of a recorded run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded_runs import CONFIG, pool_of

from openrlhf_ada.reporting.run_record import Run
from openrlhf_ada.reporting.seen_rate import seen_rate
from openrlhf_ada.reporting.visits import Visit


def run_with(**flags: Any) -> Run:
    return Run(Path("run"), CONFIG | {"ada": CONFIG["ada"] | flags}, [], [], None)


def visit(scores: list[float]) -> Visit:
    values = pool_of(scores, 1).scores.copy()
    return Visit(1, 1, "row", values, values, values, np.ones(len(scores), dtype=np.int64), values > 0.5)


def test_flags_of_another_version_leave_the_first_samples() -> None:
    run = Run(Path("run"), {"rollout": {"n_samples_per_prompt": 2}}, [], [], None)
    assert seen_rate(run)[0](visit([1, 0, 0])) == 0.5, "of the first n samples"


def test_a_visit_is_judged_by_the_flags_of_its_step() -> None:
    """Step 1 had waves of 2 up to 4, step 2 has 4 at once. Of all orders of 1 in 2, half start with the positive."""
    run = replace(run_with(exit="fixed"), earlier=[(1, run_with().config)])
    rate, _ = seen_rate(run)
    early, late = visit([0, 1]), replace(visit([0, 1, 0, 0]), step=2)
    assert (rate(early), rate(late)) == (0.5, 0.25)


def test_a_pool_with_which_the_plan_cannot_end_is_read_by_its_first_samples() -> None:
    """As in records of older versions, which have the flags of the last start alone."""
    rate, _ = seen_rate(run_with(exit="pos"))
    assert rate(visit([1, 0, 1, 1])) == 0.5


@pytest.mark.slow
def test_rate_seen_has_no_stopping_bias_in_simulation() -> None:
    """p = .2, waves of 2 up to 4: the mean of 20,000 visits is p. The share of positives K / N is on average .24."""
    rate, _ = seen_rate(run_with())
    rng = np.random.default_rng(0)
    rates, shares = [], []
    for outcomes in (rng.random((20_000, 4)) < 0.2).astype(float).tolist():
        pool = outcomes[:2] if 0 < sum(outcomes[:2]) < 2 else outcomes
        rates.append(rate(visit(pool)))
        shares.append(sum(pool) / len(pool))
    standard_error = float(np.std(rates)) / len(rates) ** 0.5
    assert abs(float(np.mean(rates)) - 0.2) < 3 * standard_error
    assert float(np.mean(shares)) - 0.2 > 10 * standard_error
