"""Where verifiers of reasoning-gym must not have their way: they would run an answer as Python, or accept any text."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

EVALUATED_AS_FORMULAS = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)
"""Tasks whose verifiers give the answer to sympy's parser, which evaluates it as Python. Those of arithmetic have own
rules below."""

EVALUATED_AS_LISTS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Tasks whose verifiers give the answer to `eval`."""

# Not Integral and Derivative: an integral that is only written down would be a right answer.
_NAMES = """sin cos tan cot sec csc asin acos atan acot asec acsc sinh cosh tanh coth asinh acosh atanh exp log ln sqrt
cbrt root Abs abs sign Rational Integer Float factorial"""
_FUNCTIONS = frozenset(_NAMES.split())
_NAME = re.compile(r"\w+$")
_ENDS_A_VALUE = tuple(")]}'\"")
_LONGEST_NAME = 40
_ATTRIBUTE = re.compile(r"(?<![0-9])\.\s*[^\W\d]")
# Texts can become code once more within sympy. Comments and lines that go on would separate a name from its bracket.
_NEVER = re.compile(r"__|[#\\]")
_TEXT = re.compile(r"['\"]")


def could_run(task: str, answer: str) -> bool:
    """Would the task's verifier run a function of the answer's choice? Such an answer is wrong."""
    if task in EVALUATED_AS_LISTS:
        return bool(_NEVER.search(answer) or _ATTRIBUTE.search(answer) or _called(answer))
    if task not in EVALUATED_AS_FORMULAS:
        return False
    looks_odd = any(pattern.search(answer) for pattern in (_NEVER, _TEXT, _ATTRIBUTE))
    return looks_odd or not _called(answer) <= _FUNCTIONS


def _called(answer: str) -> set[str]:
    """What stands before opening brackets: names, brackets and quotes. An operator in between makes it a product."""
    text, called = re.sub(r"\s+", " ", answer), set[str]()
    for bracket in re.finditer(r"\(", text):
        before = text[max(0, bracket.start() - _LONGEST_NAME) : bracket.start()].rstrip()
        name = _NAME.search(before)
        if before[-1:] in _ENDS_A_VALUE or (name and not name[0][0].isdigit()):
            called.add(name[0] if name else before[-1])
    return called


def score_of(task: str, answer: str, entry: dict[str, Any], verifier: Callable[[str, Any], Any]) -> float:
    """The verifier's score in [0, 1]; for tasks whose verifier accepts wrong answers, the score by a rule of ours."""
    own = _OWN_RULES.get(task)
    if own is not None:
        return float(own(answer, entry))
    if task in _NOT_A_NUMBER and "nan" in answer.lower():
        return 0.0
    score = float(verifier(answer, entry))
    return 1.0 if score > _FULL_MARKS_ABOVE.get(task, 1.0) else score


_NOT_A_NUMBER = frozenset({"complex_arithmetic"})
"""The verifier takes the least of 1 and nan for 1."""

_FULL_MARKS_ABOVE = {"polynomial_equations": 0.998}
"""It wants four decimals, and a solution that is cut off there costs up to a thousandth."""


def _same_word(answer: str, entry: dict[str, Any]) -> bool:
    """game_of_life_halting: its verifier takes the truth of the texts, and "False" is a text."""
    return answer.strip(" .'\"").lower() == str(entry["answer"]).lower()


def _probability(answer: str, entry: dict[str, Any]) -> bool:
    """coin_flip: its verifier compares the shorter text with the beginning of the longer one: "0" with "0.375"."""
    try:
        given, expected = (Fraction(text.replace(",", "")) for text in (answer, str(entry["answer"])))
    except (ValueError, ZeroDivisionError):
        return False
    return abs(given - expected) <= min(Fraction(1, 10_000), expected / 100)


def _makes_target(answer: str, entry: dict[str, Any]) -> bool:
    """countdown, puzzle24: the verifier of the latter takes any four numbers that make 24."""
    metadata = entry["metadata"]
    found = arithmetic(answer)
    return (
        found is not None
        and found[0] == metadata.get("target", 24)
        and sorted(found[1]) == sorted(int(number) for number in metadata["numbers"])
    )


_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def arithmetic(text: str) -> tuple[Fraction, list[int]] | None:
    """The value of integers with + - * / and brackets, and these integers; None for anything else."""
    numbers: list[int] = []

    def value(node: ast.expr) -> Fraction:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            numbers.append(node.value)
            return Fraction(node.value)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            return _OPERATIONS[type(node.op)](value(node.left), value(node.right))
        raise ValueError("no arithmetic")

    try:
        return value(ast.parse(text.strip(), mode="eval").body), numbers
    except (ValueError, SyntaxError, ZeroDivisionError):
        return None


_OWN_RULES: dict[str, Callable[[str, dict[str, Any]], bool]] = {
    "coin_flip": _probability,
    "countdown": _makes_target,
    "game_of_life_halting": _same_word,
    "puzzle24": _makes_target,
}
