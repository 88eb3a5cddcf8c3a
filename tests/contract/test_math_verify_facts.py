"""What the grader of mathematics stands on in math-verify and its parser."""

from __future__ import annotations

import pytest

FORMULAS = [
    *[r"\frac{1}{2}", "x^2+2x+1", r"\frac{x^2}{9}+\frac{y^2}{4}=1", "(1,2]", r"\{1,2,3\}", r"2\sqrt{3}", "a^2b"],
    *[r"(-\infty,3)\cup(3,\infty)", r"1 < x \le 2", r"x=1, y=2", r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}"],
    *[
        r"e^{-\frac{t}{RC}}",
        r"\sin^2 x",
        r"\int_0^1 x dx",
        r"\binom{5}{2}",
        "5!",
        r"\text{west}",
        "f(x)=x^2+1",
        r"\pm 2",
    ],
    *[
        r"x \in \mathbb{R}",
        "3+4i",
        r"\log_2 8",
        r"50\%",
        r"x^{2^{3}}",
        "y = 2x = 4",
        r"\sqrt[3]{5}",
        "|x|",
    ],
]


@pytest.mark.parametrize("formula", FORMULAS)
def test_the_fast_parser_gives_what_math_verify_gives(formula: str) -> None:
    from math_verify.parser import parse_latex_cached
    from sympy import srepr

    from openrlhf_ada.reward.mathematics.latex_parser import parsed_latex

    assert srepr(parsed_latex(formula)) == srepr(parse_latex_cached(formula))


@pytest.mark.parametrize("text", [r"\frac{", "12 + 3 (", "x +", r"\begin{pmatrix}"])
def test_what_is_no_formula_is_none_to_both(text: str) -> None:
    from math_verify.parser import parse_latex_cached

    from openrlhf_ada.reward.mathematics.latex_parser import parsed_latex

    for parse in (parsed_latex, parse_latex_cached):
        with pytest.raises(Exception):  # noqa: B017 - their parser raises plain exceptions
            parse(text)


@pytest.mark.parametrize(
    "formula", [*FORMULAS, r"\frac{1}{2} (", "12 + 3 (", "$3$ and $4$", r"a\boxed{3}", "the answer is 5"]
)
def test_a_formula_is_what_math_verify_finds_in_a_box(formula: str) -> None:
    from math_verify import parse
    from sympy import Basic, srepr

    from openrlhf_ada.reward.mathematics.expressions import _configuration, _parsed_formula

    def shown(found: object) -> list[str]:
        return [srepr(one) if isinstance(one, Basic) else str(one) for one in found]  # type: ignore[attr-defined]

    theirs = parse(rf"\boxed{{{formula}}}", (_configuration()[0],), parsing_timeout=0)
    assert shown(_parsed_formula(formula)) == shown(theirs)
