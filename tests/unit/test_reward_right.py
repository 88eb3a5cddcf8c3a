"""What counts as right, and the answer that is found in a response."""

from __future__ import annotations

import pytest

from openrlhf_ada.config.flags import FULL_MARKS
from openrlhf_ada.eval.answers import AnswerRow, answered
from openrlhf_ada.eval.measures import per_problem
from openrlhf_ada.reward.extraction import VOTING, answer_name, extracted
from openrlhf_ada.reward.reasoning_answers import grade, import_reasoning_gym, to_label
from openrlhf_ada.reward.reward_function import MIXED, NAMED, default_threshold


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


TALK = ("I do not know.", "The answer is", r"\boxed{}", "Let me think about it.", "Yes, it is.", "It is B.")


@pytest.mark.parametrize(
    ("reward", "response", "truncated", "answer"),
    [
        *(("math", said, False, found) for said, found in zip(TALK, ("", "", "", "", "Yes", "It is B."), strict=True)),
        ("reasoning_gym", "I think that it is 7.", False, ""),
        ("reasoning_gym", "apple, banana", False, "apple, banana"),
        # What is cut off has a final answer only in a box or a tag.
        ("math", "First 3 + 4 is 7. Then we multiply by 2", False, "2"),
        ("math", "First 3 + 4 is 7. Then we multiply by 2", True, ""),
        ("math", r"It is \boxed{7}. To check", True, "7"),
        ("reasoning_gym", "<answer>7</answer> since", True, "7"),
        ("reasoning_gym", "1 2 3", True, ""),
        ("arithmetic", "7", True, "7"),
    ],
)
def test_a_response_without_a_final_answer_has_none(reward: str, response: str, truncated: bool, answer: str) -> None:
    assert extracted(reward, response, truncated=truncated) == answer


def test_majorities_are_those_of_final_answers() -> None:
    """Six responses of which three talk or are cut off, and so do not vote."""
    responses = [r"\boxed{42}", "So it is 42.", "I do not know.", "I do not know.", "7", "We have 7 apples and"]
    truncated = [False] * 5 + [True]
    names = ["42", "42", "", "", "7", ""]
    rows = [
        AnswerRow(
            text, 3, cut, float(name == "42"), problem="p", index=index,
            answer=extracted("math", text, truncated=cut),
        )
        for index, (text, cut, name) in enumerate(zip(responses, truncated, names, strict=True))
    ]  # fmt: skip
    found, _ = answered(rows, ["p"], 0.5, same=lambda answer: answer_name("math", answer))
    assert found[0].groups == names
    assert per_problem(found, 6, [])["maj@6"][0] == 1.0


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
