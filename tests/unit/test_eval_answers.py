"""Answers on disk: nothing is sampled twice, nothing of other settings mixed in, nothing without a score counted."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from openrlhf_ada.eval.answers import ANSWERS_FILE, AnswerFile, AnswerRow, OtherSettingsError, answered
from openrlhf_ada.reward.grade import NoScoreError
from openrlhf_ada.reward.returned import number_in

SETTINGS = {"model": "m", "temperature": 1.0}


def row(problem: str, index: int, score: float | None = 1.0) -> AnswerRow:
    return AnswerRow(
        f"text \ud800 {index}", 3, False, score, "", 0.01, 0.5,
        problem=problem, index=index, question="1+1=", prompt="1+1=", label="2", answer=str(index),
    )  # fmt: skip


def test_saved_answers_survive_a_crash(tmp_path: Path) -> None:
    with closing(AnswerFile(tmp_path, SETTINGS)) as file:
        file.add(row("a", 0))
        file.add(row("b", 1))
    path = tmp_path / ANSWERS_FILE
    path.write_bytes(path.read_bytes() + b'{"problem": "a", "ind')
    with closing(AnswerFile(tmp_path, SETTINGS)) as file:
        assert file.missing(["a", "b"], 2) == [("a", 1), ("b", 0)]
        file.add(row("a", 1))
    with closing(AnswerFile(tmp_path, SETTINGS)) as file:
        assert [(r.problem, r.index) for r in file.rows] == [("a", 0), ("b", 1), ("a", 1)]
        assert file.missing(["a"], 3) == [("a", 2)]


def test_answers_with_other_settings_are_refused(tmp_path: Path) -> None:
    AnswerFile(tmp_path, SETTINGS).close()
    with pytest.raises(OtherSettingsError, match=r"holds answers with temperature 1\.0, not 0\.6"):
        AnswerFile(tmp_path, SETTINGS | {"temperature": 0.6})


def test_an_answer_without_a_score_is_asked_for_again(tmp_path: Path) -> None:
    with closing(AnswerFile(tmp_path, SETTINGS)) as file:
        file.add(row("a", 0, None))
        file.add(row("a", 1))
    with closing(AnswerFile(tmp_path, SETTINGS)) as file:
        assert file.missing(["a"], 2) == [("a", 0)]


def test_answers_without_a_score_are_counted_and_left_out() -> None:
    rows = [row("a", 1, 0.0), row("a", 0), row("b", 0, None), row("other", 0)]
    found, without = answered(rows, ["b", "a"], 0.5)
    assert without == 1
    assert [(a.problem, list(a.right)) for a in found] == [("a", [True, False])]


@pytest.mark.parametrize(("above", "right"), [(0.5, [False, False, True, True]), (0.999, [False, False, False, True])])
def test_an_answer_is_right_above_the_limit(above: float, right: list[bool]) -> None:
    rows = [row("a", i, score) for i, score in enumerate((0.01, 0.5, 0.99, 1.0))]
    (found,), _ = answered(rows, ["a"], above, same=lambda answer: f"={answer}")
    assert (found.right, found.scores) == (right, [0.01, 0.5, 0.99, 1.0])
    assert found.groups == ["=0", "=1", "=2", "=3"]


def test_a_row_tells_all_about_its_answer(tmp_path: Path) -> None:
    with closing(AnswerFile(tmp_path, SETTINGS)) as file:
        file.add(row("a", 0))
    stored = json.loads((tmp_path / ANSWERS_FILE).read_text())
    assert list(stored)[:4] == ["problem", "index", "score", "answer"]
    told = {name: stored[name] for name in ("question", "prompt", "label", "answer", "score")}
    assert told == {"question": "1+1=", "prompt": "1+1=", "label": "2", "answer": "0", "score": 1.0}
    assert stored["response"] == "text \ud800 0"


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (0.5, 0.5),
        ([1], 1.0),
        (np.array([[0.25]]), 0.25),
        (None, "returned no score"),
        ([0.0, 1.0], "returned 2 numbers as score of one answer"),
        (float("inf"), "returned the score inf"),
    ],
)
def test_scores_of_all_kinds_are_read(returned: object, expected: float | str) -> None:
    if isinstance(expected, float):
        assert number_in(returned) == expected
    else:
        with pytest.raises(NoScoreError, match=expected):
            number_in(returned)


def test_answers_of_another_version_are_refused(tmp_path: Path) -> None:
    AnswerFile(tmp_path, {}).close()
    (tmp_path / ANSWERS_FILE).write_text('{"problem": "a", "index": 0, "score": 1.0, "verdict_s": 0.1}\n')
    with pytest.raises(OtherSettingsError, match="written by another version"):
        AnswerFile(tmp_path, {})
