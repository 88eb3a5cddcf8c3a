r"""Values of formulas as they are written, without a computer algebra system: `\frac{3x+1}{7}` at a point, in a
fiftieth of the time that it takes to parse it for one.

It reads only what is read in one way: arithmetic of numbers and letters, fractions, roots, powers, a few functions,
and lists, tuples and intervals of these. All else has no value here.
"""

from __future__ import annotations

import cmath
import math
import re
from functools import lru_cache

from openrlhf_ada.reward.mathematics.values import (
    UndecidedError,
    are_far,
    circular,
    coordinate,
    kept,
    power,
    tidy,
    total,
)

LONGEST = 300
"""Characters."""

_TOKEN = re.compile(r"\s*(?:([0-9]+(?:\.[0-9]+)?|\.[0-9]+)|\\([A-Za-z]+)|([A-Za-z])|(\S))\s*")
_GREEK = frozenset(
    (
        *("alpha", "beta", "delta", "epsilon", "eta", "kappa", "lambda", "mu", "nu", "omega", "phi", "psi"),
        *("rho", "sigma", "tau", "theta", "xi"),
    )
)
_FUNCTIONS = {"sin": cmath.sin, "cos": cmath.cos, "tan": cmath.tan}
_TIMES = ("*", r"\cdot", r"\times")
# In other notations these are more than variables: differentials, the imaginary unit, functions.
_NO_VARIABLE = frozenset("dijEIDfgh")
_OTHERWISE_READ = re.compile(r"[0-9],\s?[0-9]{3}(?![0-9])|(?<![A-Za-z\\])or(?![A-Za-z])")
"""Digits in groups, and one or the other."""
_BRACKETS = re.compile(r"[(\[](.*)[)\]]|\\\{(.*)\\\}", re.DOTALL)
_ALONE = re.compile(r"\\?[A-Za-z]+")
_INFINITY = re.compile(r"([+-]?)\s*\\infty")


def surely_differ(label: str, answer: str) -> bool:
    """Is one of the values of one formula none of the values of the other? False also where that is not known."""
    expected, given = values(label), values(answer)
    if not expected or not given:
        return False
    return _has_another(expected, given) or _has_another(given, expected)


def is_understood(text: str) -> bool:
    """Has this formula values here?"""
    return bool(values(text))


def _has_another(some: tuple[complex, ...], others: tuple[complex, ...]) -> bool:
    return any(all(_differ(one, other) for other in others) for one in some)


def _differ(one: complex, other: complex) -> bool:
    if cmath.isinf(one) or cmath.isinf(other):
        return one != other
    return are_far(one, other)


@lru_cache(maxsize=8192)
def values(text: str) -> tuple[complex, ...]:
    """Of the formula, or of the items of a list, a tuple or an interval; empty where it is none that is read here.

    A variable alone has none: math-verify takes `e` and `ab` for more than one thing.
    """
    text = text.strip()
    if len(text) > LONGEST or _ALONE.fullmatch(text) or _OTHERWISE_READ.search(text):
        return ()
    bracketed = _BRACKETS.fullmatch(text)
    try:
        items = _items((bracketed[1] or bracketed[2] or "") if bracketed else text)
        if len(items) == 1:
            # A pair of brackets that begins and ends a formula may not belong together.
            return (_value(text),) if "{" not in text[:2] else ()
        return tuple(_infinity(item) or _value(item) for item in items)
    except (ArithmeticError, ValueError, RecursionError):
        return ()


