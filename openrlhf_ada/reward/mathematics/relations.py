r"""What stands around a value: its name (`a_n = 5`), for what it holds (`for all n`), in which range (`x < 2`)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import permutations

from openrlhf_ada.reward.mathematics.notation import simplified
from openrlhf_ada.reward.mathematics.tables import pattern

_GREEK = r"\\(?:alpha|beta|gamma|delta|(?:var)?epsilon|zeta|eta|theta|lambda|mu|nu|xi|rho|sigma|tau|(?:var)?phi|omega)"
_SUBSCRIPT = r"(?:_(?:\w|\{(?:[^{}]|\{[^{}]*\}){1,20}\}|\\[a-z]+))?"
_FORMULA_NAME = re.compile(
    rf"^(?:[A-Za-z]|{_GREEK}(?![a-z])){_SUBSCRIPT}\s*(?:\([^()=<>]{{1,12}}\))?\s*=(?!=)\s*(?=\S)"
)
_NAMED_VALUE = re.compile(rf"\s*((?:[A-Za-z]|{_GREEK}){_SUBSCRIPT})\s*=([^=<>]+)")
_COMMA = re.compile(r",(?![^(\[{]*[)\]}])|\s*(?:\\text\s*\{\s*and\s*\}|\band\b)\s*")
_SETS = r"(?:\\mathbb\s*\{?\s*[NZQRC]\s*\}?|\\?[NZQR])(?:\s*[\^_]\s*\{?[+*0-9-]\}?)*"
_VARIABLES = r"[a-zA-Z](?:\s*,\s*[a-zA-Z])*"
_WORDS = r"(?:\s|\\[ ,;]|,|\\text\s*\{|\}|for|where|with|all|any|every|each|constants?|integers?|real|numbers?|is|an?)"
_IN_A_SET = rf"{_VARIABLES}\s*\}}?\s*\\in\s*{_SETS}"
_QUALIFIER = re.compile(
    # k in Z; where a, b in R; for all n in N; for all n; k is an integer
    rf"(?:\s|,|\(|\\quad)*(?:(?:,|\(|\\quad|\\text\s*\{{)\s*{_WORDS}*(?:\\forall\s*)?{_IN_A_SET}|"
    rf"\\forall\s*(?:{_IN_A_SET}|{_VARIABLES})|"
    rf"(?:\\text\s*\{{\s*)?\bfor\s+(?:all|any|every)\s+(?:integers?\s+)?\}}?\s*(?:{_IN_A_SET}|{_VARIABLES}\s*\}}?)|"
    rf"(?:,|\(|\\text\s*\{{)\s*(?:where\s+)?\}}?\s*[a-z]\s*(?:\\text\s*\{{\s*)?is\s+an\s+integer\s*\}}?)\s*[)}}]?\s*$"
)
TAIL = 80
"""Characters at the end in which a range of n is looked for."""

_ORDER = re.compile(r"\\(?:le|ge|leq|geq|lt|gt)(?![a-z])|[<>]=?")
_LETTER = re.compile(r"\\(?:text|mathbb)\s*\{[^{}]*\}|\\[A-Za-z]+|([A-Za-z](?:_\{?[0-9]\}?)?)")
_FUNCTION = re.compile(r"[a-zA-Z]\s*\([a-z]\)\s*=")
_TUPLE = re.compile(r"\([^()]+,[^()]+\)")
# x^2 + C, C + x^2, C e^x
_OF_A_SUM = r"\+\s*{0}\s*$|^{0}\s*\+|{0}\s*(?:\\cdot\s*)?(?:e\s*\^|\\(?:exp|sin|cos|ln|sinh|cosh)(?![a-z]))"
_COLUMN = pattern("relations", "column")
_UNIT = re.compile(r"(?<![A-Za-z\\])([ijk])(?![A-Za-z])")
_FACTOR = r"(?:[0-9]+(?:\.[0-9]+)?|\\frac\{[^{}]*\}\{[^{}]*\}|\\sqrt\{[^{}]*\})*"
_VECTOR = re.compile(rf"(?:[+-]?\s*{_FACTOR}\s*\*?\s*[ijk]\s*){{2,3}}")
_CLOSED = ("le", "leq", "ge", "geq", "<=", ">=")
_ALONE = re.compile(rf"\s*(?:[a-zA-Z]|{_GREEK}){_SUBSCRIPT}\s*(?:\([a-z]\))?\s*")
_OR = re.compile(r"\s*(?:\\text\s*\{\s*or\s*\}|\\(?:lor|vee)(?![a-z])|\bor\b)\s*")


def turned(text: str) -> str:
    r"""`x = 2` for `2 = x`."""
    left, equals, right = text.rpartition("=")
    is_name = equals and _ALONE.fullmatch(right) and not _ALONE.fullmatch(left)
    return f"{right.strip()}={left.strip()}" if is_name and not re.search(r"[=<>,]|[!:\\]$", left) else text


def as_tuple(text: str) -> str | None:
    """A column, or a sum of the unit vectors i, j and k, as a tuple; None for what is neither."""
    if (match := _COLUMN.fullmatch(text)) is not None:
        entries = [entry.strip() for entry in match[1].split("&" if match[2] else r"\\") if entry.strip()]
        return None if ("&" in match[1]) != bool(match[2]) or len(entries) < 2 else f"({', '.join(entries)})"
    if _VECTOR.fullmatch(text) and not {"j", "k"}.isdisjoint(text):
        vector = simplified(_UNIT.sub(r"\\mathbf{\1}", text))
        return vector if vector.startswith("(") else None
    return None


def without_name(text: str) -> str:
    r"""`2^n` of `a_n = 2^n`: for comparing with what has no name."""
    match = _FORMULA_NAME.match(text)
    return text[match.end() :] if match and "=" not in text[match.end() :] else text


def without_same_name(label: str, answer: str) -> tuple[str, str]:
    """Both without the name that they share: `2x` and `3x` for `y = 2x` and `y=3x`, which math-verify would solve."""
    bare = without_name(label), without_name(answer)
    names = (text.removesuffix(rest).replace(" ", "") for text, rest in zip((label, answer), bare, strict=True))
    return bare if len(set(names)) == 1 else (label, answer)


def without_qualifier(text: str) -> str:
    r"""Without `, k \in \mathbb{Z}` or `for all n` at its end. `for n \ge 3` stays: other values may follow."""
    before, tail = text[:-TAIL], text[-TAIL:]
    match = _QUALIFIER.search(tail)
    rest = before + tail[: match.start()].strip() if match else ""
    return rest or text


def with_constants_of(label: str, answer: str) -> Iterator[str]:
    r"""The answer with the label's names of what is any number: `C_1 e^x + C_2 e^{-x}` for `A e^x + B e^{-x}`."""
    mine, theirs = ([one for one in _LETTER.findall(without_name(text)) if one] for text in (label, answer))
    known, new = set(mine) - set(theirs), set(theirs) - set(mine)
    sides = (label, known, Counter(mine)), (answer, new, Counter(theirs))
    if not 0 < len(known) == len(new) < 4 or not _stand_for_any(*sides):
        return
    for order in permutations(sorted(known)):
        names = dict(zip(sorted(new), order, strict=True))
        yield _LETTER.sub(lambda match, names=names: names.get(match[1], match[0]), answer)


