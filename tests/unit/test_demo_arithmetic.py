"""The demo's data: true, disjoint, short, graded and the same for the same seed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from openrlhf_ada.demo.arithmetic import LEVELS, SHOTS, write_demo_data
from openrlhf_ada.reward.arithmetic import parse_answer

Rows = list[dict[str, str]]


def read(path: str | Path) -> Rows:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def expression(row: dict[str, str]) -> str:
    return row["input"].removeprefix(SHOTS).removesuffix("=")


def question(row: dict[str, str]) -> str:
    """The same for 3+4 and 4+3."""
    text = expression(row)
    operator = next(o for o in "+*-" if o in text)
    operands = text.split(operator)
    return operator.join(operands if operator == "-" else sorted(operands))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return write_demo_data(tmp_path_factory.mktemp("demo"), num_train=512, num_heldout=150, seed=0)


@pytest.fixture(scope="module")
def train(made: dict[str, Any]) -> Rows:
    return read(made["train"])


@pytest.fixture(scope="module")
def heldout(made: dict[str, Any]) -> Rows:
    return read(made["heldout"])


def test_rows_are_as_many_as_asked_distinct_and_complete(train: Rows, heldout: Rows) -> None:
    assert (len(train), len(heldout)) == (512, 150)
    rows = train + heldout
    assert len({row["id"] for row in rows}) == len(rows)
    assert all(set(row) == {"input", "label", "datasource", "id"} for row in rows)
    assert all(row["id"] == f"{row['datasource']}/{expression(row)}" for row in rows)


def test_no_heldout_question_is_trained_or_shown(train: Rows, heldout: Rows) -> None:
    assert not {question(row) for row in train} & {question(row) for row in heldout}
    shown = {question({"input": SHOTS + line.split("=")[0] + "="}) for line in SHOTS.splitlines()}
    assert not {question(row) for row in train + heldout} & shown


def test_answers_are_right(train: Rows, heldout: Rows) -> None:
    for row in train + heldout:
        assert parse_answer(row["label"] + "\n") == eval(expression(row))


def test_prompts_are_short_and_answers_shorter(train: Rows, heldout: Rows) -> None:
    # SmolLM2's tokenizer makes one token of each of these characters.
    assert max(len(row["input"]) for row in train + heldout) <= 24
    assert max(len(row["label"]) for row in train + heldout) <= 3
    assert all(row["input"].startswith(SHOTS) for row in train + heldout)


def test_levels_occur_about_as_often_as_weighted(made: dict[str, Any]) -> None:
    levels = made["levels"]
    assert set(levels) == {level.name for level in LEVELS}
    assert sum(level.weight for level in LEVELS) == pytest.approx(1.0)
    for level in LEVELS:
        # Small levels run out of expressions; the others then give more.
        assert 0.5 * level.weight <= levels[level.name]["train"] / 512 <= 1.5 * level.weight
        assert 0.5 * level.weight <= levels[level.name]["heldout"] / 150 <= 1.5 * level.weight


def test_levels_are_mixed_within_the_file(train: Rows) -> None:
    assert len(Counter(row["datasource"] for row in train[:48])) == len(LEVELS)


def test_same_seed_same_files_other_seed_other_split(made: dict[str, Any], heldout: Rows, tmp_path: Path) -> None:
    same = write_demo_data(tmp_path / "same", num_train=512, num_heldout=150, seed=0)
    assert Path(same["train"]).read_bytes() == Path(made["train"]).read_bytes()
    assert Path(same["heldout"]).read_bytes() == Path(made["heldout"]).read_bytes()
    other = write_demo_data(tmp_path / "other", num_train=20, num_heldout=150, seed=1)
    assert {row["id"] for row in read(other["heldout"])} != {row["id"] for row in heldout}


@pytest.mark.parametrize("numbers", [{"num_train": 0}, {"num_heldout": -1}])
def test_numbers_below_one_are_refused(numbers: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        write_demo_data(tmp_path, **{"num_train": 10, "num_heldout": 10, "seed": 0, **numbers})


def test_more_rows_than_expressions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"num_train is 99999, and there are [0-9]+ expressions"):
        write_demo_data(tmp_path, num_train=99_999, num_heldout=10, seed=0)
    assert not list(tmp_path.iterdir())
