"""What counts as right, and the answer that is found in a response."""

from __future__ import annotations

import pytest

from openrlhf_ada.config.defaults import FULL_MARKS
from openrlhf_ada.reward.extraction import VOTING, answer_name, extracted
from openrlhf_ada.reward.reasoning import import_reasoning_gym, to_label
from openrlhf_ada.reward.reasoning_answers import grade
from openrlhf_ada.reward.reward_function import MIXED, NAMED
from openrlhf_ada.reward.right import default_threshold


def entry_of(task: str) -> dict[str, object]:
    return import_reasoning_gym().create_dataset(task, size=1, seed=1)[0]


def test_a_board_with_one_wrong_cell_is_not_right() -> None:
    entry = entry_of("game_of_life")
    label, right = to_label(entry), str(entry["answer"])
    position = right.index("0")
    wrong = right[:position] + "1" + right[position + 1 :]
    assert grade(wrong, label).score == pytest.approx(0.99)
    assert grade(wrong, label).score < FULL_MARKS < grade(right, label).score == 1.0


def test_rounding_as_asked_is_right() -> None:
    """polynomial_equations wants four decimals, which costs up to a thousandth of the score."""
    gym = import_reasoning_gym()
    data = gym.create_dataset("polynomial_equations", size=20, seed=5)
    entry = next(entry for entry in data if entry["answer"] == "1.2727")
    label = to_label(entry)
    assert grade("1.2726", label).score == 1.0 > FULL_MARKS > grade("1.272", label).score > 0.99


@pytest.mark.parametrize("reward", [*NAMED, MIXED])
def test_training_takes_full_marks_for_positive(reward: str) -> None:
    assert default_threshold(reward) == FULL_MARKS


@pytest.mark.parametrize("reward", ["reward.py", "own.py:grade", "http://localhost:1"])
def test_the_scale_of_other_rewards_is_not_known(reward: str) -> None:
    assert default_threshold(reward) is None


@pytest.mark.parametrize(
    ("reward", "response", "answer"),
    [
        ("math", r"So it is \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("math", "The answer is therefore 0.5.", "0.5"),
        ("math", "<think>17?</think><answer>34</answer>", "34"),
        ("math", "", ""),
        ("reasoning_gym", "<answer> 7 </answer>", "7"),
        ("arithmetic", "23\nx", "23"),
        ("arithmetic", "twenty", ""),
        ("code", "Here:\n```python\nprint(1)\n```", "print(1)"),
        ("code", "I cannot.", ""),
        ("reward.py", "anything", None),
    ],
)
def test_the_answer_in_a_response(reward: str, response: str, answer: str | None) -> None:
    assert extracted(reward, response) == answer


@pytest.mark.parametrize(
    ("first", "other", "same"),
    [
        ("0.5", r"\frac{1}{2}", True),
        ("0.5", "1/2", True),
        ("1,000", "1000", True),
        ("(B)", r"\text{B}", True),
        ("540 dollars", r"\$540", True),
        (r"\frac12", r"\dfrac{1}{2}", True),
        ("5", r"5\%", False),
        ("x+1", "1+x", False),
        ("", "0", False),
    ],
)
def test_answers_that_vote_together(first: str, other: str, same: bool) -> None:
    """Sums in another order are the same for the grader, and two answers in a vote."""
    assert (answer_name("math", first) == answer_name("math", other)) == same


def test_programs_do_not_vote() -> None:
    assert set(NAMED) - set(VOTING) == {"code"}
    assert answer_name("reasoning_gym", "A B") == "A B"
