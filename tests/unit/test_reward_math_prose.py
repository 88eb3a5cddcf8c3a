"""Answers in sentences: after "the answer is", in bold, between tags, in the last line."""

from __future__ import annotations

import pytest

from openrlhf_ada.reward.mathematics.answers import grade

NOUNS = (
    *("dollars", "cars", "people", "eggs", "weeks", "km/h", "apples", "students", "hours", "miles", "cm", "ways"),
    *("feet", "pounds", "books", "days", "minutes", "points", "square feet", "miles per hour", "years", "cups"),
    *("children", "women", "men", "fish", "sheep", "pages", "tickets", "marbles", "percent", "degrees", "liters"),
    *("seconds", "games", "slices", "bottles", "trees", "houses", "cents", "pieces", "kilograms", "units", "coins"),
    *("gallons", "inches", "boxes", "flowers", "tiles", "rows", "chairs", "cookies", "teams", "songs", "steps"),
    *("kg", "mph", "m", "g", "h", "L", "ml", "red balls", "cubic meters", "loaves of bread", "m/s", "per day"),
)
FRAMES = ("The answer is 540 {}.", "**540 {}**", "#### 540 {}", "So there are **540 {}** left.", "Answer: 540 {}")


@pytest.mark.parametrize("frame", FRAMES)
def test_a_number_may_be_followed_by_its_noun(frame: str) -> None:
    scores = {noun: [grade(frame.format(noun), label).score for label in ("540", "54")] for noun in NOUNS}
    assert not {noun for noun, found in scores.items() if found != [1.0, 0.0]}


SAME = [
    "The answer is therefore 34.",
    "The answer is thus 34.",
    "The answer is approximately 34.",
    "The answer is about 34.",
    "The answer is equal to 34.",
    "The answer is 34 as required.",
    "The answer is 34, which is 2*17.",
    "The answer is 34, since 2*17 = 34.",
    "The answer is 34 because 17 is counted twice.",
    "The answer is 34 (thirty-four).",
    "The answer is 34!",
    "The answer is 34!!",
    "The answer should be 34.",
    "The answer must be 34.",
    "The answer comes out to be 34.",
    "The answer to this problem is 34.",
    "The final answer is: 34",
    "The answer is, therefore, $34$.",
    "The answer is simply **34**.",
    "The answer is $34$, which is even.",
    "The answer is \\(34\\).",
    "The answer is thirty-four.",
    "Final Answer: The largest $n$ is 34.",
    "Final Answer: Jane started 34 hours ago.",
    "**Answer:** 34",
    "**Answer: 34**",
    "Answer - see above.\nThe answer: 34.",
    "The answer is 34. I hope it is correct.",
    "The answer is 34 = 2*17.",
    "Hence the largest $n$ is 34.",
    "We used $x^2$. Therefore, there are 34 of them. I hope it is correct.",
    "<think>It may be 35.</think><answer>34</answer>",
    "<think>It may be 35.</think>\n<answer>\n34\n</answer>",
    "<answer>The answer is 34.</answer>",
    "<answer>34 apples</answer>",
    "<answer>$34$</answer>",
    "<answer>\\boxed{34}</answer>",
    "<answer>We get $n = 2 \\cdot 17$.\nSo $n = 34$.</answer>",
]


@pytest.mark.parametrize("response", SAME)
def test_a_sentence_says_what_the_answer_is(response: str) -> None:
    assert grade(response, "34").score == 1.0
    assert grade(response, "35").score == 0.0


