"""Formulas whose values differ at a point are not equal: that is found sooner than by simplifying their difference,
and most answers to compare are wrong ones.

What has lost digits, and what is no formula of elementary functions, stays undecided.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

FAR = 1e-4
"""Values are different if they differ by a larger share of their size."""

LARGEST_POWER = 10_000
"""A larger exponent, or one that is not known, costs more than it tells."""

DIGITS = 30

NOISE = 1e-20
"""What is less may be a zero that has lost its digits."""


def differ(a: Any, b: Any) -> bool:
    """Do these sympy expressions surely differ? False also where that is not known.

    A symbol alone is more than its value to math-verify: `e` is the number, too, and `ab` the product of a and b.
    """
    if not (_is_elementary(a) and _is_elementary(b)):
        return False
    one, other = at_a_point(a), at_a_point(b)
    if not (one.is_finite and other.is_finite):
        return False
    size = max(abs(one), abs(other))
    return bool(size > NOISE and abs(one - other) > FAR * size)


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
    """The value to 30 digits, at coordinates between 0.4 and 1.6, where roots and logarithms are real."""
    from sympy import Float

    point = {one: Float(0.4 + 1.2 * crc32(one.name.encode()) / 0xFFFFFFFF, DIGITS + 10) for one in node.free_symbols}
    return node.subs(point).evalf(DIGITS)


def _is_elementary(node: Any) -> bool:
    """More than a symbol, made of known functions of numbers and symbols."""
    import sympy as sp

    kinds = (sp.Symbol, sp.Number, sp.NumberSymbol, sp.core.numbers.ImaginaryUnit, sp.Add, sp.Mul, sp.Pow, sp.Abs)
    kinds += (sp.exp, sp.log, sp.sin, sp.cos, sp.tan, sp.cot, sp.sec, sp.csc, sp.atan)
    if not isinstance(node, sp.Expr) or isinstance(node, sp.Symbol):
        return False
    parts = list(sp.preorder_traversal(node))
    powers = [part.exp for part in parts if isinstance(part, sp.Pow | sp.exp)]
    return all(isinstance(part, kinds) for part in parts) and not any(
        abs(one) > LARGEST_POWER for power in powers for one in power.atoms(sp.Number)
    )
