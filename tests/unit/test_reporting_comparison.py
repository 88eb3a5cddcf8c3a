"""Several runs beside each other: seeds of one configuration are one curve with an interval."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from recorded_runs import ATTACK, CONFIG, make_run

from openrlhf_ada.reporting.comparison import different_flags, group_runs, write_comparison
from openrlhf_ada.reporting.run_record import Run


def with_flags(seed: int, **ada: Any) -> dict[str, Any]:
    return CONFIG | {"train": {"seed": seed}, "ada": CONFIG["ada"] | ada}


def three_runs(folder: Path) -> list[Run]:
    """Two seeds of `balance`, one run of `pos`."""
    return [
        make_run(folder / "a", steps=3, evaluations=(0, 2), config=with_flags(1), accuracy=0.2),
        make_run(folder / "b", steps=2, evaluations=(0, 2), config=with_flags(2), accuracy=0.4),
        make_run(folder / "c", steps=2, evaluations=(0, 2), config=with_flags(1, exit="pos", run_dir="runs/c")),
    ]


def page_of(runs: list[Run], folder: Path) -> str:
    write_comparison(runs, folder / "out.html")
    return (folder / "out.html").read_text()


def charts_of(page: str) -> dict[str, Any]:
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    return json.loads(data.group(1))["charts"]


def test_seeds_are_one_configuration_and_output_folders_none(tmp_path: Path) -> None:
    configurations = group_runs(three_runs(tmp_path))
    assert [c.label for c in configurations] == ["exit balance (2 runs)", "exit pos"]
    assert [len(c.runs) for c in configurations] == [2, 1]
    assert different_flags(configurations) == ["ada.exit"]


def test_numbers_are_the_same_with_and_without_a_point(tmp_path: Path) -> None:
    """A repetition by --config records 1.0 where the first run had the default 1."""
    numbers = ({"gamma": 1, "range": [0, 1]}, {"gamma": 1.0, "range": [0.0, 1.0]}, {"gamma": 0.5, "range": [0, 1]})
    runs = [
        make_run(tmp_path / name, steps=1, config=with_flags(seed) | {"x": flags})
        for name, seed, flags in zip("abc", (1, 2, 3), numbers, strict=True)
    ]
    assert [c.label for c in group_runs(runs)] == ["gamma 1 (2 runs)", "gamma 0.5"]


def test_curve_of_seeds_is_their_mean_with_student_t(tmp_path: Path) -> None:
    """At step 0 accuracies .2 and .4: mean .3, half-width 12.7 x .1 (sd .141 / sqrt 2)."""
    charts = charts_of(page_of(three_runs(tmp_path), tmp_path))
    seeds, single = charts["accuracy"]["series"]
    assert seeds["x"]["steps"] == [0, 2] and seeds["y"][0] == pytest.approx(0.3)
    assert seeds["high"][0] - seeds["y"][0] == pytest.approx(12.7062 * 0.1, rel=1e-4)
    assert single["y"] == [0.25, 0.45] and single["low"] == [0.2, 0.4], "one run: its interval over prompts"
    assert seeds["x"]["rollouts"] == [0, 12] and set(seeds["x"]) == {"steps", "rollouts", "tokens", "seconds"}
    assert charts["score"]["series"][0]["x"]["steps"] == [1, 2], "the shorter one has two steps"


def test_page_has_figures_and_flags_of_all(tmp_path: Path) -> None:
    text = page_of(three_runs(tmp_path), tmp_path)
    assert "3 runs, 2 configurations" in text
    assert (
        '<td class="left wide">ada.exit</td><td class="left wide">balance</td><td class="left wide">pos</td>' in text
    )
    assert "20.0% ±5.0" in text and "40.0% ±5.0" in text


def test_many_differences_are_named_by_their_runs(tmp_path: Path) -> None:
    long = "/a/very/long/path/to/some/policy/that/fits/into/no/legend"
    configs = [with_flags(1), with_flags(1, policy=long + "/1"), with_flags(1, policy=long + "/2")]
    runs = [make_run(tmp_path / name, steps=1, config=c) for name, c in zip("abc", configs, strict=True)]
    assert [c.label for c in group_runs(runs)] == ["a", "b", "c"]


def test_what_makes_it_unfair_is_said(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "a", steps=1, config=CONFIG | {"reward": {"remote_url": "math"}}),
        make_run(tmp_path / "b", steps=1, config=CONFIG | {"reward": {"remote_url": "code"}}),
        make_run(tmp_path / "c", steps=1, config=CONFIG | {"reward": {"remote_url": "code"}}),
    ]
    text = page_of(runs, tmp_path)
    assert "The runs differ in --reward.remote_url" in text
    assert "runs have the same seed" in text


def test_run_given_twice_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", steps=1)
    with pytest.raises(ValueError, match="is given twice"):
        group_runs([run, run])


def test_flags_of_runs_are_text(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, steps=1, config=with_flags(1, exit=f"{name}{ATTACK}")) for name in "ab"]
    text = page_of(runs, tmp_path)
    assert "<script>alert" not in text and "<img" not in text


def test_runs_without_pools_are_compared_by_what_they_have(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "a", steps=2, evaluations=(2,), off=True),
        make_run(tmp_path / "b", steps=0, config=with_flags(1, exit="pos")),
    ]
    charts = charts_of(page_of(runs, tmp_path))
    assert list(charts) == ["accuracy"]
    assert math.isclose(charts["accuracy"]["series"][0]["y"][0], 0.45)
