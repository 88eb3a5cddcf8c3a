"""Values of formulas refute equality, and only that: whoever has another value is wrong, and nobody else is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openrlhf_ada.reward.mathematics.answers import grade
from openrlhf_ada.reward.mathematics.expressions import equal_expressions
from openrlhf_ada.reward.mathematics.latex_values import is_understood, surely_differ, values
from openrlhf_ada.reward.mathematics.values import differ

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("3", 3), ("-2^2", -4), ("2 + 3 \\cdot 4", 14), ("(1+2)(3+4)", 21), ("1/2 + 1/3", 5 / 6)],
        *[(r"\frac{1}{2}", 0.5), (r"2\sqrt{9}", 6), (r"\sqrt{-4}", 2j), (r"2^{-3}", 0.125), (r"4\pi", 12.566370614)],
        *[
            (r"\sin(\frac{\pi}{6})", 0.5),
            (r"\ln(e^2)", 2),
            ("(1+2)^2", 9),
            (r"6 \times 7", 42),
            (r"-\frac{3}{-4}", 0.75),
        ],
    ],
)
def test_values_are_those_of_mathematics(text: str, value: complex) -> None:
    (found,) = values(text)
    assert abs(found - value) < 1e-8


@pytest.mark.parametrize(
    "text",
    [
        # A mixed number, or a product; what a fraction goes on to; powers of powers.
        *[r"2\frac{1}{2}", "1/2x", "2^3^2", "x^23", "2 3", "x2"],
        # A function, or a product; its argument; the imaginary unit; differentials.
        *[
            "f(x)",
            "x(y+1)",
            r"\sin x",
            r"\sin(x)^2",
            r"\log(2)",
            r"\cos(x) y",
            "i",
            "3i",
            r"\frac{dy}{dx}",
            "a_1",
            "a'",
        ],
        # What may be 0, has lost digits, or is too large.
        *["x-x", r"\sin(\pi)", r"\cos(\frac{\pi}{2})", "1/0", "(x+1)^{5000}", r"\ln(1)", "0^0"],
        # Variables and words alone, digits in groups, one or the other, no formula at all.
        *[
            "x",
            "ab",
            r"\theta",
            "1,234",
            "(1, 200)",
            "3 or 4",
            "x = 3",
            "x < 3",
            "5!",
            "3 +",
            "(3",
            "50%",
            r"\text{a}",
            r"(1,2\}",
            "(1,2), (3,4)",
            "",
        ],
    ],
)
def test_what_can_be_read_in_two_ways_has_none(text: str) -> None:
    assert values(text) == () and not is_understood(text)
    assert not surely_differ(text, "12345") and not surely_differ("12345", text)


@pytest.mark.parametrize("nested", ["(" * 140 + "1" + ")" * 140, "1+" * 200 + "1", r"\sqrt{" * 40 + "2" + "}" * 40])
def test_nested_and_long_formulas_end(nested: str) -> None:
    values(nested)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *[("(1,2)", "(2,1)"), ("(1,2)", "[1,2]"), (r"\{1,2\}", "1, 2"), ("x+1", "1+x"), ("x^2-1", "(x-1)(x+1)")],
        *[("0.3333", r"\frac{1}{3}"), (r"(1,\infty)", r"[1,+\infty)"), (r"\sqrt{8}", r"2\sqrt{2}"), ("2ab", "a 2b")],
        *[("1, 1, 2", "1, 2"), (r"10^{-20}", r"10^{-20}+0"), ("e", "2.718282"), ("(x+1)^2", "x^2+2x+1")],
    ],
)
def test_equal_values_say_nothing(one: str, other: str) -> None:
    assert not surely_differ(one, other) and not surely_differ(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *[("(1,2)", "(1,3)"), (r"\{1,2\}", "1, 2, 3"), ("x+1", "x-1"), (r"\frac{3x+1}{7}", r"\frac{3x+2}{7}")],
        *[
            (r"(1,\infty)", r"(-\infty,1)"),
            (r"2\sqrt{2}", r"2\sqrt{3}"),
            ("5", "(4,5)"),
            ("x y", "x z"),
            ("x^2", "x^3"),
        ],
    ],
)
def test_other_values_are_other_formulas(one: str, other: str) -> None:
    assert surely_differ(one, other) and surely_differ(other, one)
    assert not equal_expressions(one, other) and grade(rf"\boxed{{{other}}}", one).score == 0.0


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        *[("x + 1", "x + 2", True), ("x + 1", "1 + x", False), ("sin(x)**2", "1 - cos(x)**2", False)],
        *[("sqrt(x**2)", "x", False), ("sin(pi)", "7", False), ("x - x", "7", False), ("oo", "7", False)],
        *[("zoo", "7", False), ("nan", "7", False), ("floor(x)", "7", False), ("Sum(k, (k, 1, x))", "7", False)],
        *[("exp(1000)", "7", False), ("1e-20*y + 10**20 - 10**20", "7", False), ("log(8)/log(2)", "4", True)],
        *[("acos(2)", "7", False), ("Abs(x)/2", "x", False), ("(-8)**Rational(1, 3)", "-2", True)],
    ],
)
def test_expressions_differ_only_where_it_is_sure(one: str, other: str, differs: bool) -> None:
    """A symbol alone may be more than its value, so nothing differs from it."""
    from sympy import Symbol, sympify

    names = {name: Symbol(name, real=True) for name in "xy"}
    a, b = (sympify(text, locals=names, evaluate="oo" in text or "nan" in text) for text in (one, other))
    assert differ(a, b) is differ(b, a) is differs


@pytest.mark.slow
def test_values_are_those_of_what_math_verify_reads() -> None:
    """Of all labels that people have written for tests."""
    from sympy import Interval

    from openrlhf_ada.reward.mathematics import expressions as math_expressions
    from openrlhf_ada.reward.mathematics.answers import _plain
    from openrlhf_ada.reward.mathematics.values import UndecidedError, _value, are_far

    rows = [json.loads(line) for path in DATA.glob("math_*.jsonl") for line in path.read_text().splitlines()]
    labels = {
        _plain(str(label))
        for row in rows
        for label in (row["label"] if isinstance(row["label"], list) else [row["label"]])
    }
    compared = 0
    for label in sorted(labels):
        expected = values(label)
        if not expected or "infty" in label:
            continue
        parsed = math_expressions._parsed_formula(label)[0]
        parts = (parsed.start, parsed.end) if isinstance(parsed, Interval) else parsed.args
        try:
            found = [_value(part) for part in (parts if len(expected) > 1 else (parsed,))]
        except UndecidedError:
            continue
        compared += 1
        # A set has another order.
        assert all(any(not are_far(value, other) for other in found) for value in expected), label
        assert len(found) == len(expected), label
    assert compared > 150
