"""Answers that would cost more than they are worth: refused by their shape, before anything is expanded."""

from __future__ import annotations

from collections.abc import Iterator

import math_verify
import pytest

from openrlhf_ada.reward.mathematics import expressions
from openrlhf_ada.reward.mathematics.answers import grade

LABELS = ("42", r"\frac{3}{7}", "x^2+2x+1", r"\{1, 2, 3\}")


def nested(opening: str, inner: str, closing: str, depth: int) -> str:
    return opening * depth + inner + closing * depth


HOSTILE = {
    "tower": "9^{9^{9^{9}}}",
    "tower of a sum": "(1+9)^{9^{9^{x}}}",
    "factorial of a sum": "(12+8345678)!",
    "power of a sum": "y=(x+y+z)^{300}",
    "power of a root": r"\{(1+\sqrt{2})^{9999}\}",
    "integral": r"\int_0^1 \frac{\sin(x^{12})}{x+\ln x} dx",
    "sum": r"\sum_{k=0}^{3} \binom{2557}{k}x^k",
    "nested sines": nested(r"\sin(", "x", ")", 40),
    "deep fraction": nested(r"1+\frac{1}{", "2", "}", 16),
    "bars": nested(r"\left|1-", "x", r"\right|", 16),
    "long set": r"\{" + ",".join(rf"\sin({k})" for k in range(60)) + r"\}",
    "long product": "".join(f"(x+y+{k})" for k in range(99)),
    "union": r"\cup".join(f"({k},{k}.5)" for k in range(40)),
    "matrix": r"\begin{pmatrix}x&1&2&3\\1&x&2&3\\1&2&x&3\\1&2&3&x\end{pmatrix}^{-1}",
    "binomial": r"\binom{3021326}{56903}",
    "digits": "7" * 1500,
}


@pytest.fixture
def _nothing_is_verified(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for label in LABELS:
        # Labels are compared with themselves once.
        assert grade(r"\boxed{5x}", label).score == 0.0

    def verify(*arguments: object, **options: object) -> bool:
        pytest.fail("a simplifier was asked")

    monkeypatch.setattr(math_verify, "verify", verify)
    yield
    expressions.forget()


@pytest.mark.usefixtures("_nothing_is_verified")
@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_too_large_is_refused_at_once(kind: str, label: str) -> None:
    assert grade(rf"\boxed{{{HOSTILE[kind]}}}", label).score == 0.0


@pytest.mark.parametrize(
    ("label", "answer"),
    [
        ("1267650600228229401496703205376", "2^{100}"),
        ("4999850001", r"\binom{99999}{2}"),
        ("(x+1)^{100}", "(1+x)^{100}"),
        ("(x+y)^{150}(x-y)", "(x-y)(y+x)^{150}"),
        (nested(r"\sqrt{2+", "2", "}", 6), nested(r"\sqrt{2+", "2", "}", 5).replace("2+2", r"2+\sqrt{4}")),
        (nested(r"\sqrt{2+", "x", "}", 12), nested(r"\sqrt{", "x", "+2}", 12)),
        (r"\sum_{k=1}^{n} k^2", r"\sum_{k=1}^{n} k^2"),
        (r"\{" + ",".join(map(str, range(60))) + r"\}", r"\{" + ",".join(map(str, reversed(range(60)))) + r"\}"),
        ("+".join(f"{k}x^{{{k}}}" for k in range(1, 60)), "+".join(f"{k}x^{{{k}}}" for k in reversed(range(1, 60)))),
    ],
)
def test_large_answers_of_the_size_of_their_label_are_right(label: str, answer: str) -> None:
    assert grade(rf"\boxed{{{answer}}}", label).score == 1.0
