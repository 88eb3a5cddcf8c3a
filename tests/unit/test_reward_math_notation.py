"""One notation for what is the same, and no more: numbers, percentages, words, times, boxes, characters."""

from __future__ import annotations

import pytest

from openrlhf_ada.reward.mathematics.answers import grade, readable_labels
from openrlhf_ada.reward.mathematics.notation import with_braces
from openrlhf_ada.reward.mathematics.numbers import number_of_words


def score(label: str, answer: str) -> float:
    return grade(rf"\boxed{{{answer}}}", label).score


EQUAL = [
    *[
        ("four", "4"),
        (r"\text{two}", "2"),
        ("2", r"\text{two}"),
        ("thirty-four", "34"),
        ("one hundred and five", "105"),
    ],
    *[("35", r"35.0\%"), (r"50\%", "50.0"), (r"50\%", "0.5"), ("0.5", r"50\%"), ("28", "28 percent"), (r"28\%", "28")],
    *[(r"\frac{1}{4}", r"25\%"), (r"12.5\%", r"\frac{1}{8}"), (r"33\frac{1}{3}\%", r"\frac{1}{3}")],
    *[
        ("32349", r"32,\! 349"),
        ("11111111100", r"11,\! 111,\! 111,\! 100"),
        ("32349", "32{,}349"),
        ("32349", "32,349"),
    ],
    *[("1000000", r"1\,000\,000"), ("1000", "1 000"), ("1.22", "1,22"), ("0,111", "0.111")],
    *[
        (r"\frac{\pi}{4}+2-\sqrt{2}", r"\frac \pi4 + 2 - \sqrt2"),
        (r"\frac{1}{2}", r"\frac12"),
        (r"\frac{a}{b}", r"\frac ab"),
    ],
    *[
        (r"\frac{\sqrt{3}}{2}", r"\frac{\sqrt3}2"),
        (r"\sqrt{\pi}", r"\sqrt\pi"),
        (r"\frac{1}{\sqrt{2}}", r"\frac1{\sqrt2}"),
    ],
    *[("x_1", "x₁"), ("x_{12}", "x₁₂"), ("101_2", "101₂"), ("x^2", "x²"), (r"\frac{1}{2}", "½"), ("3.5", "3½")],
    *[(r"\frac{7}{8}", "⅞"), (r"\frac{1}{6}", "⅙"), ("2.75", "2¾"), (r"\frac{\pi}{2}", "π/2"), (r"3\sqrt{2}", "3√2")],
    *[("1.5", "1 1/2"), ("1 1/2", "1.5"), (r"1\frac{1}{2}", "1.5"), ("-1.5", r"-1\frac12"), ("2.75", "2 3/4")],
    *[
        ("12:30", "12:30 PM"),
        ("12:30 PM", "12:30"),
        ("12:30 PM", "12:30 p.m."),
        ("1:05 PM", "13:05"),
        ("5 PM", "5:00 pm"),
    ],
    *[
        ("(1.6e-19,1)", r"(1.6\times 10^{-19}, 1)"),
        ("1000.99", "1,000.99"),
        ("0.4", ".4"),
        ("7", "007"),
        ("42", "42."),
    ],
    *[
        ("x=5", "5"),
        ("5", "x = 5"),
        ("f(2)=5", "5"),
        ("|AB|=5", "5"),
        (r"\frac{1}{3}", "0.333333"),
        ("18{,}234", "18234"),
    ],
    *[("a + b + c", "c + b + a"), ("v+t", "v + t"), (r"\sin t", r"\sin(t)"), (r"\sin(t)", r"\sin t"), ("2t", "t+t")],
    *[("m g h", "mgh"), ("h c", "ch"), ("x + s", "s + x"), (r"a+b\sqrt{c}", r"b\sqrt{c}+a"), ("3 m", "3m")],
    *[("p=5,q=2", r"p = 5 \text{ and } q = 2"), ("(1,2),(3,4)", r"(3, 4) \text{ and } (1, 2)")],
]


@pytest.mark.parametrize(("label", "answer"), EQUAL)
def test_equal_ways_to_write_it(label: str, answer: str) -> None:
    assert score(label, answer) == 1.0


