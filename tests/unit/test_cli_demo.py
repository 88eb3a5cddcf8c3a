"""The demo: its command line is a valid run with the published estimator; its closing lines say gain and cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from openrlhf_ada.cli import demo
from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.flags import FULL_MARKS
from openrlhf_ada.config.method_rules import without_effect
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
