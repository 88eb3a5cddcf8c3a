"""Labels that a grader cannot read are reported with their rows, before a run starts and by prepare-data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest

from openrlhf_ada.cli.train_ppo_ray import label_report, parse
from openrlhf_ada.data.checks import DataError
from openrlhf_ada.data.labels import MOST_SHOWN, report_of, unreadable_labels
from openrlhf_ada.data.prepared import DRAWS
from openrlhf_ada.data.problems import Source, load_problems
from openrlhf_ada.reward.pool import GradingLimits

FLAG = "--data.prompt_dataset"
GOOD = ["4", r"\frac{1}{2}", "four", "(1,2]", r"\text{Evelyn}", "B", "12:30 PM", "a + b + c"]
BAD = [r"\frac{", "?", None]


def write(path: Path, labels: list[Any]) -> str:
    rows = [{"input": f"q{number}", "label": label} for number, label in enumerate(labels)]
    if path.suffix == ".parquet":
        datasets.Dataset.from_list(rows).to_parquet(str(path))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def places(path: str, reward: str = "math") -> list[str]:
    found = unreadable_labels(path, label_key="label", reward=reward, limits=GradingLimits(), flag=FLAG)
    return [one.place for one in found]


@pytest.mark.parametrize(("name", "word"), [("rows.jsonl", "line"), ("rows.parquet", "row")])
def test_unreadable_labels_are_named_by_their_rows(tmp_path: Path, name: str, word: str) -> None:
    path = write(tmp_path / name, [*GOOD, *BAD, "4", "?"])
    assert sorted(places(path)) == sorted(f"{path} {word} {number}" for number in (9, 10, 11, 13))


def test_each_grader_reads_its_own_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", ["4", "1.5", "x"])
    assert places(path, "arithmetic") == [f"{path} line 2", f"{path} line 3"]
    tests = write(tmp_path / "tests.jsonl", [json.dumps({"inputs": ["1"], "outputs": ["1"]}), "{}"])
    assert places(tests, "code") == [f"{tests} line 2"]


def test_a_report_says_where_why_and_what_to_do(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", ["4", *["?"] * 12])
    lines = report_of(path, label_key="label", reward="math", limits=GradingLimits(), flag=FLAG)
    assert len(lines) == MOST_SHOWN + 1
    assert lines[0].startswith(f"{FLAG}: {path} line 2: unusable label: the label '?' ")
    assert "has 12 labels that --reward.remote_url math cannot read, of which the first are shown" in lines[-1]
    assert "prepare-data" in lines[-1]
    assert not report_of(path, label_key="label", reward="math", limits=GradingLimits(), flag=FLAG, limit=1)


def test_what_prepare_data_has_checked_is_not_checked_again(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    datasets.Dataset.from_list([{"label": "?", DRAWS: 16}]).to_parquet(str(path))
    assert not places(str(path))


def test_other_data_sets_are_left_alone(tmp_path: Path) -> None:
    assert not places("org/name")
    assert not places(str(tmp_path))
    with pytest.raises(DataError, match="line 1 is not valid JSON"):
        (tmp_path / "bad.jsonl").write_text("{")
        places(str(tmp_path / "bad.jsonl"))


def test_training_reports_them_before_anything_starts(
    tmp_path: Path, argv_with: Callable[[dict[str, str | None]], list[str]]
) -> None:
    path = write(tmp_path / "rows.jsonl", ["4", "?"] * 4)
    flags: dict[str, str | None] = {FLAG: path, "--reward.remote_url": "math", "--data.max_samples": "4"}
    lines = label_report(*parse(argv_with(flags)))
    assert [line.split(":")[1] for line in lines[:-1]] == [f" {path} line 2", f" {path} line 4"]


def test_problems_know_their_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"question": f"q{i}", "answer": str(i + 1)}) + "\n" for i in range(3)))
    assert [problem.row for problem in load_problems(Source("s", str(path)))] == [1, 2, 3]
