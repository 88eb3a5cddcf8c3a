"""The demo: its command line is a valid run with the published estimator; its closing lines say gain and cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openrlhf_ada.cli import demo
from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.method_rules import without_effect
from openrlhf_ada.config.settings import resolve
from openrlhf_ada.reporting.run_log import RunLog
from openrlhf_ada.trainer.preflight import check_without_files

SUMMARY: dict[str, Any] = {
    "accuracy_before": 0.25, "accuracy_after": 0.5, "ci95_before": 0.05, "ci95_after": 0.06,
    "signal_share": 0.75, "signal_share_uniform": 0.4, "signal_cost": 16.0, "signal_cost_uniform": 10.0,
    "rollouts": 2688, "tokens": 7000, "train_seconds": 120.0, "steps": 14,
}  # fmt: skip


@pytest.mark.parametrize("recipe", [demo.TOY, demo.SMOLLM2], ids=["toy", "smollm2"])
def test_advantages_are_not_divided_by_std(recipe: demo.Recipe) -> None:
    """As published: `group_norm` would weigh prompts of adaptive groups 20 to 1."""
    folder = Path("/nowhere")
    args, config = parse(demo.training_flags(recipe, folder, folder, folder, recipe.num_steps), check_without_files)
    assert (config.mode, config.exit, args.algo.advantage.estimator) == ("seq", "balance", "dr_grpo")
    assert without_effect(resolve(config, args)) == []


def test_result_has_gain_signal_and_cost() -> None:
    text = "\n".join(demo.result_lines(SUMMARY, group_size=4))
    assert "0.250 ± 0.050  ->  0.500 ± 0.060" in text
    assert "75% of the run's groups; uniform sampling with 4 per prompt would have had 40%" in text
    assert "16.0 rollouts per group with signal; uniform sampling with 4 per prompt would have paid 10.0" in text
    assert "paid more for a group with signal, and got one from more of its prompts" in text
    assert "2,688 rollouts, 7,000 tokens, 2.0 minutes" in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"signal_cost": 8.0}, "paid no more for a group with signal"),
        ({"signal_share": 0.4}, "paid more for a group with signal, and got no more of them"),
        ({"signal_cost_uniform": None, "signal_share_uniform": 0.0}, "per prompt would have had no such group"),
        ({"signal_cost": None, "signal_share": 0.0}, "no group had a signal"),
    ],
)
def test_cost_is_always_shown(changes: dict[str, Any], said: str) -> None:
    assert said in "\n".join(demo.result_lines(SUMMARY | changes, group_size=4))


def test_unrecorded_accuracy_shows_nothing() -> None:
    """As without held-out prompts, after the demo's own options."""
    assert demo.result_lines(SUMMARY | {"accuracy_before": None}, group_size=4) == []


def test_unrecorded_signal_is_left_out() -> None:
    """As with `--ada_mode off`, or one rollout per prompt."""
    shown = demo.result_lines(SUMMARY, group_size=4)
    assert demo.result_lines(SUMMARY | {"signal_share": None}, group_size=4) == [shown[0], shown[-1]]


def test_the_result_is_read_from_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """2 prompts, 24 rollouts, both groups with signal: 12. Of their first 4 one has both outcomes: 4 / 0.5 = 8."""
    step = {
        "ada/prompts": 2, "ada/signal_share": 1.0, "ada/signal_share_uniform": 0.5, "ada/drawn": 24,
        "ada/drawn_tokens": 72, "ada/step_s": 6.0,
    }  # fmt: skip
    with RunLog(tmp_path, {"rollout": {"n_samples_per_prompt": 4}}) as log:
        log.log_evaluation(0, {"eval/accuracy": 0.25, "eval/ci95": 0.05})
        log.log_step(1, step)
        log.log_evaluation(1, {"eval/accuracy": 0.5, "eval/ci95": 0.06})
    demo._show_result(tmp_path)
    text = capsys.readouterr().out
    assert "12.0 rollouts per group with signal; uniform sampling with 4 per prompt would have paid 8.0" in text
    assert str(tmp_path / "plot.png") in text and (tmp_path / "plot.png").exists()