def _items(text: str) -> list[str]:
    """Parts between commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            # The outer brackets do not belong together: it is no list.
            return [text]
        if character == "," and not depth:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]


def _infinity(item: str) -> complex | None:
    match = _INFINITY.fullmatch(item.strip())
    return None if match is None else complex(-math.inf if match[1] == "-" else math.inf)


def _value(text: str) -> complex:
    reader = _Reader(text)
    found = reader.sum()
    reader.end()
    return found


class _Reader:
    """A recursive descent. All methods raise UndecidedError for what may be read in another way."""

    def __init__(self, text: str) -> None:
        self._tokens = [
            (f"\\{command}" if command else number or letter or sign, bool(number))
            for number, command, letter, sign in _TOKEN.findall(text)
        ]
        self._at = 0

    def end(self) -> None:
        if self._at < len(self._tokens):
            raise UndecidedError

    def sum(self) -> complex:
        terms = [self._signed()]
        while self._next() in ("+", "-"):
            sign = -1 if self._take() == "-" else 1
            terms.append(sign * self._product())
        return tidy(total(terms)) if len(terms) > 1 else terms[0]

    def _signed(self) -> complex:
        if self._next() in ("+", "-"):
            return tidy(-self._product()) if self._take() == "-" else self._product()
        return self._product()

    def _product(self) -> complex:
        found = self._juxtaposed()
        while self._next() in (*_TIMES, "/"):
            if self._take() == "/":
                # 1/2x is 1/(2x) to some.
                found /= self._power()
                if self._starts_factor():
                    raise UndecidedError
            else:
                found *= self._juxtaposed()
        return tidy(found)

    def _juxtaposed(self) -> complex:
        r"""Factors without a sign between them. A number comes first or not at all; `2\frac{1}{2}` is 5/2."""
        is_number = self._is_number()
        found = self._power()
        while self._starts_factor():
            if self._is_number() or (is_number and self._next() == r"\frac"):
                raise UndecidedError
            is_number = False
            found *= self._power()
        return found

    def _starts_factor(self) -> bool:
        token = self._next()
        return token in ("(", "{") or (token.startswith("\\") and token not in _TIMES) or token[:1].isalnum()

    def _power(self) -> complex:
        base = self._atom()
        if self._next() != "^":
            return base
        self._take()
        token = self._next()
        if token == "{":
            exponent = self._braces()
        elif len(token) == 1 and (token.isdigit() or (token.isalpha() and token not in _NO_VARIABLE)):
            exponent = self._atom()
        else:
            raise UndecidedError
        if self._next() == "^" or self._next() == "(":
            raise UndecidedError
        return power(base, exponent)

    def _atom(self) -> complex:
        is_number, token = self._is_number(), self._take()
        if is_number:
            return complex(float(token))
        if token == "(":
            return self._closed(")")
        if token == "{":
            return self._closed("}")
        if token == r"\frac":
            return self._braces() / self._braces()
        if token == r"\sqrt":
            return power(self._braces(), 0.5 + 0j)
        if token == r"\pi":
            return complex(math.pi)
        if token[1:] in _FUNCTIONS:
            return self._function(token[1:])
        if token in (r"\ln", r"\log"):
            return self._logarithm(token)
        return self._variable(token)

    def _variable(self, token: str) -> complex:
        is_letter = len(token) == 1 and token.isascii() and token.isalpha() and token not in _NO_VARIABLE
        if not (is_letter or token[1:] in _GREEK) or self._next() in ("(", "_", "'"):
            raise UndecidedError
        return complex(math.e) if token == "e" else coordinate(token.lower())

    def _function(self, name: str) -> complex:
        return circular(_FUNCTIONS[name], self._argument())

    def _logarithm(self, token: str) -> complex:
        if token != r"\ln":
            raise UndecidedError
        return kept(tidy(cmath.log(self._argument())))

    def _argument(self) -> complex:
        """In brackets, with nothing behind it that could belong to it."""
        if self._take() != "(":
            raise UndecidedError
        found = self._closed(")")
        if self._next() == "^" or self._starts_factor():
            raise UndecidedError
        return found

    def _braces(self) -> complex:
        if self._take() != "{":
            raise UndecidedError
        return self._closed("}")

    def _closed(self, bracket: str) -> complex:
        found = self.sum()
        if self._take() != bracket:
            raise UndecidedError
        return found

    def _next(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def _is_number(self) -> bool:
        return self._at < len(self._tokens) and self._tokens[self._at][1]

    def _take(self) -> str:
        if self._at == len(self._tokens):
            raise UndecidedError
        self._at += 1
        return self._tokens[self._at - 1][0]
