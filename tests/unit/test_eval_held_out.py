"""Evaluation rows of a run: the same measures as `openrlhf-ada eval`, over answers that have a score."""

from __future__ import annotations

import pytest

from openrlhf_ada.eval.held_out import HeldOut, PromptAnswers, as_logs, best_metric_names, evaluation_metrics


def prompt(*scores: float) -> PromptAnswers:
    return PromptAnswers(scores, range(1, len(scores) + 1), [False] * (len(scores) - 1) + [True])


HELD_OUT = HeldOut(2, {"sums": [prompt(1.0, 0.0), prompt(0.0, 0.0)], "products": [prompt(0.6, 1.0)]}, no_score=1)


def test_a_row() -> None:
    row = evaluation_metrics(HELD_OUT, positive_above=0.5)
    # 4.3027 (Student's t, 2 degrees) times the standard error of .5, 0 and .8
    assert row.pop("eval/ci95") == pytest.approx(1.004, abs=0.001)
    assert row == {
        "eval/accuracy": pytest.approx((0.5 + 0 + 0.8) / 3),
        "eval/accuracy/sums": 0.25,
        "eval/accuracy/products": 0.8,
        "eval/pass@2": pytest.approx(2 / 3),
        "eval/all_equal@2": pytest.approx(2 / 3),
        "eval/num_prompts": 3,
        "eval/num_samples": 6,
        "eval/tokens": 1.5,
        "eval/truncated": 0.5,
        "eval/no_score": 1,
    }


def test_incomplete_prompts_count_for_accuracy_and_not_for_pass_at_n() -> None:
    row = evaluation_metrics(HeldOut(2, {"sums": [prompt(1.0), prompt(0.0, 0.0)]}, no_score=1), 0.5)
    assert (row["eval/accuracy"], row["eval/pass@2"]) == (0.5, 0.0)
    row = evaluation_metrics(HeldOut(2, {"sums": [prompt(1.0)]}, no_score=3), 0.5)
    assert "eval/pass@2" not in row


def test_scores_that_are_no_shares_are_refused_and_said_to_be_unmeasurable() -> None:
    held_out = HeldOut(1, {"sums": [prompt(-3.0)]})
    assert not held_out.is_measurable
    with pytest.raises(ValueError, match=r"datasource 'sums': prompt 0 has score -3\.0"):
        evaluation_metrics(held_out, 0.5)
    assert not HeldOut(1, no_score=4).is_measurable
    assert HELD_OUT.is_measurable


def test_what_chooses_the_best_checkpoint_is_among_the_logs() -> None:
    logs = as_logs(evaluation_metrics(HELD_OUT, 0.5))
    assert set(best_metric_names(2)) <= set(logs)
    assert best_metric_names(1) == ("accuracy",)
    assert all(isinstance(value, float) for value in logs.values())