UNEQUAL = [
    *[(r"\pi r^2", r"\pi r^2 h"), ("m g", "m g h"), ("v_0 d", "v_0 t"), ("5t", "5m"), ("n+2", "n+2m"), ("2", "2t")],
    *[
        ("m g h", "m g"),
        (r"\pi r^2 h", r"\pi r^2"),
        ("n+2m", "n+2"),
        ("2t", "2"),
        ("5m", "5t"),
        ("x + s", "x"),
        ("a", "ah"),
    ],
    *[
        ("5s", "5"),
        ("5", "5s"),
        ("5", "5h"),
        ("3", "3c"),
        (r"\frac{1}{2} m v^2", r"\frac{1}{2} v^2"),
        ("x", "xt"),
        ("a+b", "a+b+c"),
    ],
    *[
        ("four", "5"),
        ("four", "fourteen"),
        (r"\text{two}", "3"),
        ("35", r"36\%"),
        (r"50\%", r"5\%"),
        (r"50\%", "0.05"),
    ],
    *[(r"50\%", r"0.5\%"), (r"0.5\%", r"50\%"), ("32349", "32, 349"), ("1,2", "1.2"), ("12", "1 2"), ("1.5", "1/2")],
    *[("1.5", "11/2"), ("x_1", "x₂"), ("x_1", "x^1"), (r"\frac{1}{2}", "⅓"), ("3.5", "3⅓"), ("101_2", "101₃")],
    *[
        ("12:30 AM", "12:30 PM"),
        ("12:30 PM", "12:30 AM"),
        ("12:00", "1:00"),
        ("12:30", "12:31"),
        ("1:05 PM", "1:05 AM"),
    ],
    *[
        (r"90 \text{ radians}", r"90 \text{ degrees}"),
        (r"90 \text{ radians}", r"90^\circ"),
        ("90 degrees", "90 radians"),
    ],
    *[
        (r"5 \text{ cents}", r"\$5"),
        ("5 cents", "$5"),
        (r"\$5", r"5 \text{ cents}"),
        ("€5", r"\$5"),
        ("5 dollars", "€5"),
    ],
    *[("(9.1e-31,1)", "(1.6e-19,1)"), ("[1e-9,1]", "[1e-8,1]"), (r"\{1e-9, 1\}", r"\{2e-9, 1\}"), ("1e-30", "1e-31")],
    *[
        (r"\begin{pmatrix}1e-9\\1\end{pmatrix}", r"\begin{pmatrix}1e-8\\1\end{pmatrix}"),
        ("x=5", "y=5"),
        ("f(2)=5", "f(3)=5"),
    ],
    *[
        ("5 m", "5 km"),
        ("5 m", "5 s"),
        (r"5 \text{ m}^2", r"5 \text{ m}"),
        ("5 km/h", "5 m/s"),
        ("12 apples", "12 oranges"),
    ],
    *[("(0,9)", "[0,9)"), ("(1,2)", "(2,1)"), ("-2", "-2,1"), ("-2,1", "-2"), ("4", r"4\sqrt{2}"), ("x+1", "t+1")],
    *[
        ("0.5", "0.4999"),
        ("2.2892", "2.3"),
        (r"\pi", "3.14"),
        ("1000000000000", "1000000000001"),
        ("1/5120", "1/28800"),
    ],
]


@pytest.mark.parametrize(("label", "answer"), UNEQUAL)
def test_near_misses_stay_wrong(label: str, answer: str) -> None:
    assert score(label, answer) == 0.0


LABELS = [
    "four",
    r"\text{two}",
    "a + b + c",
    "v + t",
    "12:30 PM",
    r"\$5",
    "5 cents",
    "x₁",
    "½",
    "1 1/2",
    r"35.0\%",
    "5m",
]


@pytest.mark.parametrize("label", LABELS)
def test_labels_that_are_read(label: str) -> None:
    assert readable_labels(label)
    assert score(label, label) == 1.0


BOXES = [
    ("34", r"\fbox{34}", True),
    ("34", "\\boxed{\n34\n}", True),
    (r"\{1,2\}", "\\[\n\\boxed{1}, \\boxed{2}\n\\]", True),
    ("(1,2),(2,1)", "solutions are:\n\n\\[\n\\boxed{(1, 2)}, \\boxed{(2, 1)}\n\\]", True),
    ("1,2", r"$\boxed{1}$ and $\boxed{2}$.", True),
    ("1,2", r"\boxed{1} \text{ and } \boxed{2}", True),
    ("2", "First $\\boxed{1}$.\n\nThen $\\boxed{2}$.", True),
    ("2", r"First \boxed{1}, no: \boxed{2}.", True),
    ("2", r"We check \boxed{1}, then \boxed{2}.", True),
    ("8", r"The number of reds is \boxed{3} and the total is \boxed{8}.", True),
    (r"\boxed{1} papers and \boxed{2} bins", r"\boxed{1,2}", True),
    (r"\boxed{1} papers and \boxed{2} bins", r"\boxed{2}", False),
    (r"\boxed{1} papers and \boxed{2} bins", r"\boxed{1}", False),
    (r"\boxed{1} papers and \boxed{2} bins", r"\boxed{1} papers and \boxed{2} bins", True),
    (r"\boxed{1}\boxed{2}", r"\boxed{1,2}", True),
    (r"\boxed{1} no no no no no \boxed{2}", r"\boxed{1,2}", False),
    ("2", r"\boxed{1} and \boxed{2}", False),
    ("5", r"\boxed{5} oops \boxed{}", True),
    ("5", r"\boxed {5}", True),
]


@pytest.mark.parametrize(("label", "response", "right"), BOXES)
def test_several_boxes(label: str, response: str, right: bool) -> None:
    assert grade(response, label).score == float(right)


@pytest.mark.parametrize(
    ("text", "braced"),
    [
        (r"\frac \pi4", r"\frac{\pi}{4}"),
        (r"\frac12", r"\frac{1}{2}"),
        (r"\frac{1}2x", r"\frac{1}{2}x"),
        (r"\sqrt2+\sqrt\pi", r"\sqrt{2}+\sqrt{\pi}"),
        (r"\frac{\sqrt3}{2}", r"\frac{\sqrt{3}}{2}"),
        (r"\sqrt[3]{2}", r"\sqrt[3]{2}"),
        (r"\binom n2", r"\binom{n}{2}"),
        (r"\frac{", r"\frac{"),
    ],
)
def test_arguments_get_their_braces(text: str, braced: str) -> None:
    assert with_braces(text) == braced


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("zero", 0),
        ("twenty-one", 21),
        ("two thousand three hundred and four", 2304),
        ("one two", None),
        ("hundred", None),
        ("and", None),
        ("four apples", None),
        ("", None),
    ],
)
def test_numbers_in_words(text: str, value: int | None) -> None:
    assert number_of_words(text) == value
