"""Evaluation rows of a run: the same measures as `openrlhf-ada eval`, over answers that have a score."""

from __future__ import annotations

import pytest

from openrlhf_ada.eval.held_out import HeldOut, as_logs, best_metric_names, evaluation_metrics
from openrlhf_ada.eval.measures import Answered
from openrlhf_ada.reporting.quantiles import t_quantile_975


def prompt(*scores: float) -> Answered:
    return Answered(scores, range(1, len(scores) + 1), [False] * (len(scores) - 1) + [True])


HELD_OUT = HeldOut(2, {"sums": [prompt(1.0, 0.0), prompt(0.0, 0.0)], "products": [prompt(0.6, 1.0)]}, no_score=1)


def test_a_row() -> None:
    row = evaluation_metrics(HELD_OUT, positive_above=0.5)
    # 4.3027 (Student's t, 2 degrees) times .5, the standard deviation of .5, 0 and 1, by the root of 3
    assert row.pop("eval/ci95") == pytest.approx(1.2421, abs=0.001)
    assert row == {
        "eval/accuracy": 0.5,
        "eval/accuracy/sums": 0.25,
        "eval/accuracy/products": 1.0,
        "eval/score": pytest.approx((0.5 + 0 + 0.8) / 3),
        "eval/pass@2": pytest.approx(2 / 3),
        "eval/all_equal@2": pytest.approx(2 / 3),
        "eval/num_prompts": 3,
        "eval/num_samples": 6,
        "eval/tokens": 1.5,
        "eval/truncated": 0.5,
        "eval/no_score": 1,
    }


def test_partial_credit_is_right_above_the_threshold_only() -> None:
    row = evaluation_metrics(HELD_OUT, positive_above=0.7)
    assert (row["eval/accuracy"], row["eval/accuracy/products"]) == (pytest.approx((0.5 + 0 + 0.5) / 3), 0.5)
    assert row["eval/score"] == pytest.approx((0.5 + 0 + 0.8) / 3)


def test_prompts_lacking_scores_skip_pass_at_n_only() -> None:
    row = evaluation_metrics(HeldOut(2, {"sums": [prompt(1.0), prompt(0.0, 0.0)]}, no_score=1), 0.5)
    assert (row["eval/accuracy"], row["eval/pass@2"]) == (0.5, 0.0)
    row = evaluation_metrics(HeldOut(2, {"sums": [prompt(1.0)]}, no_score=3), 0.5)
    assert "eval/pass@2" not in row


def test_the_interval_is_clustered_by_prompt() -> None:
    def row(*prompts: Answered) -> dict[str, float | int | None]:
        return evaluation_metrics(HeldOut(50, {"sums": list(prompts)}), 0.5)

    few, many = row(prompt(0.0), prompt(1.0), prompt(1.0)), row(prompt(*[0.0] * 50), *[prompt(*[1.0] * 50)] * 2)
    assert few["eval/ci95"] == pytest.approx(many["eval/ci95"])
    assert row(prompt(1.0), prompt(*[0.0] * 9))["eval/accuracy"] == 0.5, "every prompt counts the same"
    assert row(prompt(1.0, 0.0))["eval/ci95"] is None, "one prompt says nothing about others"


@pytest.mark.parametrize(
    ("degrees", "expected"), [(1, 12.7062), (30, 2.0423), (31, 2.0395), (40, 2.0211), (120, 1.9799), (10**6, 1.95996)]
)
def test_t_quantile_equals_the_printed_tables(degrees: int, expected: float) -> None:
    assert t_quantile_975(degrees) == pytest.approx(expected, abs=1e-4)


def test_scores_outside_0_to_1_are_unmeasurable() -> None:
    assert not HeldOut(1, {"sums": [prompt(-3.0)]}).is_measurable
    assert not HeldOut(1, no_score=4).is_measurable
    assert HELD_OUT.is_measurable


def test_best_checkpoint_metric_is_logged() -> None:
    logs = as_logs(evaluation_metrics(HELD_OUT, 0.5))
    assert set(best_metric_names(2)) <= set(logs)
    assert best_metric_names(1) == ("accuracy",)
    assert all(isinstance(value, float) for value in logs.values())
