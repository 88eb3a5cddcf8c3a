"""Values of formulas refute equality, and only that: whoever has another value is wrong, and nobody else is."""

from __future__ import annotations

import pytest

from openrlhf_ada.reward.mathematics.answers import grade
from openrlhf_ada.reward.mathematics.expressions import differ
from openrlhf_ada.reward.pool import GraderPool, GradingLimits


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *[("x+1", "x-1"), (r"\frac{3x+1}{7}", r"\frac{3x+2}{7}"), (r"2\sqrt{2}", r"2\sqrt{3}"), ("x y", "x z")],
        *[("(1,2)", "(1,3)"), (r"\{1,2\}", "1, 2, 3"), (r"(1,\infty)", r"(-\infty,1)"), ("5", "(4,5)")],
        *[("x^2", "x^3"), ("2^{2008}", "4^{1005}"), (r"\sqrt[3]{-8}", "7"), (r"x^{10}", r"x^{10}+10^{-3}")],
    ],
)
def test_other_values_are_other_formulas(one: str, other: str) -> None:
    assert grade(rf"\boxed{{{other}}}", one).score == grade(rf"\boxed{{{one}}}", other).score == 0.0


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        *[("x + 1", "x + 2", True), ("x + 1", "1 + x", False), ("sin(x)**2", "1 - cos(x)**2", False)],
        *[("sqrt(x**2)", "x", False), ("sin(pi)", "7", True), ("x - x", "7", True), ("oo", "7", False)],
        *[("zoo", "7", False), ("nan", "7", False), ("floor(x)", "7", False), ("Sum(k, (k, 1, x))", "7", False)],
        *[("exp(1000)", "7", True), ("2**2008", "4**1004", False), ("log(8)/log(2)", "4", True)],
        *[("acos(2)", "7", False), ("Abs(x)/2", "x", False), ("(-8)**Rational(1, 3)", "-2", True)],
        *[("(x + 1)**1000000", "7", False), ("Matrix([1])", "7", False), ("sin(x)**2 + cos(x)**2 - 1", "0", False)],
    ],
)
def test_expressions_differ_only_where_it_is_sure(one: str, other: str, differs: bool) -> None:
    """A symbol alone may be more than its value, so nothing differs from it."""
    from sympy import Symbol, sympify

    names = {name: Symbol(name, real=True) for name in "xy"}
    a, b = (sympify(text, locals=names, evaluate="oo" in text or "nan" in text) for text in (one, other))
    assert differ(a, b) is differ(b, a) is differs


@pytest.mark.slow
def test_powers_and_nested_functions_are_refuted_before_they_are_simplified() -> None:
    hostile = [r"(x+1)^{5000}", r"(x+y+z)^{300}", r"\sin(\sin(\sin(\sin(\sin(x)))))", r"\tan(\tan(\tan(x)))^{100}"]
    with GraderPool("openrlhf_ada.reward.mathematics:grade", GradingLimits(seconds=10.0), workers=1) as pool:
        grades = [pool.grade(rf"\boxed{{{one}}}", label) for one in hostile for label in ("42", "x^2+1")]
    assert {(grade.score, grade.cause) for grade in grades} == {(0.0, "wrong answer")}
