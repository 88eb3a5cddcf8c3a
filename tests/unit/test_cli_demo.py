"""The demo: its command line is a valid run with the published estimator; its closing lines say gain and cost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from recorded_runs import CONFIG, log_pools

from openrlhf_ada.cli import demo
from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.flags import FULL_MARKS
from openrlhf_ada.config.method_rules import without_effect
from openrlhf_ada.reporting.run_log import RunLog
from openrlhf_ada.trainer.preflight import check_without_files
from openrlhf_ada.trainer.settled import threshold_notes


@pytest.mark.parametrize("recipe", [demo.TOY, demo.SMOLLM2], ids=["toy", "smollm2"])
def test_advantages_are_not_divided_by_std(recipe: demo.Recipe) -> None:
    """As published: `group_norm` would weigh prompts of adaptive groups 20 to 1."""
    folder = Path("/nowhere")
    args = parse(demo.training_flags(recipe, folder, folder, folder), check_without_files)
    assert (args.ada.mode, args.ada.exit, args.algo.advantage.estimator) == ("seq", "balance", "dr_grpo")
    assert without_effect(args.ada) == [] and recipe.num_prompts % recipe.batch_size == 0
    assert threshold_notes(args) == [] and args.ada.positive_threshold == FULL_MARKS


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
    assert "  held-out accuracy   0.250 ± 0.050  ->  0.500 ± 0.060   (95 % intervals)\n" in text
    assert re.search(r"^  groups with signal  2 \(67% .* 10 rollouts.* 5\.0 rollouts per group", text, re.MULTILINE)
    assert re.search(r"  cost in all         10 rollouts, \d+ tokens, 0\.1 minutes", text)
    assert max(map(len, text.splitlines())) <= 120 or str(tmp_path) in text
    assert str(tmp_path / "report.html") in text
    # Without held-out prompts and pools, as with the demo's own options.
    metrics.write_text("".join(line for line in metrics.read_text().splitlines(True) if "eval/" not in line))
    (tmp_path / "samples.jsonl").unlink()
    demo._show_result(tmp_path)
    assert [line.split("  ")[1] for line in capsys.readouterr().out.splitlines()] == ["cost in all", "look at"]
