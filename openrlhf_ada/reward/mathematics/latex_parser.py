"""LaTeX to sympy as math-verify's parser does it, in half of the time.

ANTLR predicts which rule comes next, with the whole context of the rules so far. Without it (SLL) it is several times
as fast, and gives the same tree or an error of syntax; then it is asked again, with the context.
"""

from __future__ import annotations

from typing import Any

from antlr4 import PredictionMode
from latex2sympy2_extended.latex2sympy2 import _Latex2Sympy
from math_verify.grader import should_treat_as_complex
from math_verify.parser import get_last_eq


class _WithoutContext(_Latex2Sympy):
    """Its parser predicts without the rules that called it, which is faster and fails on some formulas.

    Contract: test_math_verify_facts.test_the_fast_parser_gives_what_math_verify_gives
    """

    def create_parser(self, latex_str: str) -> Any:
        parser = super().create_parser(latex_str)
        parser._interp.predictionMode = PredictionMode.SLL
        return parser


def parsed_latex(latex: str) -> Any:
    """A sympy object. Raises what the parser raises, which may be any exception, for what is no formula."""
    try:
        return _parsed(latex)
    except Exception:
        # Of a chain of equations the last side may be one.
        last = get_last_eq(latex)
        if last == latex:
            raise
        return _parsed(last)


def _parsed(latex: str) -> Any:
    is_real = not should_treat_as_complex(latex)
    try:
        return _WithoutContext(is_real=is_real).parse(latex)
    except Exception:  # noqa: BLE001 - of syntax, or of what comes behind it
        return _Latex2Sympy(is_real=is_real).parse(latex)
