"""Formulas whose values differ at a point are not equal. That is found in microseconds, where to simplify their
difference takes milliseconds, and most answers to compare are wrong ones.

It decides only where rounding cannot be the cause: what is near, what has lost digits, and what is no formula of
elementary functions stays undecided.
"""

from __future__ import annotations

import cmath
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any
from zlib import crc32

FAR = 1e-4
"""Values are different if they differ by a larger share of their size."""

KEPT = 1e-4
"""A sum below this share of its largest term has lost digits; so has a sine or a logarithm below it."""

REAL = 1e-9
"""An imaginary part below this share of the whole is rounding. With its sign a root could change branches."""

LARGEST_ANGLE, LARGEST_POWER = 1e6, 300.0
"""Beyond it, rounding of an argument is too much of the value."""


class UndecidedError(ArithmeticError):
    """A value cannot be told from here."""


def differ(a: Any, b: Any) -> bool:
    """Do these sympy expressions surely differ? False also where that is not known.

    A symbol alone is more than its value to math-verify: `e` is the number, too, and `ab` the product of a and b.
    """
    try:
        if _is_symbol(a) or _is_symbol(b):
            return False
        one, other = _value(a), _value(b)
    except (ArithmeticError, ValueError, RecursionError):
        # Also a division by zero, an overflow, the logarithm of zero, and what is nested too deep.
        return False
    return are_far(one, other)


def are_far(a: complex, b: complex) -> bool:
    """Is it more than rounding that lies between them?"""
    return abs(a - b) > FAR * max(abs(a), abs(b))


def has_no_branches(node: Any) -> bool:
    """Does it have variables, in nothing but sums, products, integer powers, exponentials, sines and their like?"""
    import sympy as sp

    kinds = (sp.Symbol, sp.Add, sp.Mul, sp.exp, sp.sin, sp.cos, sp.tan, sp.cot, sp.sec, sp.csc)
    parts = [part for part in sp.preorder_traversal(node) if part.free_symbols]
    return bool(parts) and all(
        isinstance(part, kinds)
        or (isinstance(part, sp.Pow) and (part.exp.is_integer is True or not part.base.free_symbols))
        for part in parts
    )


def at_a_point(node: Any) -> Any:
    """The value to 30 digits."""
    from sympy import Float

    return node.subs({name: Float(coordinate(name.name).real, 40) for name in node.free_symbols}).evalf(30)


def _is_symbol(node: Any) -> bool:
    from sympy import Symbol

    return isinstance(node, Symbol)


def _value(node: Any) -> complex:
    """At a point whose coordinates depend on the names of the symbols only. Raises UndecidedError, and what Python
    raises for a value that does not exist."""
    return tidy(_known(type(node))(node))


def tidy(value: complex) -> complex:
    """Without an imaginary part that is rounding."""
    return complex(value.real, 0.0) if abs(value.imag) <= REAL * abs(value) else value


@lru_cache(maxsize=256)
def _known(kind: type) -> Callable[[Any], complex]:
    """How a node of this type is evaluated."""
    import sympy
    from sympy.functions.elementary.exponential import exp, log

    for known, evaluate in (
        (sympy.Symbol, _of_symbol),
        (sympy.core.numbers.ImaginaryUnit, lambda node: 1j),
        (sympy.Rational, lambda node: complex(node.p / node.q)),
        (sympy.Float, lambda node: complex(float(node))),
        (sympy.NumberSymbol, lambda node: complex(float(node))),
        (sympy.Add, _of_sum),
        (sympy.Mul, _of_product),
        (sympy.Pow, lambda node: power(_value(node.base), _value(node.exp))),
        (exp, lambda node: power(complex(cmath.e), _value(node.args[0]))),
        (log, _of_log),
        (sympy.Abs, lambda node: complex(abs(_value(node.args[0])))),
        (sympy.sin, lambda node: _circular(cmath.sin, node)),
        (sympy.cos, lambda node: _circular(cmath.cos, node)),
        (sympy.tan, lambda node: _circular(cmath.tan, node)),
        (sympy.cot, lambda node: kept(1 / _circular(cmath.tan, node))),
        (sympy.sec, lambda node: kept(1 / _circular(cmath.cos, node))),
        (sympy.csc, lambda node: kept(1 / _circular(cmath.sin, node))),
        (sympy.atan, lambda node: circular(cmath.atan, _value(node.args[0]))),
    ):
        # Of numbers there are subclasses, such as one half and pi. Infinities are none of these.
        if kind is known or (known in (sympy.Rational, sympy.NumberSymbol) and issubclass(kind, known)):
            return evaluate
    return _undecided


def _undecided(node: Any) -> complex:
    raise UndecidedError


def _of_symbol(node: Any) -> complex:
    return coordinate(node.name, node.is_real)


def coordinate(name: str, is_real: bool | None = True) -> complex:
    """Between 0.4 and 1.6, where roots and logarithms are real."""
    return complex(0.4 + 1.2 * crc32(f"{name} {is_real}".encode()) / 0xFFFFFFFF)


def _of_sum(node: Any) -> complex:
    return total([_value(term) for term in node.args])


def total(terms: Sequence[complex]) -> complex:
    """Raises UndecidedError where they cancel."""
    found = sum(terms)
    if abs(found) < KEPT * max(map(abs, terms)):
        raise UndecidedError
    return found


def _of_product(node: Any) -> complex:
    product = 1 + 0j
    for factor in node.args:
        product *= _value(factor)
    return product


def power(base: complex, exponent: complex) -> complex:
    """The principal value, as sympy has it. Raises UndecidedError."""
    if not base:
        raise UndecidedError
    logarithm = exponent * cmath.log(base)
    if abs(logarithm) > LARGEST_POWER:
        raise UndecidedError
    return tidy(cmath.exp(logarithm))


def _of_log(node: Any) -> complex:
    if len(node.args) != 1:
        raise UndecidedError
    return kept(cmath.log(_value(node.args[0])))


def _circular(function: Callable[[complex], complex], node: Any) -> complex:
    return circular(function, _value(node.args[0]))


def circular(function: Callable[[complex], complex], angle: complex) -> complex:
    """A sine, cosine or tangent. Raises UndecidedError."""
    if angle.imag or abs(angle) > LARGEST_ANGLE:
        raise UndecidedError
    return kept(function(angle))


def kept(value: complex) -> complex:
    """Raises UndecidedError for what may be 0, or has lost digits."""
    if abs(value) < KEPT:
        raise UndecidedError
    return value
