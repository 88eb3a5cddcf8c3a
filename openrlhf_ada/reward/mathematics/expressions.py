"""Are two formulas equal? math-verify reads and compares them; what it calls equal must be so to a stricter measure.

math-verify takes the last letters of a formula for units (`v t`, `a + b + c`); here `units` has taken them off.

It is asked as little as possible: formulas whose values differ at a point are not equal, which takes no simplifier.
What has lost digits, and what is no formula of elementary functions, stays undecided.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from zlib import crc32

from openrlhf_ada.reward.mathematics.numbers import RELATIVE
from openrlhf_ada.reward.mathematics.sizes import is_affordable, is_huge, is_too_long

# It warns at every call that its own time limits are off.
logging.getLogger("math_verify").setLevel(logging.ERROR)

FAR = 1e-4
"""Values are different if they differ by a larger share of their size."""

LARGEST_POWER = 10_000
"""A larger exponent, or one that is not known, costs more than it tells."""

DIGITS = 30

NOISE = 1e-20
"""What is less may be a zero that has lost its digits."""

_BOX = r"\boxed{"
ANY_NUMBER = 7919
SIZES = (1 / 64, 1.0, 8.0, 200.0)
"""Of coordinates: |x - 5| is 5 - x only near 0. a^{b^c} at 1000 takes a third of a second."""
_COSTLY = re.compile(r"[\^!]|\\(?:sum|prod|int|lim|Gamma|binom)(?![a-z])")
_AND = re.compile(r"\$?(?:,\s*|\s+|\}\s*|;\s*)\\?(?:text\s*\{\s*)?(?:and|or)\s*\}?\s*\$?(?![A-Za-z]{2})|;")


@lru_cache(maxsize=4096)
def equal_expressions(label: str, answer: str, *, in_prose: bool = False) -> bool:
    """Is the answer, or where it is prose the formula or number in it, equal to the label?"""
    if not in_prose and is_too_long(label, answer):
        return False
    found = (_parsed(answer),) if in_prose else tuple(_parsed(_boxed(reading)) for reading in _spellings(answer))
    return any(_equal(parsed_label(one), given) for one in _spellings(label) for given in found if given)


def forget() -> None:
    """What an interrupted comparison may have left half done: sympy notes what it knows of an expression."""
    from sympy.core.cache import clear_cache

    for remembered in (_parsed, parsed_label):
        remembered.cache_clear()
    clear_cache()


def _equal(gold: Sequence[Any], given: Sequence[Any]) -> bool:
    given = [one for one in given if not is_huge(one)]
    # The value first: it takes no simplifier.
    return _same_value(gold, given) or (_verified(gold, given) and _near(gold, given))


def _verified(gold: Sequence[Any], given: Sequence[Any]) -> bool:
    from math_verify import verify

    # Its own time limits use alarms, which only a main thread has.
    return any(
        one == other or verify([one], [other], timeout_seconds=None, allow_set_relation_comp=True)
        for one in gold
        for other in given
        if not differ(one, other) and is_affordable(one, other)
    )


def _boxed(formula: str) -> str:
    return rf"{_BOX}{formula}}}"


def _spellings(text: str) -> list[str]:
    """As it is; and a list as mathematics writes it."""
    return list(dict.fromkeys((text, _AND.sub(", ", text))))


@lru_cache(maxsize=4096)
def parsed_label(label: str) -> tuple[Any, ...]:
    return _parsed(_boxed(label)) or _parsed(label)


@lru_cache(maxsize=4096)
def is_readable(label: str) -> bool:
    """Can math-verify read the label, and does it equal itself?"""
    from math_verify import verify
    from sympy import Integer

    gold = list(parsed_label(label))
    # What it cannot parse it gives back as text, which equals itself whatever it is.
    understood = not all(isinstance(reading, str) for reading in gold)
    if understood and _COSTLY.search(label):
        # A label that no answer can be compared with takes its time here, where that is not the answer's fault.
        verify(gold, [Integer(ANY_NUMBER)], timeout_seconds=None)
    return understood and verify(gold, gold, timeout_seconds=None)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[Any, ...]:
    """The formula or number that math-verify finds in a text, and how that is written; empty where there is none."""
    from math_verify import parse

    latex, number = _configuration()
    # Of "12 + 3 (" in a box, which is no formula, math-verify would take the 12.
    configuration = (latex,) if text.startswith(_BOX) else (latex, number)
    return tuple(parse(text, configuration, parsing_timeout=0))


@lru_cache(maxsize=1)
def _configuration() -> tuple[Any, Any]:
    """math-verify's own, but for units: for LaTeX, and for bare numbers."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import ExprExtractionConfig, LatexExtractionConfig

    notation = NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all", equations=False
    )
    return LatexExtractionConfig(normalization_config=notation), ExprExtractionConfig()


