"""Several rewards of one answer: the first is the score, the reward is their weighted sum."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openrlhf_ada.reward.grade import NoScoreError
from openrlhf_ada.reward.mixed import grade, label_of, named_label
from openrlhf_ada.reward.reward_function import ARITHMETIC, COMBINED, Grading, PooledReward, Shaping, reward_files
from openrlhf_ada.reward.weighted_sum import CombinedReward, short_name

STYLE = """
from openrlhf_ada.reward.grade import Grade


def brevity(response, label):
    return Grade(0.25 if len(response) > 10 else 1.0, "long")


def fails(response, label):
    raise ValueError("no opinion")
"""
HOSTS = """
import torch


def reward_func(queries, prompts, labels):
    return {"rewards": torch.tensor([-2.0]), "scores": torch.tensor([0.5]), "extra_logs": {}}
"""


@pytest.fixture
def style(tmp_path: Path) -> str:
    path = tmp_path / "style.py"
    path.write_text(STYLE)
    return str(path)


@pytest.fixture
def combined() -> Iterator[CombinedReward]:
    reward = CombinedReward()
    yield reward
    for part in reward.parts:
        if isinstance(part, PooledReward):
            part.close()


def ask(reward: CombinedReward, response: str, label: Any = "4") -> tuple[float, float]:
    """(score, reward)."""
    found = reward([f"2+2={response}"], ["2+2="], [label])
    return float(found["scores"][0]), float(found["rewards"][0])


@pytest.mark.slow
def test_the_first_is_the_score_and_all_are_added_up(combined: CombinedReward, style: str) -> None:
    combined.configure(["math", f"{style}:brevity"], Grading(workers=1, weights=[1.0, 0.5]))
    assert ask(combined, "4") == (1.0, 1.5)
    assert ask(combined, "the answer is 4") == (1.0, 1.125)
    assert ask(combined, "5") == (0.0, 0.5)
    logs = combined(["2+2=5"], ["2+2="], ["4"])
    assert {name: float(value[0]) for name, value in logs["extra_logs"].items()} == {
        "reward_math": 0.0,
        "reward_style_brevity": 1.0,
    }
    assert [g.cause for g in logs["grades"]] == ["wrong answer"]


@pytest.mark.slow
def test_other_rewards_beside_mixed_get_the_labels_own_part(combined: CombinedReward, tmp_path: Path) -> None:
    path = tmp_path / "same.py"
    path.write_text(
        "from openrlhf_ada.reward.grade import Grade\n\n\n"
        "def same(response, label):\n    return Grade(float(response == label))\n"
    )
    combined.configure(["mixed", f"{path}:same", "arithmetic"], Grading(workers=1, weights=[1.0, 0.5, 0.25]))
    assert ask(combined, "4", label_of("math", "4")) == (1.0, 1.75)


@pytest.mark.slow
def test_files_of_openrlhf_can_be_added(combined: CombinedReward, tmp_path: Path) -> None:
    (tmp_path / "hosts.py").write_text(HOSTS)
    combined.configure(["math", str(tmp_path / "hosts.py")], Grading(workers=1, weights=[1.0, 0.1]))
    score, reward = ask(combined, "4")
    assert (score, reward) == (1.0, pytest.approx(0.8))


@pytest.mark.slow
def test_shaping_is_added_once(combined: CombinedReward, style: str) -> None:
    grading = Grading(workers=1, weights=[1.0, 0.5], shaping=Shaping("boxed", 0.25))
    combined.configure(["math", f"{style}:brevity"], grading)
    assert ask(combined, r"\boxed{4}") == (1.0, 1.75)


@pytest.mark.slow
def test_one_reward_without_a_score_leaves_the_answer_without(combined: CombinedReward, style: str) -> None:
    combined.configure(["math", f"{style}:fails"], Grading(workers=1, weights=[1.0, 0.5]))
    with pytest.raises(NoScoreError, match="ValueError: no opinion"):
        ask(combined, "4")


def test_one_function_of_a_file_needs_no_weights(combined: CombinedReward, style: str) -> None:
    combined.configure([f"{style}:brevity"], Grading(workers=1))
    assert ask(combined, "4") == (1.0, 1.0)
    with pytest.raises(ValueError, match="1 rewards have 2 weights"):
        CombinedReward().configure(["math"], Grading(weights=[1.0, 2.0]))


def test_engines_load_one_file_or_servers(style: str) -> None:
    assert reward_files(["arithmetic"]) == [str(ARITHMETIC)]
    assert reward_files(["own.py"]) == ["own.py"]
    assert reward_files(["http://a", "http://b"]) == ["http://a", "http://b"]
    others = (["math"], ["mixed"], ["math", "own.py"], ["own.py:grade"])
    assert [reward_files(names) for names in others] == [[str(COMBINED)]] * len(others)
    assert [short_name(name) for name in ("math", "/a/b.py", "/a/b.py:c")] == ["math", "b", "b_c"]


def test_a_label_names_its_grader(style: str) -> None:
    assert named_label(label_of("math", ["1", "2"])) == ("math", ["1", "2"])
    assert [named_label(label) for label in ("4", 4, '{"reward": "x"', '{"reward": "a", "b": 1}')] == [None] * 4
    assert grade("4", label_of("math", "4")).score == 1.0
    assert grade("4", label_of(f"{style}:brevity", "4")).score == 1.0
    with pytest.raises(ValueError, match="names no grader"):
        grade("4", "4")
    with pytest.raises(ValueError, match="there is no grader 'maths'"):
        grade("4", label_of("maths", "4"))
