"""Grading mathematics: agreement with labels by hand, which answer counts, and what a label must be."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from adversarial import adversarial_texts

from openrlhf_ada.reward.math_answers import grade, verifies_itself
from openrlhf_ada.reward.math_text import find_answers
from openrlhf_ada.reward.pool import GraderPool, Limits
from openrlhf_ada.reward.verdict import UnusableLabelError

DATA = Path(__file__).parents[1] / "data"


def pairs(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


# docs/rewards.md names the pairs in which we differ.
@pytest.mark.parametrize(("name", "least"), [("math_pairs.jsonl", 0.99), ("math_pairs_heldout.jsonl", 0.98)])
def test_agreement_with_labels_by_hand(name: str, least: float) -> None:
    rows = pairs(name)
    graded = [grade(row["response"], row["label"]).score == 1.0 for row in rows]
    agreed = Counter(is_right == row["right"] for is_right, row in zip(graded, rows, strict=True))
    assert agreed[True] / len(rows) >= least
    accepted_wrongly = [row for is_right, row in zip(graded, rows, strict=True) if is_right and not row["right"]]
    assert not accepted_wrongly


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"First \boxed{1}, no: \boxed{2}.", "2"),
        (r"<think>\boxed{1}</think> So \boxed{2}", "2"),
        (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{1} and cut off: \boxed{\frac{1", "1"),
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
    verdict = grade(response, "4")
    assert (verdict.score, verdict.cause) == (0.0, "no answer")


def test_an_answer_longer_than_any_is_wrong() -> None:
    assert grade(r"\boxed{" + "1+" * 1500 + "1}", "1501").cause == "answer too long"


@pytest.mark.parametrize("label", ["", " ", [], None, {"a": 1}, [""], ["1", None], [["1"]]])
def test_labels_of_another_form_are_refused(label: Any) -> None:
    with pytest.raises(UnusableLabelError, match="neither text, a number nor a list of these"):
        grade("4", label)


@pytest.mark.parametrize("label", [r"\frac{", "?", "$$", r"\begin{pmatrix}", "+"])
def test_a_label_that_does_not_equal_itself_is_refused(label: str) -> None:
    assert not verifies_itself(label)
    with pytest.raises(UnusableLabelError, match="nothing that math-verify can compare"):
        grade(r"\boxed{4}", label)


@pytest.mark.parametrize(
    "label", ["4", 4, 0.5, r"\frac{3}{4}", "(1,2]", r"\text{Evelyn}", "B", r"\boxed{7}", "$x+1$", ["1", "2"], "50\\%"]
)
def test_good_labels_verify_themselves(label: Any) -> None:
    assert verifies_itself(label)


def test_a_word_is_not_the_product_of_its_letters() -> None:
    assert grade(r"\boxed{\text{Evleyn}}", r"\text{Evelyn}").score == 0.0


@pytest.mark.parametrize("answer", ["9^{9^{9^{9}}}", "10^{100000}", "999999!", "9!!", "7" * 1500])
def test_numbers_that_cannot_be_written_down_are_wrong_at_once(answer: str) -> None:
    assert grade(rf"\boxed{{{answer}}}", "42").score == 0.0


def test_but_a_label_may_be_one() -> None:
    assert grade(r"\boxed{10^{100000}}", "10^{100000}").score == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("label", ["42", r"\frac{x^2+1}{3}", "(1,2]"])
def test_ten_thousand_adversarial_texts_neither_hang_nor_crash_it(label: str) -> None:
    texts = list(adversarial_texts(10_000 // 3 + 1, seed=len(label)))
    pool = GraderPool("openrlhf_ada.reward.math_answers:grade", Limits(5.0, 1024), 2)
    with pool, ThreadPoolExecutor(4) as threads:
        verdicts = list(threads.map(lambda text: pool.verdict(text, label), texts))
    without = Counter(verdict.cause for verdict in verdicts if verdict.score is None)
    assert set(without) <= {"time limit (5 s)", "memory limit", "recursion limit"}
    assert without.total() <= len(texts) / 100
    assert max(verdict.seconds for verdict in verdicts) < 5.5