def _stand_for_any(*sides: tuple[str, set[str], Counter[str]]) -> bool:
    """Are these letters of label and answer constants, a parameter or an integer, and not given by the problem?"""
    texts, names = [side[0] for side in sides], [side[1] for side in sides]
    heads = [match and match[0].replace(" ", "") for match in map(_FUNCTION.match, texts)]
    if heads[0] and heads[0] == heads[1] and not any(one in heads[0] for one in names[0] | names[1]):
        return True
    if all(len(counts) == 1 for _, _, counts in sides):
        are_integers = all(min(used) in "klmn" and re.search(r"\\(?:pi|in)(?![a-z])", text) for text, used, _ in sides)
        return are_integers or all(_TUPLE.fullmatch(without_qualifier(text)) for text in texts)
    # C_1 x + C_2 x^2
    are_numbered = any(all(one[0] in "Cc" and "_" in one for one in used) for used in names)
    return any(all(one[0] in "Cc" for one in used) for used in names) and all(
        counts[one] == 1
        and one[0] in "ABCDKabck"
        and ((are_numbered and re.search("[+-]", text)) or re.search(_OF_A_SUM.format(re.escape(one)), text))
        for text, used, counts in sides
        for one in used
    )


def named_values(text: str) -> dict[str, str] | None:
    """{x: 2, y: 1} of `x = 2, y = 1`; None for what is no list of values of different names."""
    parts = [_NAMED_VALUE.fullmatch(part) for part in _COMMA.split(text)]
    found = {part[1].strip(): part[2].strip() for part in parts if part is not None}
    return found if 2 <= len(found) == len(parts) else None


def in_order(values: dict[str, str], names: Iterable[str]) -> str:
    """The values as a tuple, in the order of the names."""
    return f"({', '.join(values[name] for name in names)})"


def has_order(text: str) -> bool:
    """Is there a sign such as < in it?"""
    return _ORDER.search(text) is not None


def is_range(text: str) -> bool:
    r"""Could it name a range of values: an interval, a union, a set by its condition?"""
    return bool(re.match(r"\s*(?:\\left)?\s*[(\[]|.*(?:\\cup|\\infty|\\mathbb|\\setminus|\\in(?![a-z])|\\ne)", text))


def is_solved(text: str) -> bool:
    r"""Does an inequality stand for its solutions, since one of its sides is a variable alone?"""
    return any(_ALONE.fullmatch(side) for side in _ORDER.split(text))


def as_interval(text: str) -> str | None:
    r"""`(-\infty,2) \cup (3,\infty)` for `x < 2 or x > 3`; None for what is no such range of one variable."""
    intervals = [_interval(part) for part in _OR.split(text)]
    return r" \cup ".join(part for part in intervals if part) if all(intervals) else None


def _interval(text: str) -> str | None:
    sides, signs = _ORDER.split(text), [sign.lstrip("\\").strip() for sign in _ORDER.findall(text)]
    alone = [position for position, side in enumerate(sides) if _ALONE.fullmatch(side)]
    if len(alone) != 1 or not 2 <= len(sides) <= 3 or (len(sides) == 3 and alone != [1]):
        return None
    low, high = ("(", r"-\infty"), (r"\infty", ")")
    for position, sign in enumerate(signs):
        # What stands left of the variable is its lower bound where the sign points to it.
        is_left, is_less = position < alone[0], sign[0] in "<l"
        bound, is_closed = sides[position if is_left else position + 1].strip(), sign in _CLOSED
        if is_left == is_less:
            low = ("[" if is_closed else "(", bound)
        else:
            high = (bound, "]" if is_closed else ")")
    return f"{low[0]}{low[1]},{high[0]}{high[1]}"