def _near(gold: Sequence[Any], parsed: Sequence[Any]) -> bool:
    """math-verify compares numbers to six decimals: here exact ones must be equal, and others relatively so."""
    expected, given = _expressions(gold), _expressions(parsed)
    return not expected or not given or any(_are_near(a, b) for a in expected for b in given)


def _same_value(gold: Sequence[Any], parsed: Sequence[Any]) -> bool:
    """To 20 digits: math-verify misses that e^{i pi/3} is (1 + i sqrt 3)/2, and that sqrt(1/n) is 1/sqrt(n)."""
    from sympy import Expr, I

    pairs = [
        (a, b) for a in _expressions(gold) for b in _expressions(parsed) if isinstance(a, Expr) and isinstance(b, Expr)
    ]
    return any(_agree(a, b) for a, b in pairs if not a.is_number or not b.is_number or a.has(I) or b.has(I))


def _agree(a: Any, b: Any) -> bool:
    """Have they one value at a point, and where they have branches the same real values at others, or both none?"""
    no_branches = (has_no_branches(a) and has_no_branches(b)) or (a.is_number and b.is_number)
    if not no_branches and not (_is_elementary(a) and _is_elementary(b)):
        return False
    far = at_a_point(a) - at_a_point(b)
    if not far.is_finite or abs(far) > 1e-20 * abs(at_a_point(a)):
        return False
    names = sorted(one.name for one in a.free_symbols | b.free_symbols)
    signs = [(), *((name,) for name in names), tuple(names)]
    return no_branches or all(
        _same_real(at_a_point(a, size, negative), at_a_point(b, size, negative))
        for size in SIZES
        for negative in signs
    )


def _same_real(one: Any, other: Any) -> bool:
    are_real = [value.is_finite and abs(value.as_real_imag()[1]) <= NOISE * abs(value) for value in (one, other)]
    return are_real[0] == are_real[1] and (not are_real[0] or abs(one - other) <= 1e-20 * abs(one))


def _expressions(readings: Sequence[Any]) -> list[Any]:
    return [reading for reading in readings if not isinstance(reading, str)]


def _are_near(a: Any, b: Any) -> bool:
    from sympy import Expr, FiniteSet, Interval, MatrixBase, Tuple

    if isinstance(a, Expr) and isinstance(b, Expr) and a.is_number and b.is_number:
        return _are_near_numbers(a, b)
    if isinstance(a, FiniteSet) and isinstance(b, FiniteSet) and len(a) == len(b):
        return all(any(_are_near(one, other) for other in b) for one in a)
    if isinstance(a, Interval) and isinstance(b, Interval):
        return _are_near(a.start, b.start) and _are_near(a.end, b.end)
    if isinstance(a, MatrixBase) and isinstance(b, MatrixBase) and a.shape == b.shape:
        return all(_are_near(one, other) for one, other in zip(a.flat(), b.flat(), strict=True))
    if isinstance(a, Tuple | tuple) and isinstance(b, Tuple | tuple) and len(a) == len(b):
        return all(_are_near(one, other) for one, other in zip(a, b, strict=True))
    return True


def _are_near_numbers(a: Any, b: Any) -> bool:
    from sympy import Float

    if a.is_rational and b.is_rational and not a.has(Float) and not b.has(Float):
        return bool(a == b) or (a - b).equals(0) is True
    if not (a.is_finite and b.is_finite):
        return True
    size = max(abs(a.evalf(30)), abs(b.evalf(30)))
    return bool(abs((a - b).evalf(30)) <= RELATIVE * size)


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


@lru_cache(maxsize=4096)
def at_a_point(node: Any, size: float = 1.0, negative: tuple[str, ...] = ()) -> Any:
    """The value to 30 digits, at coordinates between 0.4 and 1.6 times the size, where roots and logarithms are real,
    but for the `negative` ones."""
    from sympy import Float

    places = {one: size * (0.4 + 1.2 * crc32(one.name.encode()) / 0xFFFFFFFF) for one in node.free_symbols}
    point = {one: Float(-at if one.name in negative else at, DIGITS + 10) for one, at in places.items()}
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
