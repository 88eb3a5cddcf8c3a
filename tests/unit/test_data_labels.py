"""Labels that a grader cannot read are found with their positions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openrlhf_ada.data.labels import read_labels
from openrlhf_ada.data.problems import Source, load_problems
from openrlhf_ada.reward.mixed import label_of
from openrlhf_ada.reward.pool import GradingLimits

GOOD = ["4", r"\frac{1}{2}", "four", "(1,2]", r"\text{Evelyn}", "B", "12:30 PM", "a + b + c"]
BAD = [r"\frac{", "?", None]


def positions(labels: list[Any], reward: str = "math") -> list[int]:
    return sorted(read_labels(labels, reward, GradingLimits()))


@pytest.mark.slow
def test_unreadable_labels_are_found_wherever_they_stand() -> None:
    assert positions([*GOOD, *BAD, "4", "?"]) == [8, 9, 10, 12]
    assert not positions([])


@pytest.mark.slow
def test_each_grader_reads_its_own_labels() -> None:
    assert positions(["4", "1.5", "x"], "arithmetic") == [1, 2]
    assert positions([json.dumps({"inputs": ["1"], "outputs": ["1"]}), "{}"], "code") == [1]


@pytest.mark.slow
def test_the_cause_is_the_graders() -> None:
    (cause,) = read_labels(["?"], "math", GradingLimits()).values()
    assert cause.startswith("unusable label: the label '?' ")


@pytest.mark.slow
def test_labels_with_a_grader_each_are_read_by_it(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("def grade(response, label):\n    raise ValueError('no answer')\n")
    labels = [label_of("math", "4"), label_of("arithmetic", "4.5"), label_of(f"{own}:grade", "x"), "4"]
    # What a user's function takes for an answer is not known.
    assert positions(labels, "mixed") == [1, 3]


@pytest.mark.parametrize("blank", ["", "\n\n"])
def test_problems_know_their_lines(tmp_path: Path, blank: str) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [json.dumps({"question": f"q{i}", "answer": str(i + 1)}) for i in range(3)]
    path.write_text(blank + "\n".join(rows))
    first = blank.count("\n") + 1
    found = [problem.place for problem in load_problems(Source("s", str(path)))]
    assert found == [f"line {first}", f"line {first + 1}", f"line {first + 2}"]