WRONG = [
    ("42", "The wrong answer is 42."),
    ("42", "An incorrect answer would be 42."),
    ("42", "The answer is not 42."),
    ("42", "The answer isn't 42."),
    ("42", "The answer is $41$ or $42$."),
    ("42", "The answer is $41$ and $42$."),
    ("41", "The answer is $41$ or $42$."),
    ("42", "The answer is either 41 or 42."),
    ("42", "The answer is between 41 and 42."),
    ("42", "The answer is at least 42."),
    ("42", "The answer is more than 42."),
    ("42", "**42** is wrong"),
    ("42", "**42** is wrong."),
    ("42", "$42$ is not the answer."),
    ("42", "42 is incorrect."),
    ("42", r"$\boxed{42}$ is wrong."),
    ("42", "So $x = 41$ or $x = 42$."),
    ("42", "The answer is 42/43."),
    ("42", "The answer is 42 + 1."),
    ("42", "The answer is 42x."),
    ("42", "The answer is 42 times 2."),
    ("42", "The answer is 42, 43."),
    ("42", "The answer is 42 to 44."),
    ("42", "The answer is 42^2."),
    ("42", "<answer>41</answer> It is not 42."),
    ("42", "<answer>41 or 42</answer>"),
    ("42", r"\boxed{41} or \boxed{42}"),
    ("34", "The answer is 34 million."),
    ("3", "The answer is 7 when $n = 3$."),
    ("10", "The answer is 9 (not 10)."),
    ("12", "The answer is 10, not 12."),
    ("34", "It is not 34."),
    ("34", "The answer can't be 34."),
    ("34", "I don't know, maybe 34?"),
    ("10", "The answer is 9, 10 if counting zero."),
    ("3", "The answer is 3 + 4 = 7."),
    ("3", "The answers are 1, 2, and 3."),
    ("3", "The answers are $1$, $2$, and $3$."),
    ("10", "The answer is 10 out of 20."),
    ("540 cents", "The answer is 540 dollars."),
    ("540 cents", "**540 dollars**"),
    ("5 hours", "#### 5 days"),
]


@pytest.mark.parametrize(("label", "response"), WRONG)
def test_what_is_denied_or_left_open_is_no_answer(label: str, response: str) -> None:
    assert grade(response, label).score == 0.0


RIGHT = [
    ("41", "**42** is wrong, so the answer is **41**."),
    ("41", "The wrong answer is 42. The right answer is 41."),
    ("41", "Some say that the answer is 42, which is wrong. The answer is 41."),
    ("41", r"$\boxed{42}$ is wrong. It is $\boxed{41}$."),
    (r"\{41, 42\}", "The answer is $41$ or $42$."),
    ("x = 41", "The answer is $x = 41$."),
    ("41", "So $x = 41$."),
    ("34", "The number is not 10 which is 34."),
    ("34", "It is not 35 but 34."),
    ("9", "The answer is 9 (not 10)."),
    ("7", "The answer is 3 + 4 = 7."),
    ("1,2,3", "The answers are 1, 2 and 3."),
    ("42", "The answer is:\n- 42"),
    ("42", "The answer is `42`."),
    ("42", r"The answer is 42 \blacksquare"),
    ("42", "The answer is:\n\n$$42$$"),
    ("42", "## Answer\n\n42"),
    ("42", "答案是42。"),
    ("2500000", "The answer is $2.5 million."),
    ("180", "The sum is 180 degrees."),
    ("A", "I choose A, not B."),
    ("34!", "The answer is $34!$."),
    ("3.5", "The answer is 3.5."),
    ("-3.5", "The answer is therefore -3.5 degrees."),
    ("1/2", "The answer is 1/2."),
    ("50%", "The answer is 50%."),
    ("1,234", "The answer is 1,234 dollars."),
    ("1234", "The answer is $1,234."),
    (r"\frac{1}{2}", r"The answer is therefore $\frac{1}{2}$, as claimed."),
    ("Tuesday", "The answer is therefore Tuesday."),
    ("Tuesday", "The answer is Tuesday, because 15 = 2 * 7 + 1."),
    ("B", "The answer is therefore B."),
    ("B", "The answer is for sure B, it cannot be A."),
    ("B", "It's not A because that is odd, therefore I think it's B"),
    ("2x+1", "The answer is 2x+1."),
    ("2x+1", "The answer is therefore 2x+1."),
    ("12:30", "The answer is 12:30."),
    ("10455", r"The interest is \boxed{255}. Final Answer: The final answer is $10,455$. I hope it is correct."),
]


@pytest.mark.parametrize(("label", "response"), RIGHT)
def test_right_sentences(label: str, response: str) -> None:
    assert grade(response, label).score == 1.0
