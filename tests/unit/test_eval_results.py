"""Tables, JSON and comparisons of results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from openrlhf_ada.eval.measures import Answered
from openrlhf_ada.eval.results import (
    ModelResults,
    accuracy_rows,
    detail_rows,
    difference_lines,
    differences,
    write_results,
)

NAN = float("nan")


def problem(name: str, *scores: float, above: float = 0.999) -> Answered:
    n = len(scores)
    groups = ["right" if score > above else "wrong" for score in scores]
    return Answered(scores, [NAN] * n, [False] * n, [s > above for s in scores], name, groups)


def results(model: str, *problems: Answered) -> ModelResults:
    found = ModelResults(model)
    found.add("life", problems, len(problems[0].scores), [1, 2], no_score=1)
    return found


def test_partial_credit_is_in_the_mean_score_only() -> None:
    found = results("m", problem("a", 0.99, 0.99), problem("b", 1.0, 0.0))
    figures = found.estimates()["life"]
    assert (figures["avg@2"].mean, figures["score"].mean) == (0.25, pytest.approx(0.745))


def test_the_table_has_intervals_of_everything() -> None:
    header, row = accuracy_rows([results("m", problem("a", 1.0, 1.0), problem("b", 1.0, 0.0))], 2, 2)
    assert header == ["benchmark", "model", "problems", "avg@2", "pass@2", "maj@2", "mean score"]
    assert row[:3] == ["life", "m", "2"]
    assert [cell.partition(" ")[0] for cell in row[3:]] == ["75.0", "100.0", "75.0", "75.0"]
    assert all("[" in cell for cell in row[3:])
    # both problems were solved: z^2 / (2 + z^2) of them may not be
    assert row[4] == "100.0 [34.2, 100.0]"


def test_unknown_lengths_have_a_dash() -> None:
    header, row = detail_rows([results("m", problem("a", 1.0, 0.0))], 2)
    assert dict(zip(header, row, strict=True)) == {
        "benchmark": "life",
        "model": "m",
        "equal@2": "0.0",
        "tokens": "-",
        "cut off": "0.0",
        "entropy": "-",
        "no score": "1",
    }


def test_a_model_against_itself() -> None:
    problems = [problem(str(i), float(i % 2), float(i % 3 == 0)) for i in range(500)]
    first, same = results("m", *problems), results("m again", *problems)
    (line,) = difference_lines([first, same])
    assert line == "life: m again - m = +0.0 points [-0.8, +0.8]; 0 of 500 problems differ"


def test_only_shared_problems_are_compared() -> None:
    first = results("m", problem("a", 1.0, 1.0), problem("b", 0.0, 0.0))
    other = results("o", problem("b", 1.0, 1.0), problem("c", 0.0, 0.0))
    found = differences(first, other)["life"]
    assert (found.mean, found.num_problems, found.num_differing) == (1.0, 1, 1)


def test_scores_beyond_one_have_no_score_interval() -> None:
    """Rewards that are not ours may give any number."""
    found = results("m", problem("a", -3.0, 5.0), problem("b", 2.0, 2.0)).estimates()["life"]
    score = found["score"]
    # Student's t with one degree of freedom.
    assert (score.mean, score.low) == (1.5, pytest.approx(1.5 - 12.7062 * 0.5)) and score.high == pytest.approx(7.8531)
    assert found["avg@2"].mean == 0.75


def test_the_page_has_tables_lines_and_curves_over_k(tmp_path: Path) -> None:
    """Of hostile names too. A group of one has no spread, so it is not drawn."""
    both = [results("<script>a", problem("p", 1.0, 0.0)), results("b", problem("p", 1.0, 1.0))]
    rows, lines = accuracy_rows(both, 2, 2), difference_lines(both)
    page = write_results(both, "title", [rows], lines, tmp_path / "results.html").read_text()
    assert "<script>a" not in page and "&lt;script&gt;a" in page and rows[1][3] in page
    found = re.search(r'id="data">(.*?)</script>', page)
    assert found is not None
    charts = json.loads(found.group(1))["charts"]
    assert {name: chart["categories"] for name, chart in charts.items()} == {
        "pass@life": ["1", "2"],
        "all_equal@life": ["2"],
    }
    assert [series["y"] for series in charts["pass@life"]["series"]] == [[0.5, 1], [1, 1]]
