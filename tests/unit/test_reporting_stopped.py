"""Why sampling stopped, and pass rates without stopping bias, by the flags of a recorded run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded_runs import CONFIG, pool_of

from openrlhf_ada.reporting.run_record import Run
from openrlhf_ada.reporting.stopped import seen_rate, stop_reason
from openrlhf_ada.reporting.visits import Visit


def run_with(**flags: Any) -> Run:
    return Run(Path("run"), CONFIG | {"ada": CONFIG["ada"] | flags}, [], [], None)


def visit(scores: list[float], trained: bool = True) -> Visit:
    pool = pool_of(scores, 1)
    coefficients = np.where(np.arange(len(scores)) < 2, 0.5 if trained else np.nan, np.nan)
    values = pool.scores.copy()
    return Visit(1, 1, "row", values, values, coefficients, np.ones(len(scores), dtype=np.int64), values > 0.5)


@pytest.mark.parametrize(
    ("flags", "scores", "reason"),
    [
        ({}, [0, 1], "enough: 1 positives and 1 negatives (wanted: 1 positives and 1 negatives)"),
        ({}, [0, 0, 0, 0], "the limit of 4 samples was reached, all negative"),
        ({}, [1, 1, 1, 1], "the limit of 4 samples was reached, all positive"),
        ({}, [0, 0], "sampling was broken off"),
        ({"exit": "pos"}, [1, 1], "enough: 2 positives and 0 negatives (wanted: 1 positives)"),
        ({"exit": "fixed"}, [1, 0, 1, 1], "every prompt that goes on gets 4"),
        ({"exit": "gate", "pilot": 2}, [0, 0], "0 positives among the first 2: outside the bounds of the gate"),
        ({"mode": "est", "max_samples": 8}, [0, 0, 1, 1], "its share of the budget was 4"),
        (
            {"mode": "est", "max_samples": 4},
            [0, 0, 1, 1],
            "its share of the budget was the most that a prompt may have, 4",
        ),
        ({"policy": "mine.py"}, [0, 1], "the policy mine.py closed the prompt"),
    ],
)
def test_reason_of_every_kind_of_sampling(flags: dict[str, Any], scores: list[float], reason: str) -> None:
    assert stop_reason(run_with(**flags))(visit(scores)) == reason


def test_prompts_of_which_nothing_is_trained_say_so() -> None:
    assert stop_reason(run_with())(visit([1, 1, 1, 1], trained=False)).endswith("nothing of it is trained")


def test_flags_of_another_version_do_not_tell() -> None:
    run = Run(Path("run"), {"rollout": {"n_samples_per_prompt": 2}}, [], [], None)
    assert stop_reason(run)(visit([0, 1])) == "the flags of this run do not tell"
    assert seen_rate(run)[0](visit([1, 0, 0])) == 0.5, "of the first n samples"


def test_a_visit_is_judged_by_the_flags_of_its_step() -> None:
    """Step 1 had waves of 2 up to 4, step 2 has 4 at once. Of all orders of 1 in 2, half start with the positive."""
    run = replace(run_with(exit="fixed"), earlier=[(1, run_with().config)])
    rate, _ = seen_rate(run)
    early, late = visit([0, 1]), replace(visit([0, 1, 0, 0]), step=2)
    assert (
        stop_reason(run)(early).startswith("enough: ") and stop_reason(run)(late) == "every prompt that goes on gets 4"
    )
    assert (rate(early), rate(late)) == (0.5, 0.25)


def test_a_pool_with_which_the_plan_cannot_end_is_read_by_its_first_samples() -> None:
    """As in records of older versions, which have the flags of the last start alone."""
    rate, _ = seen_rate(run_with(exit="pos"))
    assert rate(visit([1, 0, 1, 1])) == 0.5


@pytest.mark.slow
def test_rate_seen_has_no_stopping_bias_in_simulation() -> None:
    """p = .2, waves of 2 up to 4: the mean of 20,000 visits is p. The share of positives K / N is on average .24."""
    rate, words = seen_rate(run_with())
    assert "no stopping bias" in words
    rng = np.random.default_rng(0)
    rates, shares = [], []
    for outcomes in (rng.random((20_000, 4)) < 0.2).astype(float).tolist():
        pool = outcomes[:2] if 0 < sum(outcomes[:2]) < 2 else outcomes
        rates.append(rate(visit(pool)))
        shares.append(sum(pool) / len(pool))
    standard_error = float(np.std(rates)) / len(rates) ** 0.5
    assert abs(float(np.mean(rates)) - 0.2) < 3 * standard_error
    assert float(np.mean(shares)) - 0.2 > 10 * standard_error
