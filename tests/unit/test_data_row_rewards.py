"""`prepare-data` and `eval` with a grader for each row, and several rewards of which the first is the score."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openrlhf_ada.cli import evaluate, prepare_data
from openrlhf_ada.cli.sample_answers import ProblemSet
from openrlhf_ada.cli.sampling_flags import scoring_of
from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.data.files import DataError
from openrlhf_ada.data.prepared import uniform_labels
from openrlhf_ada.data.problems import Problem
from openrlhf_ada.reporting.counting import Counting
from openrlhf_ada.reward.mixed import label_of


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def clean(out: Path, *words: str) -> tuple[str, list[Problem], list[Any]]:
    """(what grades, problems that are kept, rows that are left out)."""
    args = prepare_data.build_parser().parse_args([*words, "--model", "m", "--out", str(out)])
    out.mkdir(exist_ok=True)
    sources = [prepare_data.source_of(spec, args) for spec in args.source]
    reward, rewards = prepare_data.scoring_for(sources, args)
    problems, _, dropped = prepare_data.clean(sources, reward, rewards, args, Counting())
    return reward, problems, dropped


def suites(*words: str) -> list[ProblemSet]:
    args = evaluate.build_parser().parse_args(["--model", "m", *words])
    return evaluate.load_suites(evaluate.sources_of(args), args, *scoring_of(args), Counting())


@pytest.mark.slow
def test_labels_are_checked_by_the_grader_of_their_row(tmp_path: Path) -> None:
    path = write(
        tmp_path / "rows.jsonl",
        {"input": "a", "label": "1/2", "reward": "math"},
        {"input": "b", "label": "1/2", "reward": "arithmetic"},
        {"input": "c", "label": {"inputs": ["1"], "outputs": ["1"]}, "reward": "code"},
        {"input": "a", "label": "0.5", "reward": "math"},
    )
    reward, problems, dropped = clean(tmp_path / "out", path, "--reward", "mixed")
    assert reward == "mixed"
    assert [(p.question, p.reward) for p in problems] == [("a", "math"), ("c", "code")]
    assert [one.place for one in dropped] == ["line 4", "line 2"]
    assert "label" not in dropped[0].cause and "label" in dropped[1].cause


@pytest.mark.slow
def test_sources_of_several_kinds_are_prepared_together(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", {"input": "a", "label": "1", "reward": 0.5})
    reward, problems, _ = clean(tmp_path / "out", path, "reasoning_gym:chain_sum", "--task_size", "2")
    assert reward == "mixed"
    assert [p.reward for p in problems] == ["math", "reasoning_gym", "reasoning_gym"]
    # The file for training holds both in the label, and can be evaluated.
    labels = uniform_labels(problems)
    again = write(tmp_path / "again.jsonl", *({"input": p.question, "label": labels[p.id]} for p in problems))
    (suite,) = suites("--benchmark", again, "--reward", "mixed")
    assert [(p.label, p.reward) for p in suite.problems.values()] == [(p.label, p.reward) for p in problems]


@pytest.mark.parametrize(
    "run", [lambda p: suites("--benchmark", p, "--reward", "mixed"), None], ids=["eval", "prepare"]
)
def test_unknown_graders_are_refused_and_never_left_out(tmp_path: Path, run: Any) -> None:
    rows = [{"input": "a", "label": "1", "reward": "math"}, {"input": "b", "label": "1", "reward": "maht"}]
    path = write(tmp_path / "rows.jsonl", *rows)
    run = run or (lambda p: clean(tmp_path / "out", p, "--reward", "mixed"))
    with pytest.raises(
        DataError, match=r"rows\.jsonl line 2: the reward 'maht' is not known\. The nearest name is ma"
    ):
        run(path)


def test_a_file_has_no_grader_by_itself_and_a_benchmark_has(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", {"question": "a", "answer": "1"})
    with pytest.raises(DataError, match=r"names no grader in the column 'reward'.*--reward_key.*--reward_map"):
        suites("--benchmark", path, "--reward", "mixed")
    (suite,) = suites("--benchmark", path, "--reward", "mixed", "--reward_map", f"{path}=math")
    assert (suite.reward, next(iter(suite.problems.values())).reward) == ("mixed", "math")
    (suite,) = suites("--benchmark", f"gsm8k={path}", "--reward", "mixed")
    assert next(iter(suite.problems.values())).reward == "math"


def test_the_first_reward_grades(tmp_path: Path) -> None:
    style = tmp_path / "style.py"
    style.write_text("def brevity(response, label): ...\n")
    path = write(tmp_path / "rows.jsonl", {"question": "a", "answer": "1"})
    (suite,) = suites("--benchmark", path, "--reward", f"math,{style}:brevity")
    assert suite.reward == "math"
    (suite,) = suites("--benchmark", path, "--reward", f"{style}:brevity")
    (key,) = suite.problems
    assert replace(suite, prompts={key: "a"}).asked(key, 0).label == label_of(f"{style}:brevity", "1")
    with pytest.raises(ConfigError, match=r"--reward is 'maths'.*The nearest name is math"):
        suites("--benchmark", path, "--reward", "maths")
    with pytest.raises(ConfigError, match=r"--reward_key is 'x': rows name their grader with --reward mixed only"):
        suites("--benchmark", path, "--reward", "math", "--reward_key", "x")
