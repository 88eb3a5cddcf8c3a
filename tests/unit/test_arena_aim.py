"""Ours beside GRPO and the cheapest uniform sampling: against trials whose costs are known."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from openrlhf_ada.arena.aim import beside, cheapest_uniform, reached, render_aim, render_edges
from openrlhf_ada.arena.tables import REFERENCE, Finals

SEEDS = 4


def finals(rollouts: Mapping[str, int], task: str = "graded") -> Finals:
    """Every method's accuracy rises evenly from 0 to 1 over so many rollouts; the reference sets the target."""
    runs = {
        name: [
            {"spent": [{"rollouts": drawn * at // 10} for at in range(11)], "accuracy": [at / 10 for at in range(11)]}
            for _ in range(SEEDS)
        ]
        for name, drawn in rollouts.items()
    }
    return Finals(task, "rollouts", dict.fromkeys(rollouts, (1e-3, 8)), runs)


COSTS = {REFERENCE: 2000, "grpo-4": 1600, "uniform-4-twice": 1000, "uniform-8-as-pos": 100, "counted": 600}


def test_uniform_sampling_has_equal_weights() -> None:
    """A control with another weight of prompts is none."""
    assert cheapest_uniform(finals(COSTS)) == "uniform-4-twice"


def test_costs_are_beside_both() -> None:
    of = finals(COSTS)
    assert beside(of, "counted", "grpo-4").cost == pytest.approx(600 / 1600)
    assert beside(of, "counted", "uniform-4-twice").text == "0.60 (0.60 to 0.60)"
    assert reached(of, "counted")


@pytest.mark.parametrize("changed", [{"grpo-4": 1100}, {"uniform-4-twice": 800}])
def test_both_bounds_are_needed(changed: dict[str, int]) -> None:
    assert not reached(finals(COSTS | changed), "counted")


def test_aim_is_reached_on_two_tasks_of_three() -> None:
    good, bad = finals(COSTS), finals(COSTS | {"grpo-4": 1100}, "hard")
    text = render_aim([good, bad, finals(COSTS, "format")])
    assert "on 2 of 3 tasks. `counted` has **reached** it: 2 of 3, `graded`, `format`." in text
    assert "`counted` has **missed** it: 1 of 2, `graded`." in render_aim([good, bad])
    assert "2 of 3, `graded`, `format`. The whole 95 % intervals are within these bounds, too." in text
    assert "`rated-pos`" not in text, "it was not run"
    assert "| of how many | 3 | 3 |" in text
    assert "| `grpo-4` | 0.38 (0.38 to 0.38) | 0.55 (0.55 to 0.55) | 0.38 (0.38 to 0.38) |" in text
    assert "| which is | `uniform-4-twice` |" in text
    assert "the cheapest RAFT" not in text, "it was not run"


def test_an_interval_beyond_a_bound_is_named() -> None:
    """A seed that takes longer than GRPO's half, and as much less in another: within on average only."""
    unsure = finals(COSTS | {"counted": 790})
    for run, scale in zip(unsure.runs["counted"], (0.5, 1.4, 0.7, 1.0), strict=True):
        run["spent"] = [{"rollouts": int(at["rollouts"] * scale)} for at in run["spent"]]
    unsure.runs["uniform-4-twice"] = finals(COSTS | {"uniform-4-twice": 1500}).runs["uniform-4-twice"]
    assert reached(unsure, "counted") and not reached(unsure, "counted", surely=True)
    text = render_aim([finals(COSTS, "hard"), unsure])
    assert "are within these bounds on 1: not on `graded`." in text


def test_ours_is_also_beside_right_answers_of_uniform_sampling() -> None:
    """To the target, and further: to most of what they gain themselves."""
    of = finals(COSTS | {"raft-twice": 750})
    text = render_aim([of, finals(COSTS, "hard")])
    assert "| the cheapest RAFT | 0.80 (0.80 to 0.80) | – |" in text
    assert of.target_of("raft-twice") >= of.target
    further = beside(of, "counted", "raft-twice", target_of="raft-twice").text
    assert f"| the same, to 80% of its own gain | {further} | – |" in text


def test_methods_that_learn_nothing_cost_the_same() -> None:
    """The target is where they start: a cost of 0 would give no ratio."""
    flat = finals(COSTS)
    for runs in flat.runs.values():
        for run in runs:
            run["accuracy"] = [0.5] * 11
    assert beside(flat, "counted", "grpo-4").text == "1.00 (1.00 to 1.00)"


def test_settings_at_an_edge_of_what_is_tried_are_said() -> None:
    """Of ours, GRPO, the cheapest uniform sampling and the cheapest RAFT: beyond it something cheaper may be."""
    inside = finals(COSTS)
    inside.settings.update(dict.fromkeys(COSTS, (1e-3, 64)))
    assert render_edges([inside]).endswith("something cheaper may be, for none.")
    edge, hard = finals(COSTS), finals(COSTS, "hard")
    for of in (edge, hard):
        of.settings.update(dict.fromkeys(COSTS, (1e-3, 64)) | {"grpo-4": (3e-3, 64)})
    edge.settings["uniform-4-twice"] = (1e-4, 1024)
    text = render_edges([edge, hard])
    assert "`grpo-4`: rate 0.003 on `graded`, `hard`" in text
    assert "`uniform-4-twice`: rate 0.0001 on `graded` and 1024 prompts on `graded`" in text
