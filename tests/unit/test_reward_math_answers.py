"""Grading mathematics: agreement with labels by hand, which answer counts, and what a label must be."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from adversarial import adversarial_texts

from openrlhf_ada.data.labels import reference_response
from openrlhf_ada.reward.grade import UnusableLabelError
from openrlhf_ada.reward.mathematics.answers import grade
from openrlhf_ada.reward.mathematics.text import find_answers
from openrlhf_ada.reward.pool import GraderPool, GradingLimits

DATA = Path(__file__).parents[1] / "data"


def pairs(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


# docs/rewards.md names the pairs in which we differ.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "least"),
    [("math_pairs", 0.99), *[(f"math_pairs_{name}", 0.98) for name in ("heldout", "hostile", "rules", "forms")]],
)
def test_agreement_with_labels_by_hand(name: str, least: float) -> None:
    rows = pairs(f"{name}.jsonl")
    graded = [grade(row["response"], row["label"]).score == 1.0 for row in rows]
    agreed = Counter(is_right == row["right"] for is_right, row in zip(graded, rows, strict=True))
    assert agreed[True] / len(rows) >= least
    accepted_wrongly = [row for is_right, row in zip(graded, rows, strict=True) if is_right and not row["right"]]
    assert not accepted_wrongly


NEAR_MISSES = [
    # A letter at the front is no choice,
    *[("a > 1", "a < 1"), (r"a \le 2", r"a \ge 2"), (r"a \in (0,1)", r"a \in (5,9)"), ("b = 3", "b = 4")],
    *[
        ("a = 1, b = 2", "a = 1, b = 3"),
        ("a - b", "a + b"),
        (r"i \sqrt{2}", r"i \sqrt{3}"),
        ("f (x) = 2x", "f (x) = 3x"),
    ],
    *[("a_n = 2n", "a_n=3n"), ("C_n^2", "C_n^3"), ("c_1", "c_2"), ("e", r"e \pi")],
    (r"a \equiv 1 \pmod 3", r"a \equiv 2 \pmod 3"),
    # and prose chooses only where it does so clearly.
    *[("A", "A or B"), ("I", "I don't know"), ("A", "a rectangle"), ("A", "a tough one: B")],
    # Small numbers differ,
    *[(r"1.6 \times 10^{-19}", r"9.1 \times 10^{-31}"), ("1.6e-19", "1.7e-19"), ("e^{-50}", "e^{-60}")],
    *[(r"\frac{1}{2^{100}}", r"\frac{1}{2^{101}}"), (r"1-\frac1{2^{100}}", r"1-\frac1{2^{99}}")],
    *[(r"\frac1{100!}", r"\frac1{99!}"), ("1/2004!", "1/2006!")],
    # and so do units and bases.
    *[(rf"5 \text{{ {a}}}", rf"5 \text{{ {b}}}") for a, b in (("m/s", "km/h"), ("hours", "days"), ("lb", "kg"))],
    *[(r"5 \text{ cm}^2", r"5 \text{ m}^2"), (r"5 \text{ cm}^2", r"5 \text{ cm}^3"), ("101_2", "101_3")],
    *[(r"5 \text{ dollars}", r"5 \text{ cents}"), (r"5\text{ N}", r"5\text{ kN}"), ("2023_{10}", "2023_8")],
    # Bounds and guesses are no numbers.
    *[("5", "> 5"), ("5", r"5 \text{ at most}"), ("5", r"\neg 5"), ("5", r"5 \text{ (but maybe 6)}"), ("7", "5 = 7")],
]
HITS = [
    *[("a = 5", "5"), ("g = 9.8", "9.8"), ("e", r"\exp(1)"), ("ab", "a b"), ("ab", r"a \cdot b"), ("xy", "yx")],
    *[(r"5 \text{ cm}^2", r"5 \text{ square centimeters}"), (r"5 \text{ hours}", "5 h"), ("101_2", "101")],
    *[
        ("A", r"\text{A}"),
        ("A", "(a)"),
        ("B", "B. 12"),
        (r"1.6 \times 10^{-19}", "1.6e-19"),
        ("12", r"12 \text{ apples}"),
    ],
    *[("0.333333", r"\frac13"), ("50\\%", "0.5"), (r"\frac{1}{1024}", "2^{-10}"), ("no", "No"), ("5", "x = 5")],
    *[(r"\infty", r"+\infty"), (r"60\text{ mph}", r"60 \text{ miles per hour}")],
]


@pytest.mark.parametrize(("label", "answer"), NEAR_MISSES)
def test_near_misses_are_wrong(label: str, answer: str) -> None:
    assert grade(rf"\boxed{{{answer}}}", label).score == 0.0


@pytest.mark.parametrize(("label", "answer"), HITS)
def test_other_ways_to_write_it_are_right(label: str, answer: str) -> None:
    assert grade(rf"\boxed{{{answer}}}", label).score == 1.0


@pytest.mark.parametrize(
    ("label", "response", "right"),
    [
        ("A", "The answer is a rectangle.", False),
        ("A", "The answer is A because x.", True),
        ("I", "The answer is I don't know", False),
        ("C", "**Answer: C**", True),
        ("B", "The correct option is B.", True),
        ("B", "The answer is (B), not (C).", True),
        ("B", "The answer is B or C.", False),
        ("42", "It is not clear whether more than one fits, or none. We count: 42", True),
        ("42", "The answer is 42 more apples.", True),
        ("42", "The answer is 42 or 43.", False),
    ],
)
def test_letters_and_numbers_in_prose(label: str, response: str, right: bool) -> None:
    assert grade(response, label).score == float(right)


@pytest.mark.parametrize(
    "response",
    [
        *[
            r"so \boxed{42}. Rather \boxed{4",
            r"so \boxed{42}. Then \boxed{\frac{1",
            r"So $\boxed{42$",
            r"So \boxed{42",
        ],
        *["<think>\nSo \\boxed{42}. Let me check", "<think>a</think><think>\\boxed{42}"],
    ],
)
def test_a_box_or_thought_that_does_not_end_is_no_answer(response: str) -> None:
    assert find_answers(response) == []
    assert grade(response, "42").score == 0.0


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"First \boxed{1}, no: \boxed{2}.", "2"),
        (r"<think>\boxed{1}</think> So \boxed{2}", "2"),
        (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        ("The answer is 7.", "7"),
        ("Answer: $x = 3$", "x = 3"),
        ("It is 6 * 7.\n#### 42", "42"),
        ("So the result:\n\\[\nx = 5\n\\]", "x = 5"),
        ("Therefore it is **Tuesday**.", "Tuesday"),
        (r"A share of \boxed{12.5}\%.", r"12.5\%"),
    ],
)
def test_which_answer_counts(response: str, answer: str) -> None:
    assert find_answers(response)[0].text == answer


@pytest.mark.parametrize("response", ["", "  \n ", "<think>\\boxed{4}</think>", "</think>"])
def test_no_answer_is_a_wrong_one(response: str) -> None:
    graded = grade(response, "4")
    assert (graded.score, graded.cause) == (0.0, "no answer")


def test_an_answer_longer_than_any_is_wrong() -> None:
    assert grade(r"\boxed{" + "1+" * 1500 + "1}", "1501").cause == "answer too long"


@pytest.mark.parametrize("label", ["", " ", [], None, {"a": 1}, [""], ["1", None], [["1"]]])
def test_labels_of_another_form_are_refused(label: Any) -> None:
    with pytest.raises(UnusableLabelError, match="label"):
        grade("4", label)


@pytest.mark.parametrize("label", [r"\frac{", "?", "$$", r"\begin{pmatrix}", "+"])
def test_a_label_that_does_not_equal_itself_is_refused(label: str) -> None:
    with pytest.raises(UnusableLabelError, match="math-verify"):
        grade(reference_response("math", label), label)
    with pytest.raises(UnusableLabelError, match="math-verify"):
        grade(r"\boxed{4}", label)


@pytest.mark.parametrize(
    "label", ["4", 4, 0.5, r"\frac{3}{4}", "(1,2]", r"\text{Evelyn}", "B", r"\boxed{7}", "$x+1$", ["1", "2"], "50\\%"]
)
def test_good_labels_verify_themselves(label: Any) -> None:
    assert grade(reference_response("math", label), label).score == 1.0


def test_a_word_is_not_the_product_of_its_letters() -> None:
    assert grade(r"\boxed{\text{Evleyn}}", r"\text{Evelyn}").score == 0.0


@pytest.mark.parametrize("answer", ["9^{9^{9^{9}}}", "10^{100000}", "999999!", "9!!", "7" * 1500])
def test_unwritable_numbers_are_wrong_at_once(answer: str) -> None:
    assert grade(rf"\boxed{{{answer}}}", "42").score == 0.0


def test_but_a_label_may_be_one() -> None:
    assert grade(r"\boxed{10^{100000}}", "10^{100000}").score == 1.0


@pytest.mark.slow
def test_a_ready_process_has_loaded_what_formulas_need() -> None:
    program = """if True:
        import sys
        from openrlhf_ada.reward.mathematics import answers as math_answers
        from openrlhf_ada.reward.grade import prepare
        prepare()
        loaded = set(sys.modules)
        assert math_answers.grade(r"\\boxed{\\frac{2y+4}{2}}", "y+2").score == 1.0
        print(sorted(set(sys.modules) - loaded))
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


