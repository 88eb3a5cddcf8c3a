"""Problems from every kind of source: stable ids, recognised columns, copies, contradictions and bad labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.data.benchmarks import BENCHMARKS, DATASETS, find_benchmark
from openrlhf_ada.data.files import DataError
from openrlhf_ada.data.labels import LabelChecks
from openrlhf_ada.data.left_out import LeftOut
from openrlhf_ada.data.prepared import (
    Difficulty,
    check_counts,
    parse_band,
    rows_of,
    uniform_labels,
    write_card,
    write_parquet,
)
from openrlhf_ada.data.problems import Problem, Source, deduplicated, load_problems, problem_id
from openrlhf_ada.reward.pool import GradingLimits

DAPO_ROW = {
    "data_source": "math_dapo",
    "prompt": [{"role": "user", "content": "Solve: 1+1. Put it after Answer:"}],
    "reward_model": {"ground_truth": "2", "style": "rule"},
}
OPENR1_ROW = {"problem": "What is 1+1?", "answer": "2", "solution": "Clearly 2.", "source": "olympiads"}


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    if path.suffix == ".parquet":
        datasets.Dataset.from_list(rows).to_parquet(str(path))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def problem(question: str, label: Any) -> Problem:
    return Problem(problem_id(question, label), question, label, "test")


@pytest.mark.parametrize("kind", ["rows.jsonl", "rows.parquet"])
@pytest.mark.parametrize(
    ("row", "question", "label"),
    [
        (OPENR1_ROW, "What is 1+1?", "2"),
        (DAPO_ROW, DAPO_ROW["prompt"], "2"),
        ({"question": "Q", "answer": "Thus\n#### 42"}, "Q", "42"),
        ({"input": "Q", "label": "x"}, "Q", "x"),
        ({"question": "Q", "final_answer": ["1", "2"]}, "Q", ["1", "2"]),
    ],
)
def test_columns_of_known_data_sets_are_recognised(
    tmp_path: Path, kind: str, row: dict[str, Any], question: Any, label: Any
) -> None:
    (loaded,) = load_problems(Source("s", write(tmp_path / kind, [row])))
    assert (loaded.question, loaded.label) == (question, label)
    assert loaded.id == problem_id(question, label)


def test_the_named_data_sets_fit_these_columns(tmp_path: Path) -> None:
    for name, row in (("openr1-math", OPENR1_ROW), ("dapo-17k", DAPO_ROW)):
        source = DATASETS[name]
        path = write(tmp_path / f"{name}.jsonl", [row])
        assert load_problems(Source(name, path, "train", source.question_key, source.label_key))[0].label == "2"


def test_ids_do_not_depend_on_file_or_place(tmp_path: Path) -> None:
    rows = [{"question": f"Q{i}", "answer": str(i)} for i in range(3)]
    a = load_problems(Source("a", write(tmp_path / "a.jsonl", rows)))
    b = load_problems(Source("b", write(tmp_path / "b.parquet", rows[::-1])))
    assert [p.id for p in a] == [p.id for p in reversed(b)]


@pytest.mark.parametrize(
    "row", [{"question": " ", "answer": "1"}, {"question": "Q", "answer": ""}, {"question": "Q", "answer": None}]
)
def test_an_unfit_row_is_named_or_left_out(tmp_path: Path, row: dict[str, Any]) -> None:
    path = write(tmp_path / "rows.jsonl", [{"question": "Q", "answer": "1"}, row])
    with pytest.raises(DataError, match=r"rows\.jsonl line 2: '(question|answer)' is "):
        load_problems(Source("s", path))
    unfit: list[LeftOut] = []
    assert len(load_problems(Source("s", path), unfit=unfit)) == 1
    assert [(one.source, one.place) for one in unfit] == [(path, "line 2")]
    assert unfit[0].row == row


def test_missing_columns_and_files_say_what_to_do(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"text": "Q", "answer": "1"}])
    with pytest.raises(DataError, match=r"none of the columns is known; there are text, answer: set --input_key"):
        load_problems(Source("s", path))
    with pytest.raises(DataError, match=r"no column 'gold'; there are text, answer: set --label_key"):
        load_problems(Source("s", path, question_key="text", label_key="gold"))
    with pytest.raises(DataError, match="does not exist"):
        load_problems(Source("s", str(tmp_path / "none.jsonl")))


def test_without_a_hub_the_local_way_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(datasets, "load_dataset", away)
    with pytest.raises(DataError, match=r"HuggingFaceH4/MATH-500 cannot be loaded.*math500=/path/to/file"):
        load_problems(BENCHMARKS["math500"])


def test_copies_and_contradictions_are_dropped() -> None:
    rows = [problem("1 + 1?", "2"), problem("1  + 1?.", "2"), problem("x", "1"), problem("x.", "2"), problem("y", "1")]
    kept, copies, contradictory = deduplicated(rows, lambda label, other: False)
    assert [p.question for p in kept] == ["1 + 1?", "y"]
    assert ([p.question for p in copies], [p.question for p in contradictory]) == (["1  + 1?."], ["x", "x."])


def test_similar_questions_are_kept_apart() -> None:
    rows = [problem("Find n!", "1"), problem("Find n", "2"), problem("5 MW", "1"), problem("5 mW", "2")]
    kept, copies, contradictory = deduplicated(rows, lambda label, other: False)
    assert (kept, copies, contradictory) == (rows, [], [])


@pytest.mark.slow
def test_equal_labels_do_not_contradict() -> None:
    rows = [problem("a", "1/2"), problem("a", r"\frac{1}{2}"), problem("b", "1"), problem("b", "2")]
    with LabelChecks("math", GradingLimits()) as checks:
        kept, copies, contradictory = deduplicated(rows, checks.same)
    assert [p.label for p in kept + copies] == ["1/2", r"\frac{1}{2}"]
    assert [p.question for p in contradictory] == ["b", "b"]


def unverified(problems: list[Problem], reward: str) -> set[str]:
    seen: list[None] = []
    with LabelChecks(reward, GradingLimits()) as checks:
        found = checks.unverified(problems, lambda: seen.append(None))
    assert len(seen) == len(problems)
    return set(found)


@pytest.mark.slow
def test_reasoning_gym_reference_answers_verify() -> None:
    problems = load_problems(Source("s", "reasoning_gym:chain_sum", size=5, seed=1))
    assert len({p.id for p in problems}) == 5
    assert problems == load_problems(Source("s", "reasoning_gym:chain_sum", size=5, seed=1))
    # Of these, one has many right answers and names none, another compares tuples.
    others = [load_problems(Source("s", f"reasoning_gym:{task}", size=1)) for task in ("graph_color", "arc_agi")]
    assert not unverified([*problems, *others[0], *others[1]], "reasoning_gym")
    with pytest.raises(DataError, match="no task 'none'"):
        load_problems(Source("s", "reasoning_gym:none"))


@pytest.mark.slow
def test_labels_that_fail_their_verifier_are_found() -> None:
    good = [problem("a", "4"), problem("b", r"\frac{1}{2}"), problem("c", ["1", "2"]), problem("d", r"\text{yes}")]
    bad = [problem("e", r"\frac{"), problem("f", "?")]
    assert unverified([*good, *bad], "math") == {p.id for p in bad}


@pytest.mark.slow
def test_tests_that_cannot_be_run_are_found() -> None:
    good, bad = problem("a", {"inputs": ["1"], "outputs": ["1"]}), problem("b", {"inputs": ["1"]})
    assert unverified([good, bad], "code") == {bad.id}


# -- difficulty -------------------------------------------------------------------------------------------------------


def difficulty(positives: int, draws: int = 16) -> Difficulty:
    return Difficulty(problem(f"{positives} of {draws}", "1"), draws, positives, 10.0, 0.0)


@pytest.mark.parametrize(
    ("band", "kept"), [("hard", [0, 1, 2]), ("easy", [0, 1, 2, 5]), ("learnable", [1, 2, 5, 8, 15])]
)
def test_bands(band: str, kept: list[int]) -> None:
    counts = [0, 1, 2, 5, 8, 15, 16]
    low, high = parse_band(band)
    assert [c for c in counts if low <= difficulty(c).pass_rate <= high] == kept
    assert parse_band("0.1:0.9") == (0.1, 0.9)


@pytest.mark.parametrize("text", ["", "medium", "0.9:0.1", "-1:1", "0:2", "0.5", "a:b", "0:1:2", "nan:1"])
def test_bad_bands_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--band"):
        parse_band(text)


@pytest.mark.slow
def test_the_file_is_one_that_training_reads(tmp_path: Path) -> None:
    everything = [difficulty(c) for c in (0, 4, 16)]
    labels = uniform_labels([d.problem for d in everything])
    inputs = {d.problem.id: d.problem.question for d in everything}
    path = write_parquet(rows_of(everything, inputs, labels), tmp_path / "train.parquet")
    rows = datasets.load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(tmp_path))
    assert rows["ada_positives"][:] == [0, 4, 16]
    assert rows["pass_rate"][:] == [0.0, 0.25, 1.0]
    check_counts(str(path), flag="--data.prompt_dataset")
    card = write_card(
        tmp_path, kept=everything[1:], everything=everything, facts={"model": "m"}, flags="train"
    ).read_text()
    assert "# 2 problems" in card and "| 0 (never right) | 1 | 0 |" in card


def test_labels_of_a_file_have_one_type() -> None:
    assert list(uniform_labels([problem("a", "1"), problem("b", ["2", "3"])]).values()) == [["1"], ["2", "3"]]
    assert list(uniform_labels([problem("a", 1), problem("b", {"x": 1})]).values()) == ["1", '{"x": 1}']


def test_counts_are_only_in_prepared_files(tmp_path: Path) -> None:
    plain = write(tmp_path / "plain.parquet", [{"input": "a"}])
    for path in (plain, "data.jsonl"):
        with pytest.raises(DataError, match=r"ada_draws.*openrlhf-ada prepare-data"):
            check_counts(path, flag="--data.prompt_dataset")


# -- names ------------------------------------------------------------------------------------------------------------


def test_benchmarks_by_name_copy_task_and_file() -> None:
    assert find_benchmark("math500").path == "HuggingFaceH4/MATH-500"
    copy = find_benchmark("math500=/data/m.jsonl")
    assert (copy.name, copy.path, copy.question_key) == ("math500", "/data/m.jsonl", None)
    assert find_benchmark("reasoning_gym:countdown").reward == "reasoning_gym"
    assert find_benchmark("data/my_set.jsonl") == Source("my_set", "data/my_set.jsonl"), "no grader is known of it"
    with pytest.raises(DataError, match=r"expected one of math500.*Did you mean math500"):
        find_benchmark("math5000")
