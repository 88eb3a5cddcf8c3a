"""What a formula would cost to compare, told from its shape: sympy expands first and asks later."""

from __future__ import annotations

import math
import re
from typing import Any

MOST_NESTED = 10
"""Brackets within brackets. The parser's time grows with a power of them, and that of values doubles with each."""
MOST_CHARACTERS = 500
"""Of an answer, besides four times as many as its label has."""
MOST_DIGITS = 5_000
"""Of a number that has to be computed."""
MOST_TERMS = 200
"""Of a formula that is multiplied out."""
MOST_PARTS, MOST_ITEMS = 300, 30
"""Of an answer, and of the sets and lists in it, besides three times as many as its label has."""
MOST_ROWS, MOST_TIMES = 3, 3
"""Of a matrix with a power."""
_BOUND = 1e9
_BRACKET = re.compile(r"([(\[{]|\\l(?:floor|ceil))|[\])}]|\\r(?:floor|ceil)")


def is_too_long(label: str, answer: str) -> bool:
    """Is the text longer, or has it more brackets within brackets, than any that could be this label?"""
    return _nesting(answer) > max(MOST_NESTED, _nesting(label)) or len(answer) > MOST_CHARACTERS + 4 * len(label)


def _nesting(text: str) -> int:
    depth = deepest = 0
    for opening in _BRACKET.findall(text):
        depth += 1 if opening else -1
        deepest = max(deepest, depth)
    # Bars open and close alike.
    return deepest + text.count("|") // 2


def is_huge(node: Any) -> bool:
    """Has it a number that nobody can compute, such as 9^{9^9} or 10000000! ?"""
    return _growth(node)[0] > MOST_DIGITS


def is_affordable(label: Any, answer: Any) -> bool:
    """Are both formulas, the answer of a size that the label's may have, too? Sums and integrals have any size."""
    import sympy as sp

    if isinstance(label, str) or isinstance(answer, str):
        return False
    kinds = (sp.Integral, sp.Sum, sp.Product, sp.Limit, sp.Derivative)
    expected, given = (list(sp.preorder_traversal(_basic(one))) for one in (label, answer))
    unknown = {type(part) for part in given if isinstance(part, kinds)} - {type(part) for part in expected}
    return (
        not unknown
        and len(given) <= MOST_PARTS + 3 * len(expected)
        and _items(given) <= MOST_ITEMS + 3 * _items(expected)
        and _growth(answer)[1] <= max(MOST_TERMS, _growth(label)[1])
    )


def _items(parts: list[Any]) -> int:
    import sympy as sp

    return sum(len(part.args) for part in parts if isinstance(part, sp.Set | sp.Tuple | sp.And | sp.Or))


def _basic(node: Any) -> Any:
    return node.as_immutable() if hasattr(node, "as_immutable") else node


def _growth(node: Any) -> tuple[float, float]:
    """(digits of the largest number in it, terms when it is multiplied out), both at most about _BOUND."""
    import sympy as sp

    if isinstance(node, str):
        return 0.0, 1.0
    node = _basic(node)
    if isinstance(node, sp.Rational):
        return math.log10(max(abs(node.p), 1)) + math.log10(max(node.q, 1)), 1.0
    if isinstance(node, sp.Float):
        return abs(float(sp.log(abs(node), 10))) if node else 0.0, 1.0
    if not node.args:
        return 0.5, 1.0
    digits, terms = zip(*map(_growth, node.args), strict=True)
    if isinstance(node, sp.Mul | sp.MatMul):
        return min(sum(digits), _BOUND), min(math.prod(terms), _BOUND)
    if isinstance(node, sp.Add | sp.MatAdd):
        return max(digits), min(sum(terms), _BOUND)
    times = 10 ** min(digits[-1], 9)
    if rows := getattr(node.args[0], "rows", 0):
        return digits[0], 1.0 if rows <= MOST_ROWS and times <= MOST_TIMES else _BOUND
    if isinstance(node, sp.Pow):
        is_expanded = terms[0] > 1 and not node.exp.free_symbols
        many = _BOUND if times > MOST_TERMS else math.comb(int(min(terms[0], 99) + times) - 1, int(times))
        return min(digits[0] * times, _BOUND), min(many, _BOUND) if is_expanded else 1.0
    if isinstance(node, sp.factorial | sp.factorial2 | sp.binomial | sp.exp):
        return min(max(*digits, 0.5) * times, _BOUND), max(terms)
    return max(digits), max(terms)