COSTLY = [
    *["(x+1)^{5000}", "(10^{9})!", "e^{e^{e^{e^{e}}}}", r"\Gamma(10^{10})", "9^{9^{9^{9}}}", "((((10!)!)!)!)"],
    *["2^{10^9}", r"\sum_{k=1}^{10^{9}} \frac{1}{k}", "(a+b+c+d)^{300}", r"\binom{10^{9}}{5 \cdot 10^{8}}"],
]


@pytest.mark.slow
@pytest.mark.parametrize("label", ["42", "x+1"])
def test_costly_answers_are_wrong(label: str) -> None:
    """A policy must not be able to escape a zero by what is costly to evaluate."""
    pool = GraderPool("openrlhf_ada.reward.mathematics:grade", GradingLimits(1.0, 1024), 2)
    with pool, ThreadPoolExecutor(2) as threads:
        answers = [rf"\boxed{{{answer}}}" for answer in COSTLY]
        grades = dict(zip(COSTLY, threads.map(lambda answer: pool.grade(answer, label), answers), strict=True))
        assert {answer: graded for answer, graded in grades.items() if graded.score != 0.0} == {}
        # The process that was killed is replaced, and the label stays readable.
        assert pool.grade(rf"\boxed{{{label}}}", label).score == 1.0


@pytest.mark.slow
def test_a_costly_label_is_no_fault_of_the_answer() -> None:
    with GraderPool("openrlhf_ada.reward.mathematics:grade", GradingLimits(2.0, 1024), 1) as pool:
        assert pool.grade(r"\boxed{4}", "e^{e^{e^{e^{e}}}} + 1").score is None


@pytest.mark.slow
@pytest.mark.parametrize("label", ["42", r"\frac{x^2+1}{3}", "(1,2]"])
def test_adversarial_texts_never_hang_the_grader(label: str) -> None:
    texts = list(adversarial_texts(150, seed=len(label)))
    pool = GraderPool("openrlhf_ada.reward.mathematics:grade", GradingLimits(5.0, 1024), 2)
    with pool, ThreadPoolExecutor(4) as threads:
        grades = list(threads.map(lambda text: pool.grade(text, label), texts))
    assert not [graded.cause for graded in grades if graded.score is None]
    assert max(graded.seconds for graded in grades) < 5.5
