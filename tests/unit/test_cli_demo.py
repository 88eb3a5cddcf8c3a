"""The demo: its command line is a valid run with the published estimator; its closing lines say gain and cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from recorded_runs import CONFIG, log_pools

from openrlhf_ada.cli import demo
from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.method_rules import without_effect
from openrlhf_ada.config.run_flags import FULL_MARKS
from openrlhf_ada.reporting.run_log import RunLog
from openrlhf_ada.trainer.preflight import check_without_files
from openrlhf_ada.trainer.settled import threshold_notes

SUMMARY: dict[str, Any] = {
    "accuracy_before": 0.25, "accuracy_after": 0.5, "ci95_before": 0.05, "ci95_after": 0.06,
    "rollouts": 2688, "tokens": 7000, "train_seconds": 120.0, "steps": 14,
}  # fmt: skip


@pytest.mark.parametrize("recipe", [demo.TOY, demo.SMOLLM2], ids=["toy", "smollm2"])
def test_advantages_are_not_divided_by_std(recipe: demo.Recipe) -> None:
    """As published: `group_norm` would weigh prompts of adaptive groups 20 to 1."""
    folder = Path("/nowhere")
    args = parse(demo.training_flags(recipe, folder, folder, folder, recipe.num_steps), check_without_files)
    assert (args.ada.mode, args.ada.exit, args.algo.advantage.estimator) == ("seq", "balance", "dr_grpo")
    assert without_effect(args.ada) == []
    assert threshold_notes(args) == [] and args.ada.positive_threshold == FULL_MARKS


def test_result_has_gain_and_cost() -> None:
    """Without pools, as with `--ada_mode off`, nothing is said about signal."""
    assert demo.result_lines(SUMMARY, None) == [
        "  held-out accuracy   0.250 ± 0.050  ->  0.500 ± 0.060   (95 % intervals)",
        "  cost in all         2,688 rollouts, 7,000 tokens, 2.0 minutes of training",
    ]


def test_unrecorded_accuracy_shows_nothing() -> None:
    """As without held-out prompts, after the demo's own options."""
    assert demo.result_lines(SUMMARY | {"accuracy_before": None}, None) == []


@pytest.mark.slow
def test_the_result_is_read_from_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """3 prompts, 10 rollouts, two groups with signal: 5. Uniform sampling with 2: a third of 5 prompts, so 6."""
    with RunLog(tmp_path, CONFIG) as log:
        log.log_evaluation(0, {"eval/accuracy": 0.25, "eval/ci95": 0.05})
        log_pools(log, 1, [[0, 1], [1, 1, 0, 1], [0, 0, 0, 0]])
        log.log_evaluation(1, {"eval/accuracy": 0.5, "eval/ci95": 0.06})
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"ada/prompts": 3', '"ada/prompts": 3, "ada/step_s": 6.0'))
    demo._show_result(tmp_path)
    text = capsys.readouterr().out
    assert "  groups with signal  2 (67% of the groups), from 10 rollouts, 3.3 per prompt\n" in text
    assert "  cost of a group     5.0 rollouts per group with signal; uniform sampling 6.0 or 5.0\n" in text
    assert max(map(len, text.splitlines())) <= 120 or str(tmp_path) in text
    assert str(tmp_path / "report.html") in text
